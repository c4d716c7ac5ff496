//! How long sandboxes are there without being asked for.

use crate::Egress;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// What to change of a sandbox, at once; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSandboxRequest {
    /// What it may reach from now on, instead of what it might; connections that it may no longer have are cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Seconds from now until its time is over, 1 to 2592000 (30 days); of a paused sandbox from the moment at which it goes
    /// on. `null`: for ever.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<f64>)]
    pub timeout_s: Option<Option<f64>>,
    /// Seconds without use until its time is over, 1 to 2592000, counted from now at the earliest. `null`: for ever.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<f64>)]
    pub idle_timeout_s: Option<Option<f64>>,
    /// What becomes of it when either is over: `kill` or `pause`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
    /// Whether a call or traffic lets it go on when it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
}

/// Tells `null` from nothing.
pub(crate) fn given<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_told_from_nothing_both_ways() {
        for (text, timeout_s) in [
            ("{}", None),
            (r#"{"timeout_s":null}"#, Some(None)),
            (r#"{"timeout_s":1.5}"#, Some(Some(1.5))),
        ] {
            let read: ChangeSandboxRequest = serde_json::from_str(text).unwrap();
            assert_eq!(read.timeout_s, timeout_s, "{text}");
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        for wrong in [r#"{"timeout_s":"1"}"#, r#"{"timeouts":1}"#] {
            assert!(serde_json::from_str::<ChangeSandboxRequest>(wrong).is_err());
        }
    }
}

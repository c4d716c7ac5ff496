//! Snapshots: taking one, forking, going back, and where disk space has gone.

use crate::Sandbox;
use crate::lifetime::given;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Keep a sandbox's present state. Every field may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeSnapshotRequest {
    /// A name, unique among your snapshots: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `full` (when left out): memory, devices and disk. `disk`: the disk alone; what is made from it starts as after a
    /// power-on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Free text for your own use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A sentence for people, of at most 4 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A kept state. It outlives the sandbox it was taken of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// 20 characters, the first is `n`.
    pub id: String,
    /// The name it was given.
    pub name: Option<String>,
    /// `full` or `disk`.
    pub kind: String,
    /// The id of the sandbox it was taken of, which may be gone.
    pub sandbox: String,
    /// The id of the snapshot before it, which may be gone.
    pub parent: Option<String>,
    /// The template that its first ancestor was made from.
    pub template: String,
    /// Virtual CPUs of what is made from it.
    pub cpus: u32,
    /// Memory in MiB of what is made from it.
    pub memory_mib: u32,
    /// The labels it was given.
    pub labels: BTreeMap<String, String>,
    /// The note it was given.
    pub note: String,
    /// When it was taken: RFC 3339, UTC.
    pub created_at: String,
    /// How long the sandbox stood still for it.
    pub pause_ms: f64,
    /// From the request to the moment at which it survives a power cut.
    pub durable_ms: f64,
    /// What it takes on the host's disk beyond its parent.
    pub bytes: u64,
    /// The pages of memory that it keeps beyond its parent.
    pub dirty_pages: u64,
    /// Whether the guest came to rest in time; otherwise what was in flight to or from its agent is lost in its children.
    pub clean: bool,
}

/// The caller's snapshots, the newest last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// One entry each.
    pub snapshots: Vec<Snapshot>,
}

/// Make running children of a running sandbox. Every field may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// How many, 1 to 1000; 1 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Labels of each child.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Added to the environment that each child has from its parent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// As in a creation; the parent's when left out, `null` is for ever. Each child's time begins when it runs.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<f64>)]
    pub timeout_s: Option<Option<f64>>,
    /// As in a creation; the parent's when left out, `null` is for ever.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<f64>)]
    pub idle_timeout_s: Option<Option<f64>>,
    /// As in a creation; the parent's when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
    /// As in a creation; the parent's when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
}

/// What came of a fork.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Forked {
    /// How long the parent stood still.
    pub pause_ms: f64,
    /// From the request to the moment at which the state that all children share survives a power cut.
    pub durable_ms: f64,
    /// What that state takes on the host's disk.
    pub bytes: u64,
    /// The pages of memory in it.
    pub dirty_pages: u64,
    /// One entry for each child that was asked for.
    pub children: Vec<ForkedChild>,
}

/// A child, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForkedChild {
    /// It runs.
    Sandbox(Box<Sandbox>),
    /// It could not be made, and has left nothing.
    Error(ForkError),
}

/// Why a child of a fork could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkError {
    /// A stable word; each has a section in `docs/errors.md`.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
    /// What the caller can do about it, and where it is explained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Put a sandbox back into a kept state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The snapshot to go back to: id, a prefix of it that fits no other, or name. It must be of the sandbox's own size
    /// and template.
    pub snapshot: String,
    /// Keep what is left behind as a snapshot of this name first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<String>,
}

/// A sandbox after a rollback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RolledBack {
    /// As it is now.
    pub sandbox: Sandbox,
    /// What was left behind, where it was to be kept.
    pub saved: Option<Snapshot>,
}

/// Your snapshots and sandboxes. Each has the snapshot that it came from in `parent`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tree {
    /// The newest last.
    pub snapshots: Vec<Snapshot>,
    /// The newest last.
    pub sandboxes: Vec<Sandbox>,
}

/// Where disk space has gone. What several share counts once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskUsage {
    /// Layers of snapshots.
    pub snapshots_bytes: u64,
    /// What sandboxes have beyond the snapshots and templates that they came from.
    pub sandboxes_bytes: u64,
    /// Whole memories that were put together from layers, to be mapped; they can be made again.
    pub materialized_bytes: u64,
    /// The most that `materialized_bytes` may be.
    pub materialized_limit_bytes: u64,
    /// Bakes of templates; they can be made again.
    pub bakes_bytes: u64,
    /// Root images, kernels and initrds.
    pub images_bytes: u64,
    /// What is free where sandboxes and snapshots are kept.
    pub free_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_child_is_a_sandbox_or_an_error() {
        let failed = ForkedChild::Error(ForkError {
            code: "no_space".to_owned(),
            message: "m".to_owned(),
            hint: None,
        });
        let written = json!({ "error": { "code": "no_space", "message": "m" } });
        assert_eq!(serde_json::to_value(&failed).unwrap(), written);
        assert_eq!(
            serde_json::from_value::<ForkedChild>(written).unwrap(),
            failed
        );
    }

    #[test]
    fn every_field_of_a_request_may_be_left_out() {
        assert_eq!(
            serde_json::from_str::<TakeSnapshotRequest>("{}").unwrap(),
            TakeSnapshotRequest::default()
        );
        assert_eq!(
            serde_json::to_string(&TakeSnapshotRequest::default()).unwrap(),
            "{}"
        );
        assert_eq!(
            serde_json::from_str::<ForkRequest>("{}").unwrap(),
            ForkRequest::default()
        );
        assert!(serde_json::from_str::<RollbackRequest>("{}").is_err());
        assert!(serde_json::from_str::<ForkRequest>(r#"{"n": 2}"#).is_err());
    }
}

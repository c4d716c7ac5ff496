//! Arguments that have two names: Pando's own, and that of Arrakis's MCP server.

use crate::answer::Failure;

/// The one of two that was given.
///
/// # Errors
/// If neither was, or both and they differ.
pub(crate) fn either(
    (name, value): (&str, Option<String>),
    (other_name, other): (&str, Option<String>),
) -> Result<String, Failure> {
    optional((name, value), (other_name, other))?
        .ok_or_else(|| Failure::arguments(format!("`{name}` is missing")))
}

/// The one of two that was given, if one was. Empty text is none, as Arrakis has it.
///
/// # Errors
/// If both were given and they differ.
pub(crate) fn optional(
    (name, value): (&str, Option<String>),
    (other_name, other): (&str, Option<String>),
) -> Result<Option<String>, Failure> {
    let given = |value: Option<String>| value.filter(|value| !value.is_empty());
    match (given(value), given(other)) {
        (Some(value), Some(other)) if value != other => Err(Failure::arguments(format!(
            "`{name}` and `{other_name}` are two names for one argument, and they differ"
        ))),
        (value, other) => Ok(value.or(other)),
    }
}

/// The sandbox of a tool that both sets have.
///
/// # Errors
/// As [`either`].
pub(crate) fn sandbox(sandbox: Option<String>, vm_name: Option<String>) -> Result<String, Failure> {
    either(("sandbox", sandbox), ("vm_name", vm_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn either_name_will_do() {
        assert_eq!(sandbox(some("a"), None).unwrap(), "a");
        assert_eq!(sandbox(None, some("b")).unwrap(), "b");
        assert_eq!(sandbox(some("a"), some("a")).unwrap(), "a");
        assert_eq!(sandbox(some(""), some("a")).unwrap(), "a");
    }

    #[test]
    fn none_and_two_are_refused() {
        assert!(sandbox(None, None).unwrap_err().message.contains("missing"));
        assert!(
            sandbox(some("a"), some("b"))
                .unwrap_err()
                .message
                .contains("differ")
        );
        assert_eq!(optional(("a", None), ("b", some(""))), Ok(None));
    }
}

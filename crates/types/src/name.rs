//! Names that people give: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.

use crate::id::is_id_shaped;
use std::fmt;
use std::str::FromStr;

const MAX_LENGTH: usize = 128;

/// Words that a name may not be, since the command line reads them as commands.
const RESERVED: [&str; 12] = [
    "bake", "build", "create", "diff", "help", "ls", "new", "rm", "show", "start", "stop", "warm",
];

/// Why a string cannot be a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Wrong characters or length.
    #[error("`{0}` is not a name: use 1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or digit")]
    Malformed(String),
    /// It would be read as an id.
    #[error("`{0}` cannot be a name: it looks like an id")]
    IdShaped(String),
    /// It would be read as a command.
    #[error("`{0}` cannot be a name: it is a command's word")]
    Reserved(String),
}

/// The name of a sandbox, snapshot or template.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let well_formed = (1..=MAX_LENGTH).contains(&text.len())
            && text.as_bytes()[0].is_ascii_alphanumeric()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !well_formed {
            // Long or binary input is not echoed whole.
            return Err(NameError::Malformed(
                text.chars().take(MAX_LENGTH).collect(),
            ));
        }
        if is_id_shaped(text) {
            return Err(NameError::IdShaped(text.to_owned()));
        }
        if RESERVED.contains(&text) {
            return Err(NameError::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// `name` or `name:tag`; the tag is `latest` when none is given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateRef {
    /// The template's name.
    pub name: Name,
    /// Which version of it.
    pub tag: Name,
}

impl TemplateRef {
    /// The tag of a reference that names none.
    pub const DEFAULT_TAG: &str = "latest";
}

impl FromStr for TemplateRef {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (name, tag) = text.split_once(':').unwrap_or((text, Self::DEFAULT_TAG));
        Ok(Self {
            name: name.parse()?,
            tag: tag.parse()?,
        })
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tag.as_str() == Self::DEFAULT_TAG {
            write!(formatter, "{}", self.name)
        } else {
            write!(formatter, "{}:{}", self.name, self.tag)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_faults() {
        for good in ["a", "A.b_c-9", "0", &"x".repeat(128), "tests-green"] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "a/b", "a b", "ä", "a\n", &"x".repeat(129)] {
            assert!(
                matches!(bad.parse::<Name>(), Err(NameError::Malformed(_))),
                "{bad}"
            );
        }
        assert!(matches!(
            "s1234567890123456789".parse::<Name>(),
            Err(NameError::IdShaped(_))
        ));
        assert!(matches!("ls".parse::<Name>(), Err(NameError::Reserved(_))));
    }

    #[test]
    fn a_template_reference_has_a_tag() {
        let plain: TemplateRef = "base".parse().unwrap();
        assert_eq!(
            (plain.tag.as_str(), plain.to_string().as_str()),
            ("latest", "base")
        );
        let tagged: TemplateRef = "base:v2".parse().unwrap();
        assert_eq!(tagged.to_string(), "base:v2");
        assert!("base:".parse::<TemplateRef>().is_err());
    }
}

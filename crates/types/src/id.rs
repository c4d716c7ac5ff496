//! Ids: 20 characters `[a-z0-9]`, the first letter says the kind.

use std::fmt;
use std::str::FromStr;

/// Characters of an id. It fits a DNS label as `49983-<id>`.
const ID_LENGTH: usize = 20;

/// Random characters of an id: 36^19, about 98 bits, so ids cannot be guessed.
const RANDOM_LENGTH: usize = ID_LENGTH - 1;

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// A string is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a {1} id")]
pub struct IdError(String, &'static str);

/// Whether `text` could be the id of any kind.
pub fn is_id_shaped(text: &str) -> bool {
    text.len() == ID_LENGTH
        && text.starts_with(['s', 'n', 't'])
        && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

macro_rules! id {
    ($(#[$doc:meta])* $type:ident, $letter:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(String);

        impl $type {
            /// Makes an id from uniformly random 64-bit numbers, one a character.
            pub fn from_random(random: [u64; RANDOM_LENGTH]) -> Self {
                let mut text = String::with_capacity(ID_LENGTH);
                text.push($letter);
                for number in random {
                    // The bias of the remainder is below 2^-58.
                    text.push(char::from(ALPHABET[(number % 36) as usize]));
                }
                Self(text)
            }

            /// The id's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                if is_id_shaped(text) && text.starts_with($letter) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(IdError(text.to_owned(), $kind))
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}

id!(
    /// Id of a sandbox.
    SandboxId, 's', "sandbox"
);
id!(
    /// Id of a snapshot.
    SnapshotId, 'n', "snapshot"
);
id!(
    /// Id of a template.
    TemplateId, 't', "template"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_kind_and_parses_back() {
        let id = SandboxId::from_random(std::array::from_fn(|index| index as u64 * 7));
        assert_eq!(id.as_str().len(), ID_LENGTH);
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert!(id.as_str().parse::<SnapshotId>().is_err());
    }

    #[test]
    fn malformed_ids_are_refused() {
        for text in [
            "",
            "s",
            "S1234567890123456789",
            "s123456789012345678!",
            "s12345678901234567890",
        ] {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }
}

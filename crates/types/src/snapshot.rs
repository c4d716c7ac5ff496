//! What a snapshot keeps.

use std::fmt;
use std::str::FromStr;

/// What a snapshot keeps of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// Memory, devices and disk: what is spawned from it goes on in mid-sentence.
    #[default]
    Full,
    /// The disk alone: what is spawned from it starts as after a power-on.
    Disk,
}

impl SnapshotKind {
    /// The word in the API and the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Disk => "disk",
        }
    }
}

impl fmt::Display for SnapshotKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for SnapshotKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Full, Self::Disk]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or(())
    }
}

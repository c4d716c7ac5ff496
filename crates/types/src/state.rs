//! What a sandbox is doing.

use std::fmt;
use std::str::FromStr;

/// The states of a sandbox; the edges between them are in `engine::lifecycle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// Its VM is being spawned.
    Creating,
    /// It answers.
    Running,
    /// It is being powered off; the disk will be kept.
    Stopping,
    /// Powered off; the disk is kept.
    Stopped,
    /// Kept on disk with its memory; it costs no process and no memory.
    Paused,
    /// Its VM or shim died, or never came up; only `rm` and, if it has a disk, `start` remain.
    Failed,
}

impl SandboxState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Creating,
        Self::Running,
        Self::Stopping,
        Self::Stopped,
        Self::Paused,
        Self::Failed,
    ];

    /// The state's word in the API and the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for SandboxState {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or(())
    }
}

//! What happens to a VM without being asked for.

use std::fmt;

use pando_sys::spawn::ChildExit;

/// Something that happened to a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// It stopped executing.
    Stopped,
    /// It executes again.
    Resumed,
    /// It is about to end.
    Shutdown(ShutdownReason),
    /// A disk request failed. Where `stopped`, the VM waits for [`crate::Vmm::cont`].
    BlockIoError {
        /// Whether the host had no space left.
        no_space: bool,
        /// Whether the VM was stopped for it.
        stopped: bool,
        /// The host's words.
        reason: String,
    },
}

/// Why a VM ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// The guest restarted or crashed; a VM is not restarted in place.
    GuestReset,
    /// The guest powered off.
    GuestShutdown,
    /// The VMM was asked to end.
    HostQuit,
    /// The VMM was told to end by a signal.
    HostSignal,
    /// Something else, in the VMM's word.
    Other(String),
}

impl ShutdownReason {
    pub(crate) fn parse(word: &str) -> Self {
        match word {
            "guest-reset" | "guest-panic" => Self::GuestReset,
            "guest-shutdown" => Self::GuestShutdown,
            "host-qmp-quit" => Self::HostQuit,
            "host-signal" => Self::HostSignal,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for ShutdownReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::GuestReset => "the guest restarted",
            Self::GuestShutdown => "the guest powered off",
            Self::HostQuit => "it was ended",
            Self::HostSignal => "a signal ended it",
            Self::Other(word) => word,
        })
    }
}

/// How a VMM ended.
#[derive(Clone, Debug)]
pub struct VmExit {
    /// The process's exit.
    pub exit: ChildExit,
    /// The VM's end, where it came before the process's: absent when the
    /// process crashed or was killed.
    pub shutdown: Option<ShutdownReason>,
    /// The guest kernel's last words, if it panicked. The guest writes them: not to be trusted.
    pub panic: Option<String>,
    /// The last that the VMM wrote to stderr.
    pub stderr: String,
}

impl fmt::Display for VmExit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(panic) = &self.panic {
            return write!(formatter, "the guest's kernel panicked: {panic}");
        }
        match &self.shutdown {
            Some(reason) => reason.fmt(formatter),
            None => write!(formatter, "QEMU ended by itself ({})", self.exit),
        }
    }
}

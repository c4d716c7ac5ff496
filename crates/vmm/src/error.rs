//! Why a VM could not be started or driven.

use std::io;
use std::path::PathBuf;

use pando_sys::jail::{landlock::RulesetError, seccomp::FilterError};
use pando_sys::memory::MemoryError;
use pando_sys::spawn::SpawnError;

/// Why a VMM did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The writable disk has no layer.
    #[error("the disk has no layers")]
    NoDisk,
    /// A path cannot be passed to the VMM.
    #[error("`{}` is not valid UTF-8, which QEMU's options need", .0.display())]
    Path(PathBuf),
    /// A file could not be made or opened.
    #[error("`{}` cannot be prepared", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A socket or pipe could not be made.
    #[error("the sockets for QEMU cannot be made")]
    Sockets(#[source] io::Error),
    /// The jail's ruleset could not be made.
    #[error("the file jail of QEMU cannot be made")]
    Landlock(#[from] RulesetError),
    /// The jail's filter could not be made.
    #[error("the system call filter of QEMU cannot be made")]
    Seccomp(#[from] FilterError),
    /// The process did not start.
    #[error("QEMU cannot be started")]
    Spawn(#[from] SpawnError),
    /// The process ended at once.
    #[error("QEMU ended while starting ({exit}): {stderr}")]
    Ended {
        /// How.
        exit: String,
        /// The last it wrote to stderr.
        stderr: String,
    },
    /// Its memory could not be opened.
    #[error("the memory of QEMU cannot be opened")]
    Memory(#[from] MemoryError),
    /// It did not answer.
    #[error("QEMU does not answer")]
    Control(#[source] VmmError),
}

/// Why a running VMM did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    /// It refused.
    #[error("QEMU refused `{command}`: {reason}")]
    Refused {
        /// The command.
        command: &'static str,
        /// QEMU's words.
        reason: String,
    },
    /// It did not answer in time.
    #[error("QEMU did not answer `{command}` within {seconds} s")]
    Timeout {
        /// The command.
        command: &'static str,
        /// How long was waited.
        seconds: u64,
    },
    /// The process has ended.
    #[error("QEMU has ended")]
    Ended,
    /// It sent what is no answer.
    #[error("QEMU sent what is no answer to `{command}`")]
    Protocol {
        /// The command.
        command: &'static str,
    },
    /// The VM is not in the state that the operation needs.
    #[error("the VM is `{found}` where `{wanted}` was expected")]
    State {
        /// The state that it should be in.
        wanted: &'static str,
        /// The one that it is in, in QEMU's words.
        found: String,
    },
    /// Its memory could not be opened.
    #[error("the memory of QEMU cannot be opened")]
    Memory(#[from] MemoryError),
    /// A path cannot be passed to the VMM.
    #[error("`{}` is not valid UTF-8, which QEMU's commands need", .0.display())]
    Path(PathBuf),
    /// A file could not be made or opened.
    #[error("`{}` cannot be opened", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

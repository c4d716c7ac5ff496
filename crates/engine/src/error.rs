//! What can go wrong, with a stable code, who can fix it and how.

use crate::request::ProcessId;
use pando_shim::error_chain;
use pando_types::SandboxState;

/// A refused or failed request. `Display` is for the caller; the source chain
/// holds the inward detail for the log.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// No such sandbox, or not the caller's.
    #[error("sandbox `{0}` not found")]
    SandboxNotFound(String),
    /// A shortened id, of a sandbox or a snapshot, fits several.
    #[error("`{0}` fits more than one id")]
    Ambiguous(String),
    /// No such template.
    #[error("template `{0}` not found")]
    TemplateNotFound(String),
    /// No such process in the sandbox.
    #[error("process `{0}` not found")]
    ProcessNotFound(String),
    /// Nothing was said of this port.
    #[error("port {0} is as every other")]
    PortNotFound(u16),
    /// No port of the host can be given out; the text says why.
    #[error("{0}")]
    NoFreePort(String),
    /// The name is in use.
    #[error("a sandbox named `{0}` already exists")]
    NameTaken(String),
    /// No such snapshot, or not the caller's.
    #[error("snapshot `{0}` not found")]
    SnapshotNotFound(String),
    /// The name is in use by another snapshot.
    #[error("a snapshot named `{0}` already exists")]
    SnapshotNameTaken(String),
    /// The memory of a snapshot cannot go on here: another VMM, CPU, size or kernel.
    #[error("snapshot `{id}` cannot go on here: {differences}")]
    Incompatible {
        /// Which snapshot.
        id: String,
        /// What it has and what this host, or this sandbox, has.
        differences: String,
    },
    /// A layer is not what the manifest says, or the manifest is not one.
    #[error("snapshot `{id}` is damaged: {reason}")]
    Corrupt {
        /// Which snapshot.
        id: String,
        /// Which layer, and how.
        reason: String,
    },
    /// A call was cut off by what was done to its sandbox.
    #[error("the call was cut off: sandbox `{id}` was {by}")]
    Interrupted {
        /// Which sandbox.
        id: String,
        /// What was done.
        by: Interruption,
    },
    /// The daemon ends while the program runs on.
    #[error("the daemon ends while process `{process_id}` of sandbox `{id}` runs on")]
    DaemonRestarted {
        /// Which sandbox.
        id: String,
        /// Names the process to the next daemon.
        process_id: ProcessId,
    },
    /// Another request has this id.
    #[error("the request id `{0}` is that of another request")]
    RequestIdTaken(String),
    /// A value of the request is malformed; the text says which and how.
    #[error("{0}")]
    Invalid(String),
    /// Not legal in the sandbox's state.
    #[error("sandbox `{id}` is {state}: cannot {operation}")]
    WrongState {
        /// Which sandbox.
        id: String,
        /// What it is doing.
        state: SandboxState,
        /// What was asked.
        operation: &'static str,
    },
    /// The program could not be started in the guest: missing, not executable, no such directory or user.
    #[error("{0}")]
    CannotRun(String),
    /// The sandbox ended while the request was served.
    #[error("sandbox `{id}` went away: {reason}")]
    SandboxGone {
        /// Which sandbox.
        id: String,
        /// Why, for a person.
        reason: String,
    },
    /// The VM could not be started.
    #[error("cannot start the sandbox: {0}")]
    SpawnFailed(String),
    /// The snapshot could not be taken; the sandbox runs on.
    #[error("cannot take the snapshot: {0}")]
    SnapshotFailed(String),
    /// Baking the template at this size failed.
    #[error("cannot bake `{template}`: {reason}")]
    BakeFailed {
        /// Which template.
        template: String,
        /// Why.
        reason: String,
    },
    /// A limit of the tenant is in the way.
    #[error("the limit `{limit}` is {most}: {used} in use, {asked} asked for")]
    Quota {
        /// The setting's name.
        limit: &'static str,
        /// Its value.
        most: u64,
        /// What of it is used.
        used: u64,
        /// What more was asked for.
        asked: u64,
    },
    /// The host's memory is used; nothing was begun.
    #[error(
        "the host's memory is used: a sandbox needs {needed_mib} MiB, {left_mib} MiB are left to `memory_reserve_mib`"
    )]
    HostFull {
        /// What one is expected to need.
        needed_mib: u64,
        /// What is left.
        left_mib: u64,
        /// When to ask again, in seconds.
        retry_after_s: u64,
    },
    /// Too many starts wait; nothing was begun.
    #[error("the host is busy: {ahead} starts come first")]
    Busy {
        /// How many.
        ahead: usize,
        /// When to ask again, in seconds.
        retry_after_s: u64,
    },
    /// The host has no room.
    #[error("no space left on the host: {0}")]
    NoSpace(String),
    /// A fault of Pando's own.
    #[error("internal error: {0}")]
    Internal(String),
}

/// What cut calls off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// It was put back into an earlier state.
    RolledBack,
    /// It was put on disk.
    Paused,
    /// It was powered off.
    Stopped,
    /// It was destroyed.
    Removed,
}

impl Interruption {
    /// A stable word for machines.
    fn code(self) -> &'static str {
        match self {
            Self::RolledBack => "rolled_back",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Removed => "removed",
        }
    }
}

impl std::fmt::Display for Interruption {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::RolledBack => "rolled back",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Removed => "removed",
        })
    }
}

/// How a VMM ends that has written to a file on a disk without room.
const BUS_ERROR: &str = "signal 7";

/// QEMU's words for a layer whose beginning was never written out.
const UNREADABLE_DISK: &str = "not in qcow2 format";

impl EngineError {
    /// Why a VM did not come up, by what its shim says.
    pub(crate) fn not_spawned(cause: String) -> Self {
        // A bake's memory is a file: that there is no room for a page of it is a bus error.
        match cause.contains(pando_shim::NO_SPACE) || cause.ends_with(BUS_ERROR) {
            true => Self::NoSpace("the sandbox could not write its disk".to_owned()),
            false if cause.contains(UNREADABLE_DISK) => Self::SpawnFailed(format!(
                "its disk cannot be read, as after a power cut; `pando rollback` takes it to a snapshot: {cause}"
            )),
            false => Self::SpawnFailed(cause),
        }
    }

    /// A stable word for machines; each has a section in docs/errors.md.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SandboxNotFound(_) => "sandbox_not_found",
            Self::Ambiguous(_) => "ambiguous_id",
            Self::TemplateNotFound(_) => "template_not_found",
            Self::ProcessNotFound(_) => "process_not_found",
            Self::PortNotFound(_) => "port_not_found",
            Self::NoFreePort(_) => "no_free_port",
            Self::NameTaken(_) => "name_taken",
            Self::SnapshotNotFound(_) => "snapshot_not_found",
            Self::SnapshotNameTaken(_) => "snapshot_name_taken",
            Self::Incompatible { .. } => "incompatible_snapshot",
            Self::Corrupt { .. } => "corrupt_snapshot",
            Self::Interrupted { by, .. } => by.code(),
            Self::DaemonRestarted { .. } => "daemon_restarted",
            Self::RequestIdTaken(_) => "request_id_taken",
            Self::Invalid(_) => "invalid_request",
            Self::WrongState { .. } => "wrong_state",
            Self::CannotRun(_) => "cannot_run",
            Self::SandboxGone { .. } => "sandbox_gone",
            Self::SpawnFailed(_) => "spawn_failed",
            Self::SnapshotFailed(_) => "snapshot_failed",
            Self::BakeFailed { .. } => "bake_failed",
            Self::Quota { .. } => "quota_exceeded",
            Self::HostFull { .. } => "host_full",
            Self::Busy { .. } => "busy",
            Self::NoSpace(_) => "no_space",
            Self::Internal(_) => "internal",
        }
    }

    /// What the caller can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::SandboxNotFound(_) => "`pando ls` lists the sandboxes you can see",
            Self::Ambiguous(_) => "give more characters of the id",
            Self::TemplateNotFound(_) => {
                "`pando template ls` lists the templates; `make quickstart` makes `base`"
            }
            Self::ProcessNotFound(_) => "the oldest ended processes are forgotten first",
            Self::PortNotFound(_) => "`pando port ID` lists the sandbox's ports",
            Self::NoFreePort(_) => {
                "give some up (`pando port ID PORT --rm`), or widen `port_range` in the configuration"
            }
            Self::NameTaken(_) => "choose another name, or remove the sandbox that has it",
            Self::SnapshotNotFound(_) => "`pando snapshot ls` lists the snapshots you can see",
            Self::SnapshotNameTaken(_) => "choose another name, or remove the snapshot that has it",
            Self::Incompatible { .. } => {
                "`pando create --from SNAPSHOT --disk-only` starts from its disk, without its memory"
            }
            Self::Corrupt { .. } => {
                "an older snapshot of the same sandbox may be whole: `pando tree`"
            }
            Self::Interrupted { by, .. } => match by {
                Interruption::RolledBack => "ask again: the sandbox runs on in the earlier state",
                Interruption::Paused => "`pando resume ID`; the process goes on then",
                Interruption::Stopped => "`pando start ID` starts it on its disk",
                Interruption::Removed => "`pando ls` lists the sandboxes you can see",
            },
            Self::DaemonRestarted { .. } => {
                "attach to the process under the next daemon, or ask again with the same `request_id`"
            }
            Self::RequestIdTaken(_) => "give each request an id of its own",
            Self::WrongState { .. } => "`pando inspect` shows the state and its reason",
            Self::SnapshotFailed(_) => "the sandbox runs on; `pando logs` shows the daemon's log",
            Self::SandboxGone { .. } | Self::SpawnFailed(_) => {
                "`pando logs ID` shows the guest's console"
            }
            Self::BakeFailed { .. } => "`pando doctor` checks what the host lacks",
            Self::Quota { .. } => "stop, pause or remove something of yours, or raise the limit",
            Self::HostFull { .. } => "ask again later, or pause or remove a sandbox",
            Self::Busy { .. } => "ask again later: `Retry-After` says when",
            Self::NoSpace(_) => {
                "free some: `pando doctor --paths` shows where Pando keeps its files"
            }
            Self::Internal(_) => "`pando logs` shows the daemon's log",
            Self::Invalid(_) | Self::CannotRun(_) => return None,
        })
    }
}

impl EngineError {
    /// When the same request may succeed, in seconds, where that is only a matter of time.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::HostFull { retry_after_s, .. } | Self::Busy { retry_after_s, .. } => {
                Some(*retry_after_s)
            }
            _ => None,
        }
    }

    /// The index could not be written.
    pub(crate) fn index(error: &pando_store::IndexError) -> Self {
        match error.is_no_space() {
            true => Self::NoSpace("cannot write the index".to_owned()),
            false => Self::internal(error),
        }
    }

    /// An internal fault, with all its causes.
    pub(crate) fn internal(error: &dyn std::error::Error) -> Self {
        Self::Internal(error_chain(error))
    }
}

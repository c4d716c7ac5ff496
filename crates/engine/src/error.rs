//! What can go wrong, with a stable code, who can fix it and how.

use pando_shim::error_chain;
use pando_types::SandboxState;

/// A refused or failed request. `Display` is for the caller; the source chain
/// holds the inward detail for the log.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No such sandbox, or not the caller's.
    #[error("sandbox `{0}` not found")]
    SandboxNotFound(String),
    /// A shortened id fits several.
    #[error("`{0}` fits more than one sandbox")]
    Ambiguous(String),
    /// No such template.
    #[error("template `{0}` not found")]
    TemplateNotFound(String),
    /// No such process in the sandbox.
    #[error("process `{0}` not found")]
    ProcessNotFound(String),
    /// The name is in use.
    #[error("a sandbox named `{0}` already exists")]
    NameTaken(String),
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
    /// Baking the template at this size failed.
    #[error("cannot bake `{template}`: {reason}")]
    BakeFailed {
        /// Which template.
        template: String,
        /// Why.
        reason: String,
    },
    /// The host has no room.
    #[error("no space left on the host: {0}")]
    NoSpace(String),
    /// A fault of Pando's own.
    #[error("internal error: {0}")]
    Internal(String),
}

impl EngineError {
    /// A stable word for machines; each has a section in docs/errors.md.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SandboxNotFound(_) => "sandbox_not_found",
            Self::Ambiguous(_) => "ambiguous_id",
            Self::TemplateNotFound(_) => "template_not_found",
            Self::ProcessNotFound(_) => "process_not_found",
            Self::NameTaken(_) => "name_taken",
            Self::Invalid(_) => "invalid_request",
            Self::WrongState { .. } => "wrong_state",
            Self::CannotRun(_) => "cannot_run",
            Self::SandboxGone { .. } => "sandbox_gone",
            Self::SpawnFailed(_) => "spawn_failed",
            Self::BakeFailed { .. } => "bake_failed",
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
            Self::NameTaken(_) => "choose another name, or remove the sandbox that has it",
            Self::WrongState { .. } => "`pando inspect` shows the state and its reason",
            Self::SandboxGone { .. } | Self::SpawnFailed(_) => {
                "`pando logs ID` shows the guest's console"
            }
            Self::BakeFailed { .. } => "`pando doctor` checks what the host lacks",
            Self::NoSpace(_) => {
                "free some: `pando doctor --paths` shows where Pando keeps its files"
            }
            Self::Internal(_) => "`pando logs` shows the daemon's log",
            Self::Invalid(_) | Self::CannotRun(_) => return None,
        })
    }
}

impl EngineError {
    /// An internal fault, with all its causes.
    pub(crate) fn internal(error: &dyn std::error::Error) -> Self {
        Self::Internal(error_chain(error))
    }
}

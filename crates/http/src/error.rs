//! What can be refused, and the one table from error code to status and documentation.
//!
//! A handler returns [`ApiError`]. It becomes a response that carries a
//! [`Refusal`] instead of a body; the outermost layer, which knows the request's
//! id and the door's dialect, writes it. `docs/errors.md` is generated from
//! [`ERRORS`]; `cargo test` fails when they differ.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use pando_api::{ErrorBody, ErrorResponse, ForkError};
use pando_engine::{EngineError, error_chain};
use std::fmt::Write as _;

/// Where the hint of every error points, `#code` follows.
const DOCUMENTATION: &str = "docs/errors.md";

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no route for the path.
    #[error("there is no `{0}` here")]
    NoRoute(String),
    /// The route exists, not for this method.
    #[error("`{path}` does not take {method}")]
    MethodNotAllowed {
        /// The path.
        path: String,
        /// The method.
        method: String,
    },
    /// No key, or one that nobody holds.
    #[error("{0}")]
    Unauthorized(&'static str),
    /// `Host` is not one of ours.
    #[error("this daemon does not answer for the host of this request")]
    ForeignHost,
    /// `Origin` is another site.
    #[error("pages of another origin may not do this")]
    ForeignOrigin,
    /// More bytes than a JSON body may have.
    #[error("the body is larger than {0} bytes")]
    BodyTooLarge(usize),
    /// The body is not the JSON that is expected; says where and why.
    #[error("the body is not what `{route}` takes: {reason}")]
    BadJson {
        /// The route's path.
        route: String,
        /// The parser's words.
        reason: String,
    },
    /// The body's media type is not the one expected.
    #[error("the body must be `application/json`")]
    NotJson,
    /// The query or a path parameter is wrong.
    #[error("{0}")]
    BadParameter(String),
    /// A plain request to the WebSocket route.
    #[error("this route is a WebSocket: {0}")]
    NotWebSocket(String),
    /// The first message of a stream is wrong, or came too late.
    #[error("{0}")]
    BadStream(String),
    /// No such file.
    #[error("{0}")]
    FileNotFound(String),
    /// It is there already.
    #[error("{0}")]
    FileExists(String),
    /// A directory where a file is wanted, a malformed path.
    #[error("{0}")]
    InvalidPath(String),
    /// The account may not.
    #[error("{0}")]
    FilePermission(String),
    /// No such account in the sandbox.
    #[error("{0}")]
    UnknownUser(String),
    /// The sandbox's disk is full.
    #[error("{0}")]
    GuestDiskFull(String),
    /// The guest answered something that is not an answer.
    #[error("the sandbox's agent answered nonsense: {0}")]
    BadGuestAnswer(String),
    /// The guest's answer has more bytes than are read of one.
    #[error("the sandbox's agent answered more than {0} bytes")]
    LongGuestAnswer(usize),
    /// A handler panicked or a task was lost.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ApiError {
    /// The stable word for machines.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Engine(error) => error.code(),
            Self::NoRoute(_) => "route_not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::Unauthorized(_) => "unauthorized",
            Self::ForeignHost => "foreign_host",
            Self::ForeignOrigin => "foreign_origin",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::BadJson { .. } => "malformed_json",
            Self::NotJson => "unsupported_media_type",
            Self::BadParameter(_) | Self::BadStream(_) => "invalid_request",
            Self::NotWebSocket(_) => "websocket_required",
            Self::FileNotFound(_) => "file_not_found",
            Self::FileExists(_) => "file_exists",
            Self::InvalidPath(_) => "invalid_path",
            Self::FilePermission(_) => "permission_denied",
            Self::UnknownUser(_) => "unknown_user",
            Self::GuestDiskFull(_) => "disk_full",
            Self::BadGuestAnswer(_) | Self::LongGuestAnswer(_) => "bad_guest_answer",
            Self::Internal(_) => "internal",
        }
    }

    /// The status of its code.
    pub(crate) fn status(&self) -> StatusCode {
        status_of(self.code())
    }

    /// What a client reads.
    pub(crate) fn body(&self, request_id: &str) -> ErrorBody {
        Refusal::from(self).body(request_id)
    }
}

/// A refusal on its way out, before it is written in a dialect.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    code: &'static str,
    /// One sentence for the caller.
    pub(crate) message: String,
    hint: String,
    /// The process that runs on, where the daemon's end cut off its call.
    process_id: Option<String>,
    /// The error and its causes, for the log.
    pub(crate) chain: String,
}

impl From<&ApiError> for Refusal {
    fn from(error: &ApiError) -> Self {
        let code = error.code();
        let advice = match error {
            ApiError::Engine(error) => error.hint(),
            _ => None,
        };
        let advice = advice.or_else(|| row_of(code).and_then(|row| row.hint));
        let hint = match advice {
            Some(advice) => format!("{advice} ({DOCUMENTATION}#{code})"),
            None => format!("see {DOCUMENTATION}#{code}"),
        };
        Self {
            code,
            message: error.to_string(),
            hint,
            process_id: match error {
                ApiError::Engine(EngineError::DaemonRestarted { process_id, .. }) => {
                    Some(process_id.clone())
                }
                _ => None,
            },
            chain: error_chain(error),
        }
    }
}

impl Refusal {
    /// The stable word for machines.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// As a part of an answer that is no refusal: a child of a fork that could not be made.
    pub(crate) fn part(self) -> ForkError {
        ForkError {
            code: self.code.to_owned(),
            message: self.message,
            hint: Some(self.hint),
        }
    }

    fn body(self, request_id: &str) -> ErrorBody {
        let (code, request_id) = (self.code.to_owned(), request_id.to_owned());
        ErrorBody {
            code,
            message: self.message,
            hint: Some(self.hint),
            process_id: self.process_id,
            request_id,
        }
    }

    /// The native door's answer.
    pub(crate) fn write(self, status: StatusCode, request_id: &str) -> Response {
        (
            status,
            axum::Json(ErrorResponse {
                error: self.body(request_id),
            }),
        )
            .into_response()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status();
        if let Self::Engine(error) = &self
            && let Some(seconds) = error.retry_after_s()
        {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(Refusal::from(&self));
        response
    }
}

/// A row of [`ERRORS`].
#[derive(Clone, Copy, Debug)]
pub struct ErrorRow {
    /// The stable word.
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What has happened.
    pub meaning: &'static str,
    /// What to do, in the documentation.
    pub remedy: &'static str,
    /// What to do, in the error itself, where the engine has no hint.
    pub hint: Option<&'static str>,
}

const fn row(
    code: &'static str,
    status: u16,
    meaning: &'static str,
    remedy: &'static str,
) -> ErrorRow {
    ErrorRow {
        code,
        status,
        meaning,
        remedy,
        hint: None,
    }
}

impl ErrorRow {
    const fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

/// Every error code with its status: the only place that knows both.
#[rustfmt::skip]
pub const ERRORS: &[ErrorRow] = &[
    row("ambiguous_id", 409, "The shortened id fits more than one sandbox, or more than one snapshot.", "Give more characters of it."),
    row("bad_guest_answer", 502, "The agent inside the sandbox answered something that is not an answer. Root inside a sandbox can replace the agent.", "Remove the sandbox, or `stop` and `start` it."),
    row("bake_failed", 500, "The template could not be booted and saved at the size that was asked for.", "`pando doctor` checks what the host lacks; `pando logs` has the daemon's log."),
    row("busy", 503, "So many sandboxes are being started that another would wait too long. Nothing was begun.", "The same request succeeds later: the header `Retry-After` says after how many seconds to send it again."),
    row("body_too_large", 413, "The JSON body is larger than a request can honestly be.", "Send files and long input by the files routes or the exec stream, which have no limit.").hint("large input goes by `files` or `exec/stream`"),
    row("cannot_run", 422, "The program could not be started: it does not exist, is not executable, or its working directory or account does not exist. The message says which.", "Check `argv[0]`, `cwd` and `user`. A command line with pipes or variables is `shell`, not `argv`."),
    row("corrupt_snapshot", 422, "A layer of the snapshot is not what its manifest says, or the manifest is damaged. The message says which layer. Nothing was started from it.", "An older snapshot of the same sandbox may be whole: `pando tree` shows them. A disk that damages files damages more: look at the host's own log."),
    row("daemon_restarted", 503, "The daemon was told to end while the call waited for a program. The program runs on in its sandbox; `process_id` names it.", "Under the next daemon, attach to `process_id` by `exec/stream`, or ask again with the same `request_id`: nothing runs twice. `pando exec`, `run` and `shell` do so by themselves."),
    row("disk_full", 507, "The sandbox's own disk is full.", "Remove files inside the sandbox, or make a new one."),
    row("file_exists", 409, "There is already something at the path.", "Remove it first, or choose another path."),
    row("file_not_found", 404, "There is nothing at the path inside the sandbox.", "Paths are absolute or relative to the user's home; `files/list` shows a directory."),
    row("foreign_host", 421, "The `Host` of the request is not one that this daemon answers for. It refuses such requests because a web page can point its own name at your machine.", "Use `localhost` or the address the daemon listens on, or add the name to `public_hosts` in the configuration.").hint("use `localhost`, or add the name to `public_hosts` in the configuration"),
    row("foreign_origin", 403, "A web page of another origin tried to change something or to open a WebSocket. Pages served by a sandbox are always another origin.", "Call the API from a program. A page of your own on another name needs that name in `public_hosts`.").hint("call the API from a program, not from a page of another site"),
    row("host_full", 503, "The host's memory is used: another sandbox would leave it less than `memory_reserve_mib`, or the sizes of all would exceed `memory_overcommit`. Clones that waited ready were given up first. Nothing was begun.", "Ask again after the seconds in the header `Retry-After`, pause or remove sandboxes, or change these settings."),
    row("incompatible_snapshot", 409, "The memory of the snapshot cannot go on here: it was made under another VMM, CPU or kernel, or, for a rollback, is of another size or template than the sandbox. The message says what differs.", "`disk_only` (`pando create --from SNAPSHOT --disk-only`) starts from its disk, as after a power-on. For another size or template make a new sandbox from it."),
    row("internal", 500, "A fault of Pando's own.", "`pando logs` has the daemon's log; look for the `request_id`, and please report it.").hint("look for the request id in `pando logs`"),
    row("invalid_path", 400, "The path cannot be used for this: it is a directory where a file is wanted, or the other way round, or it is malformed.", "The message says what is wrong with it."),
    row("invalid_request", 400, "A value of the request is wrong; the message says which and what is allowed.", "Correct the value."),
    row("malformed_json", 400, "The body is not JSON, or has a field that is unknown or of the wrong type. Unknown fields are refused so that a misspelt option never goes unnoticed.", "The message names the field, line and column; `/openapi.json` has every field."),
    row("method_not_allowed", 405, "The path exists and does not take this method.", "The `Allow` header lists those it takes."),
    row("name_taken", 409, "Another sandbox has this name.", "Choose another name, or remove the other sandbox."),
    row("no_free_port", 503, "No port of the host is left in `port_range`, or none can be listened on at `port_bind`. The message says which.", "`pando port ID PORT --rm` gives one back; `port_range` in the configuration can be wider."),
    row("no_space", 507, "The host's disk is full, or nearly.", "Remove sandboxes and snapshots that are not needed; `pando df` shows what takes the space, `pando doctor --paths` shows where Pando keeps its files."),
    row("paused", 409, "The call was cut off: its sandbox was put on disk while it ran. The program in it was not ended.", "`pando resume ID` lets it go on; a process that was followed can be attached to again then."),
    row("permission_denied", 403, "The account inside the sandbox may not touch the file.", "Use another account: `user=root` may touch everything."),
    row("port_not_found", 404, "Nothing was said of this port: no port of the host leads to it, and its access is the default.", "`pando port ID` lists the ports of a sandbox."),
    row("process_not_found", 404, "The sandbox knows no process with this id. The oldest ended ones are forgotten first.", "`GET …/processes` lists those it knows."),
    row("quota_exceeded", 429, "One more would pass a limit of yours: sandboxes that run, their CPUs or memory, or bytes of snapshots. The message names the limit, its value, what is in use and what was asked for. Nothing was begun.", "Pause, stop or remove something of yours; paused and stopped sandboxes do not count. The limits are `max_sandboxes`, `max_cpus`, `max_memory_mib` and `max_snapshot_gib` in the configuration."),
    row("removed", 409, "The call was cut off: its sandbox was removed while it ran.", "`pando ls` lists the sandboxes there are."),
    row("request_id_taken", 409, "Another request to this sandbox, with another program or other input, had this `request_id`.", "Give each request an id of its own."),
    row("rolled_back", 409, "The call was cut off: its sandbox was put back into an earlier state while it ran. What the call had done in the sandbox is gone.", "Ask again: the sandbox runs on in the earlier state."),
    row("route_not_found", 404, "There is no such path.", "`/openapi.json` lists every route.").hint("`/openapi.json` lists every route"),
    row("sandbox_gone", 502, "The sandbox ended while it served the request: powered off from inside, crashed, or killed.", "`pando inspect ID` shows why, `pando logs ID` the guest's console."),
    row("sandbox_not_found", 404, "There is no such sandbox, or it is not yours.", "`pando ls` lists the ones you can see."),
    row("snapshot_name_taken", 409, "Another snapshot has this name.", "Choose another name, or remove the other snapshot."),
    row("snapshot_not_found", 404, "There is no such snapshot, or it is not yours.", "`pando snapshot ls` lists the ones you can see."),
    row("spawn_failed", 500, "The sandbox's virtual machine could not be started.", "`pando logs ID` shows the guest's console, `pando doctor` what the host lacks."),
    row("snapshot_failed", 500, "The snapshot could not be taken; the sandbox runs on, and what the snapshot would have held is in the next one.", "`pando logs` shows the daemon's log."),
    row("stopped", 409, "The call was cut off: its sandbox was powered off while it ran.", "`pando start ID` starts it on its disk; what ran in it is gone."),
    row("template_not_found", 404, "There is no such template.", "`pando template ls` lists them; `make quickstart` makes `base`."),
    row("unauthorized", 401, "No API key was sent, or one that nobody holds.", "Send `Authorization: Bearer KEY` or `X-API-Key: KEY`. The first key is in `admin.key` in the state directory (`pando doctor --paths`).").hint("send `Authorization: Bearer KEY`; the first key is in `STATE_DIR/admin.key`"),
    row("unknown_user", 400, "The sandbox has no such account.", "Sandboxes made from `base` have `user` and `root`."),
    row("unsupported_media_type", 415, "The body is not declared as JSON.", "Send `Content-Type: application/json`.").hint("send `Content-Type: application/json`"),
    row("websocket_required", 426, "The route is a WebSocket and the request does not open one.", "Use a WebSocket client, or `POST …/exec` for a program that ends by itself."),
    row("wrong_state", 409, "The sandbox is in a state in which this cannot be done, such as `exec` on a stopped one.", "`pando inspect ID` shows the state; `pando start ID` starts a stopped sandbox, `pando resume ID` lets a paused one go on."),
];

fn row_of(code: &str) -> Option<&'static ErrorRow> {
    ERRORS.iter().find(|row| row.code == code)
}

/// The status of an error code.
pub(crate) fn status_of(code: &str) -> StatusCode {
    // `every_error_has_a_row` proves that none is missing.
    let status = row_of(code).and_then(|row| StatusCode::from_u16(row.status).ok());
    status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// `docs/errors.md`, made from [`ERRORS`].
pub fn error_documentation() -> String {
    let mut text = String::from(
        "# Errors\n\n\
         <!-- Generated from crates/http/src/error.rs; `PANDO_BLESS=1 cargo test -p pando-http` rewrites it. -->\n\n\
         Every answer of the native API with a status of 400 and above has this body:\n\n\
         ```json\n\
         {\"error\": {\"code\": \"…\", \"message\": \"…\", \"hint\": \"…\", \"request_id\": \"…\"}}\n\
         ```\n\n\
         `code` never changes its meaning; programs should look at nothing else. `message` is for people and may be\n\
         worded better at any time. `request_id` is also in the `x-request-id` header and in the daemon's log.\n",
    );
    for row in ERRORS {
        let _ = write!(
            text,
            "\n## {}\n\nStatus {}. {}\n\n{}\n",
            row.code, row.status, row.meaning, row.remedy
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_engine::Interruption;
    use pando_types::SandboxState;

    /// One of each; adding a variant fails to compile until it is listed here.
    fn every_engine_error() -> Vec<EngineError> {
        use EngineError as E;
        let text = String::new;
        let interrupted = |by| E::Interrupted { id: text(), by };
        let all = vec![
            E::SandboxNotFound(text()),
            E::Ambiguous(text()),
            E::TemplateNotFound(text()),
            E::ProcessNotFound(text()),
            E::PortNotFound(1),
            E::NoFreePort(text()),
            E::NameTaken(text()),
            E::SnapshotNotFound(text()),
            E::SnapshotNameTaken(text()),
            E::Incompatible {
                id: text(),
                differences: text(),
            },
            E::Corrupt {
                id: text(),
                reason: text(),
            },
            interrupted(Interruption::RolledBack),
            interrupted(Interruption::Paused),
            interrupted(Interruption::Stopped),
            interrupted(Interruption::Removed),
            E::DaemonRestarted {
                id: text(),
                process_id: text(),
            },
            E::RequestIdTaken(text()),
            E::Invalid(text()),
            E::WrongState {
                id: text(),
                state: SandboxState::Stopped,
                operation: "exec",
            },
            E::CannotRun(text()),
            E::SandboxGone {
                id: text(),
                reason: text(),
            },
            E::SpawnFailed(text()),
            E::SnapshotFailed(text()),
            E::BakeFailed {
                template: text(),
                reason: text(),
            },
            E::Quota {
                limit: "",
                most: 0,
                used: 0,
                asked: 0,
            },
            E::HostFull {
                needed_mib: 0,
                left_mib: 0,
                retry_after_s: 1,
            },
            E::Busy {
                ahead: 0,
                retry_after_s: 1,
            },
            E::NoSpace(text()),
            E::Internal(text()),
        ];
        for error in &all {
            match error {
                E::SandboxNotFound(_)
                | E::Ambiguous(_)
                | E::TemplateNotFound(_)
                | E::ProcessNotFound(_)
                | E::PortNotFound(_)
                | E::NoFreePort(_) => {}
                E::NameTaken(_) | E::Invalid(_) | E::WrongState { .. } | E::CannotRun(_) => {}
                E::SandboxGone { .. }
                | E::SpawnFailed(_)
                | E::SnapshotFailed(_)
                | E::BakeFailed { .. }
                | E::NoSpace(_) => {}
                E::DaemonRestarted { .. } | E::RequestIdTaken(_) => {}
                E::SnapshotNotFound(_) | E::SnapshotNameTaken(_) => {}
                E::Incompatible { .. } | E::Corrupt { .. } => {}
                E::Interrupted { by, .. } => match by {
                    Interruption::RolledBack
                    | Interruption::Paused
                    | Interruption::Stopped
                    | Interruption::Removed => {}
                },
                E::Quota { .. } | E::HostFull { .. } | E::Busy { .. } => {}
                E::Internal(_) => {}
            }
        }
        all
    }

    fn every_own_error() -> Vec<ApiError> {
        use ApiError as E;
        let text = String::new;
        vec![
            E::NoRoute(text()),
            E::MethodNotAllowed {
                path: text(),
                method: text(),
            },
            E::Unauthorized(""),
            E::ForeignHost,
            E::ForeignOrigin,
            E::BodyTooLarge(1),
            E::BadJson {
                route: text(),
                reason: text(),
            },
            E::NotJson,
            E::BadParameter(text()),
            E::BadStream(text()),
            E::NotWebSocket(text()),
            E::FileNotFound(text()),
            E::FileExists(text()),
            E::InvalidPath(text()),
            E::FilePermission(text()),
            E::UnknownUser(text()),
            E::GuestDiskFull(text()),
            E::BadGuestAnswer(text()),
            E::Internal(text()),
        ]
    }

    #[test]
    fn every_error_has_a_row_and_every_row_an_error() {
        let errors = every_engine_error()
            .into_iter()
            .map(ApiError::Engine)
            .chain(every_own_error());
        let codes: std::collections::BTreeSet<_> = errors.map(|error| error.code()).collect();
        let rows: std::collections::BTreeSet<_> = ERRORS.iter().map(|row| row.code).collect();
        assert_eq!(codes, rows);
        assert_eq!(rows.len(), ERRORS.len(), "a code has two rows");
    }

    #[test]
    fn the_documentation_is_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        if std::env::var_os("PANDO_BLESS").is_some() {
            std::fs::write(path, error_documentation()).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == error_documentation(),
            "docs/errors.md is stale: run `PANDO_BLESS=1 cargo test -p pando-http`"
        );
    }

    #[test]
    fn a_call_that_was_cut_off_says_by_what() {
        for (by, code, message) in [
            (Interruption::RolledBack, "rolled_back", "rolled back"),
            (Interruption::Paused, "paused", "paused"),
            (Interruption::Stopped, "stopped", "stopped"),
            (Interruption::Removed, "removed", "removed"),
        ] {
            let id = "s1".to_owned();
            let error = ApiError::from(EngineError::Interrupted { id, by });
            assert_eq!((error.code(), error.status().as_u16()), (code, 409));
            assert!(
                error.to_string().ends_with(&format!("was {message}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_hint_leads_to_the_documentation() {
        let body = ApiError::from(EngineError::NameTaken("x".to_owned())).body("r1");
        assert_eq!(body.code, "name_taken");
        assert_eq!(body.message, "a sandbox named `x` already exists");
        assert!(body.hint.unwrap().ends_with("(docs/errors.md#name_taken)"));
        assert_eq!(body.request_id, "r1");
    }
}

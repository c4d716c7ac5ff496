//! Running a program to its end, and the processes that are followed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Run a program; the answer comes when it has ended. Give `argv` or `shell`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Program and arguments; no shell in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A command line for the sandbox's `/bin/sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Working directory; the user's home when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Account to run as; `user` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Text for its stdin, which is empty when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Bytes for its stdin, in base64, instead of `stdin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Seconds after which it and all that it started are killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// An id of your own for this request: 1 to 64 letters, digits, `.`, `_` or `-`. Asked again with the same id, as when
    /// the daemon was restarted before it answered, nothing runs twice: the answer is that of the program that was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// How a program ended and what it wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecResponse {
    /// Its exit code; absent when a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<u32>,
    /// Its stdout, when that is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Its stdout in base64, when it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Its stderr, when that is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Its stderr in base64, when it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// From its start to its end.
    pub duration_ms: f64,
    /// The timeout ended it.
    pub timed_out: bool,
    /// It wrote more than is kept; the rest was dropped.
    pub truncated: bool,
    /// Which process it was.
    #[serde(default)]
    pub process_id: String,
}

/// A process that can be attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Names it in `exec/stream`.
    pub process_id: String,
    /// Its number inside the sandbox.
    pub pid: u32,
    /// What was started.
    pub argv: Vec<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Whether it still runs.
    pub running: bool,
    /// Its exit code, once it has one.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<u32>,
    /// When it was started: RFC 3339, UTC.
    pub started_at: String,
}

/// The processes that are known, ended ones included for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessList {
    /// One entry each.
    pub processes: Vec<Process>,
}

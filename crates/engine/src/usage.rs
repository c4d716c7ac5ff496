//! Using a sandbox that runs, or is woken for it: exec, processes, files, ping.

use crate::convert;
use crate::engine::Engine;
use crate::exec::check_request_id;
use crate::lifetime::as_a_whole;
use crate::observe::Operation;
use crate::request::{
    Caller, Command, ExecResult, Exit, ProcessEvent, ProcessId, ProcessInfo, ProcessInput,
    StartProcess,
};
use crate::sandboxes::Entry;
use crate::shims::Shim;
use crate::{EngineError, GuestBody, Interruption};
use bytes::Bytes;
use connectrpc::{ConnectError, ErrorCode};
use futures::stream::{self, BoxStream, StreamExt as _};
use pando_types::limits;
use pando_wire::shim;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The end of a console that is shown; its log is bounded too, by a jailed process.
const CONSOLE_BYTES: u64 = 1 << 20;

/// The lines of it that tell why a sandbox failed: a panic's trace has some fifty.
const LAST_CONSOLE_LINES: usize = 80;
const LAST_CONSOLE_CHARACTERS: usize = 240;
const LAST_CONSOLE_BYTES: u64 = 32 << 10;

impl Engine {
    /// A no-op through the agent. Legal while the sandbox runs. Who only looks whether it
    /// answers neither uses it nor wakes it.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn ping(&self, caller: &Caller, sandbox: &str) -> Result<(), EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let shim = entry.in_use()?;
        shim.client
            .rpc
            .ping(shim::PingRequest::default())
            .await
            .map(drop)
            .map_err(|error| guest_error(&entry, &shim, error))
    }

    /// Runs a program to its end; a request with an id once, however often it is asked for.
    /// Legal while the sandbox runs.
    ///
    /// # Errors
    /// The program cannot be started, or the sandbox ends.
    pub async fn exec(
        &self,
        caller: &Caller,
        sandbox: &str,
        command: Command,
        stdin: Bytes,
        request_id: Option<String>,
    ) -> Result<ExecResult, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let shim = self.awake(&entry).await?;
        check_command(&command)?;
        check_request_id(request_id.as_deref())?;
        if stdin.len() > limits::EXEC_STDIN_BYTES {
            return Err(EngineError::Invalid(format!(
                "`stdin` has more than {} MiB: stream it",
                limits::EXEC_STDIN_BYTES >> 20
            )));
        }
        let request = shim::ExecRequest {
            command: convert::command(command).into(),
            stdin: stdin.to_vec(),
            output_limit_bytes: limits::EXEC_OUTPUT_BYTES,
            request_id: request_id.unwrap_or_default(),
            ..Default::default()
        };
        let running = self.run_to_end(&entry, &shim, request);
        let response = self.observed(Operation::Exec, &entry.id, running).await?;
        let result = convert::exec_result(response);
        match ended_with_guest(&result.exit, &shim) {
            true => Err(cut_off(&entry, &shim)),
            false => Ok(result),
        }
    }

    /// Starts a process to be followed with [`Self::attach`]. Legal while the sandbox runs.
    ///
    /// # Errors
    /// The program cannot be started.
    pub async fn start_process(
        &self,
        caller: &Caller,
        sandbox: &str,
        request: StartProcess,
    ) -> Result<ProcessId, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let shim = self.awake(&entry).await?;
        check_command(&request.command)?;
        check_request_id(request.request_id.as_deref())?;
        let request = shim::StartProcessRequest {
            command: convert::command(request.command).into(),
            tty: request.tty.map(convert::window_size).into(),
            stdin: request.stdin,
            request_id: request.request_id.unwrap_or_default(),
            ..Default::default()
        };
        let response = shim
            .client
            .rpc
            .start_process(request)
            .await
            .map_err(|error| guest_error(&entry, &shim, error))?;
        Ok(response.into_owned().process_id)
    }

    /// Follows a process from an offset of its output; the exit is the last event. May be
    /// called again after the connection was lost, also by another daemon.
    ///
    /// # Errors
    /// There is no such process.
    pub async fn attach(
        &self,
        caller: &Caller,
        sandbox: &str,
        process: &ProcessId,
        from_offset: u64,
    ) -> Result<BoxStream<'static, Result<ProcessEvent, EngineError>>, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let shim = self.awake(&entry).await?;
        let request = shim::AttachRequest {
            process_id: process.clone(),
            from_offset,
            ..Default::default()
        };
        let followed = shim
            .client
            .rpc
            .attach(request)
            .await
            .map_err(|error| process_error(&entry, &shim, process, error))?;
        let process = process.clone();
        let events = stream::unfold(Some((followed, entry, shim, process)), |state| async move {
            let (mut followed, entry, shim, process) = state?;
            match followed.message().await {
                Ok(Some(message)) => match convert::process_event(message.to_owned_message()) {
                    Some(ProcessEvent::Exit(exit)) if ended_with_guest(&exit, &shim) => {
                        Some((Err(cut_off(&entry, &shim)), None))
                    }
                    Some(event) => Some((Ok(event), Some((followed, entry, shim, process)))),
                    None => Some((
                        Err(EngineError::Internal(
                            "the shim sent an event of no kind".to_owned(),
                        )),
                        None,
                    )),
                },
                Ok(None) => None,
                // That there is no such process comes here too, in place of a first message.
                Err(error) => Some((Err(process_error(&entry, &shim, &process, error)), None)),
            }
        });
        Ok(events.boxed())
    }

    /// Feeds, signals or resizes a process.
    ///
    /// # Errors
    /// There is no such process, or it has ended.
    pub async fn input(
        &self,
        caller: &Caller,
        sandbox: &str,
        process: &ProcessId,
        input: ProcessInput,
    ) -> Result<(), EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let shim = self.awake(&entry).await?;
        let request = shim::InputRequest {
            process_id: process.clone(),
            input: Some(convert::input(input)),
            ..Default::default()
        };
        shim.client
            .rpc
            .input(request)
            .await
            .map(drop)
            .map_err(|error| process_error(&entry, &shim, process, error))
    }

    /// The processes that were started through the API, oldest first.
    ///
    /// # Errors
    /// The sandbox does not run.
    pub async fn processes(
        &self,
        caller: &Caller,
        sandbox: &str,
    ) -> Result<Vec<ProcessInfo>, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let shim = self.awake(&entry).await?;
        let response = shim
            .client
            .rpc
            .list_processes(shim::ListProcessesRequest::default())
            .await;
        let response = response
            .map_err(|error| guest_error(&entry, &shim, error))?
            .into_owned();
        Ok(response
            .processes
            .into_iter()
            .map(convert::process_info)
            .collect())
    }

    /// The end of the guest's serial console, also of a sandbox that failed.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub async fn console(&self, caller: &Caller, sandbox: &str) -> Result<String, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        if let Some(shim) = entry.shim()
            && let Ok(response) = shim
                .client
                .rpc
                .console(shim::ConsoleRequest::default())
                .await
        {
            return Ok(response.into_owned().text);
        }
        let path = self.dir_of(&entry).console();
        self.blocking(
            move |_| match pando_store::read_untrusted(&path, CONSOLE_BYTES) {
                Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
                Err(error) => Err(error),
            },
        )
        .await
    }

    /// The last lines of a console, for people: the guest wrote them.
    pub(crate) async fn last_console(
        &self,
        entry: &Arc<Entry>,
    ) -> Result<Vec<String>, EngineError> {
        let path = self.dir_of(entry).console();
        self.aside(move |_| {
            // A log that is not there, or not to be read, has no lines.
            let bytes = pando_store::read_untrusted(&path, LAST_CONSOLE_BYTES).unwrap_or_default();
            last_lines(&String::from_utf8_lossy(&bytes))
        })
        .await
    }

    /// A raw request to the guest's user service, streamed both ways. Legal while the sandbox runs.
    ///
    /// # Errors
    /// The sandbox ends before it answers.
    pub async fn guest_http(
        &self,
        caller: &Caller,
        sandbox: &str,
        request: http::Request<GuestBody>,
    ) -> Result<http::Response<GuestBody>, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let shim = self.awake(&entry).await?;
        let response = shim
            .client
            .guest(request)
            .await
            .map_err(|_| cut_off(&entry, &shim))?;
        // The shim's own answers say that there is no guest to answer.
        if response.headers().contains_key("x-pando-shim") {
            return Err(match response.status() {
                http::StatusCode::INSUFFICIENT_STORAGE => {
                    EngineError::NoSpace("the sandbox stands still until there is some".to_owned())
                }
                _ => cut_off(&entry, &shim),
            });
        }
        // A file is on its way until its last byte.
        Ok(response.map(|body| as_a_whole(body, shim.into_using())))
    }
}

/// The last lines with something on them, without control characters, each cut where it is too
/// long.
fn last_lines(text: &str) -> Vec<String> {
    let plain = |line: &str| -> String {
        let shown = line.chars().filter(|c| !c.is_control());
        shown.take(LAST_CONSOLE_CHARACTERS).collect()
    };
    let lines = text.lines().map(plain);
    let lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_CONSOLE_LINES)..].to_vec()
}

fn check_command(command: &Command) -> Result<(), EngineError> {
    if command.argv.first().is_none_or(String::is_empty) {
        return Err(EngineError::Invalid("no program is given".to_owned()));
    }
    if command.argv.iter().any(|word| word.contains('\0')) {
        return Err(EngineError::Invalid(
            "an argument holds a NUL character".to_owned(),
        ));
    }
    check_env(&command.env)
}

/// Refuses what no process can be given.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), EngineError> {
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(EngineError::Invalid(format!(
                "`{}` cannot be an environment variable",
                key.escape_default()
            )));
        }
    }
    Ok(())
}

/// Whether a process did not end by itself, but with its guest: it has neither code nor
/// signal when the VM was gone before it, and a signal when the guest powered off.
fn ended_with_guest(exit: &Exit, shim: &Shim) -> bool {
    match (exit.exit_code, exit.signal) {
        (None, None) => true,
        (None, Some(_)) => shim.interrupted() == Some(Interruption::Stopped) && !exit.timed_out,
        (Some(_), _) => false,
    }
}

/// The error of a call whose VM is gone.
fn cut_off(entry: &Arc<Entry>, shim: &Shim) -> EngineError {
    match shim.interrupted() {
        Some(by) => EngineError::Interrupted {
            id: entry.id.to_string(),
            by,
        },
        None => entry.gone(),
    }
}

/// What a shim's error means for the caller.
pub(crate) fn guest_error(entry: &Arc<Entry>, shim: &Shim, error: ConnectError) -> EngineError {
    // However it looks from the connection that was cut.
    let refused = matches!(
        error.code,
        ErrorCode::InvalidArgument
            | ErrorCode::PermissionDenied
            | ErrorCode::NotFound
            | ErrorCode::AlreadyExists
    );
    if !refused && shim.interrupted().is_some() {
        return cut_off(entry, shim);
    }
    let message = error.message.unwrap_or_default();
    match error.code {
        ErrorCode::InvalidArgument | ErrorCode::Unauthenticated | ErrorCode::PermissionDenied => {
            EngineError::CannotRun(message)
        }
        ErrorCode::Unavailable if message.is_empty() => entry.gone(),
        ErrorCode::Unavailable => match entry.gone() {
            // The shim knows the cause a moment before the index does.
            EngineError::SandboxGone { id, .. } if entry.row().state_reason.is_none() => {
                EngineError::SandboxGone {
                    id,
                    reason: message,
                }
            }
            other => other,
        },
        ErrorCode::AlreadyExists => EngineError::RequestIdTaken(message),
        ErrorCode::Aborted => EngineError::NoSpace(message),
        ErrorCode::FailedPrecondition | ErrorCode::NotFound => EngineError::Invalid(message),
        _ => EngineError::Internal(message),
    }
}

fn process_error(
    entry: &Arc<Entry>,
    shim: &Shim,
    process: &str,
    error: ConnectError,
) -> EngineError {
    match error.code {
        ErrorCode::NotFound => EngineError::ProcessNotFound(process.chars().take(64).collect()),
        _ => guest_error(entry, shim, error),
    }
}

//! `process.Process`: the table as a Connect service.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use connectrpc::{
    ConnectError, Encodable, InboundStream, RequestContext, Response, ServiceRequest,
    ServiceResult, ServiceStream,
};
use futures::StreamExt;
use pando_wire::process::{
    self as wire, ConnectResponse, ListResponse, ProcessConfig, ProcessEvent, ProcessInfo,
    StartResponse, process_event, process_input, process_selector, stream_input_request,
};
use tokio::time::Instant;

use super::output::{Event, Exit, ExitStatus, Follower, Stream};
use super::{Description, Process, WindowSize, Wiring};
use crate::sandbox::Sandbox;
use crate::users::{DEFAULT_USER, User};

/// How long a stream may be silent before a keep-alive, unless the client says.
const KEEP_ALIVE: Duration = Duration::from_secs(90);

/// What a client may ask for, in seconds.
const KEEP_ALIVE_HEADER: &str = "keepalive-ping-interval";

/// The service, the same on both ports.
pub(crate) struct ProcessService {
    sandbox: Arc<Sandbox>,
}

type Input = buffa::MessageField<wire::ProcessInput, buffa::Inline<wire::ProcessInput>>;
type Selector = buffa::MessageField<wire::ProcessSelector, buffa::Inline<wire::ProcessSelector>>;

impl ProcessService {
    /// A service over the sandbox's processes.
    pub(crate) fn new(sandbox: Arc<Sandbox>) -> Self {
        Self { sandbox }
    }

    fn find(&self, selector: &Selector) -> Result<Arc<Process>, ConnectError> {
        let found = match &selector.selector {
            Some(process_selector::Selector::Pid(pid)) => {
                let found = self.sandbox.processes.find(|process| process.pid == *pid);
                found.ok_or_else(|| format!("process with pid {pid} not found"))
            }
            Some(process_selector::Selector::Tag(tag)) => {
                let fits = |process: &Process| process.description.tag.as_ref() == Some(tag);
                let found = self.sandbox.processes.find(fits);
                found.ok_or_else(|| format!("process with tag {tag} not found"))
            }
            None => return Err(ConnectError::invalid_argument("no process is selected")),
        };
        found.map_err(ConnectError::not_found)
    }

    fn find_running(&self, selector: &Selector) -> Result<Arc<Process>, ConnectError> {
        let process = self.find(selector)?;
        match process.is_running() {
            true => Ok(process),
            false => Err(ended(&process)),
        }
    }

    async fn feed(&self, process: &Process, input: &Input) -> Result<(), ConnectError> {
        let (bytes, terminal) = match &input.input {
            Some(process_input::Input::Stdin(bytes)) => (bytes, false),
            Some(process_input::Input::Pty(bytes)) => (bytes, true),
            None => return Ok(()),
        };
        if terminal != process.has_terminal() {
            let has = if terminal {
                "no terminal"
            } else {
                "a terminal, not a stdin"
            };
            let message = format!("process {} has {has}", process.pid);
            return Err(ConnectError::failed_precondition(message));
        }
        process.write(bytes).await.map_err(|error| {
            let message = format!("cannot write to process {}: {error}", process.pid);
            ConnectError::failed_precondition(message)
        })
    }
}

fn ended(process: &Process) -> ConnectError {
    ConnectError::not_found(format!("process with pid {} not found", process.pid))
}

/// The user that a request names by Basic authentication.
///
/// # Errors
/// There is no such user: `unauthenticated`.
pub(crate) fn user_of(headers: &http::HeaderMap) -> Result<User, ConnectError> {
    let named = headers
        .get(http::header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Basic "))
        .and_then(|encoded| BASE64_STANDARD.decode(encoded.trim()).ok())
        .and_then(|decoded| String::from_utf8(decoded).ok());
    let name = match &named {
        Some(pair) => pair.split(':').next().unwrap_or_default(),
        None => "",
    };
    let name = if name.is_empty() { DEFAULT_USER } else { name };
    let unknown = || ConnectError::unauthenticated(format!("there is no user '{name}'"));
    User::find(name).ok_or_else(unknown)
}

fn window_size(pty: &wire::PTY) -> WindowSize {
    let bounded = |length: u32| u16::try_from(length).unwrap_or(u16::MAX);
    WindowSize {
        columns: bounded(pty.size.cols),
        rows: bounded(pty.size.rows),
    }
}

fn keep_alive(ctx: &RequestContext) -> Duration {
    let asked = ctx.header(KEEP_ALIVE_HEADER);
    let seconds = asked.and_then(|value| value.to_str().ok()?.parse().ok());
    seconds
        .filter(|s| *s > 0)
        .map_or(KEEP_ALIVE, Duration::from_secs)
}

fn describe(config: &ProcessConfig, tag: Option<String>) -> Description {
    let environment = config.envs.iter();
    Description {
        program: config.cmd.clone(),
        arguments: config.args.clone(),
        environment: environment.map(|(k, v)| (k.clone(), v.clone())).collect(),
        directory: config.cwd.clone(),
        tag,
    }
}

fn info_of(process: &Process) -> ProcessInfo {
    let description = &process.description;
    let config = ProcessConfig {
        cmd: description.program.clone(),
        args: description.arguments.clone(),
        envs: description.environment.iter().cloned().collect(),
        cwd: description.directory.clone(),
        ..Default::default()
    };
    ProcessInfo {
        config: config.into(),
        pid: process.pid,
        tag: description.tag.clone(),
        ..Default::default()
    }
}

fn end_event(exit: Exit) -> process_event::EndEvent {
    let Exit {
        status,
        timed_out,
        started,
        ended,
    } = exit;
    let end = process_event::EndEvent {
        timed_out,
        started_ms: started.as_secs_f64() * 1e3,
        ended_ms: ended.as_secs_f64() * 1e3,
        ..Default::default()
    };
    match status {
        ExitStatus::Code(code) => {
            let status = format!("exit status {code}");
            process_event::EndEvent {
                exit_code: code,
                exited: true,
                error: (code != 0).then(|| status.clone()),
                status,
                ..end
            }
        }
        ExitStatus::Signal(signal) => {
            let status = format!("signal: {}", signal_text(signal));
            process_event::EndEvent {
                exit_code: -1,
                error: Some(status.clone()),
                status,
                signal: Some(signal.unsigned_abs()),
                ..end
            }
        }
    }
}

/// The words that E2B's clients match on, the usual ones of C libraries.
fn signal_text(signal: i32) -> String {
    let text = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return format!("signal {signal}"),
    };
    text.to_owned()
}

fn wire_event(event: Event) -> (ProcessEvent, bool) {
    let (event, last): (process_event::Event, bool) = match event {
        Event::Data(stream, bytes) => {
            let output = match stream {
                Stream::Stdout => process_event::data_event::Output::Stdout(bytes),
                Stream::Stderr => process_event::data_event::Output::Stderr(bytes),
                Stream::Terminal => process_event::data_event::Output::Pty(bytes),
            };
            let data = process_event::DataEvent {
                output: Some(output),
                ..Default::default()
            };
            (data.into(), false)
        }
        Event::End(exit) => (end_event(exit).into(), true),
    };
    let event = ProcessEvent {
        event: Some(event),
        ..Default::default()
    };
    (event, last)
}

/// The events of a process: its start, its output, its end.
fn events(
    process: &Process,
    follower: Follower,
    keep_alive: Duration,
) -> impl futures::Stream<Item = ProcessEvent> + Send + 'static {
    let start = process_event::StartEvent {
        pid: process.pid,
        ..Default::default()
    };
    let start = ProcessEvent {
        event: Some(start.into()),
        ..Default::default()
    };
    let rest = futures::stream::unfold(Some(follower), move |follower| async move {
        let mut follower = follower?;
        match tokio::time::timeout(keep_alive, follower.next()).await {
            Ok(event) => {
                let (event, last) = wire_event(event);
                Some((event, (!last).then_some(follower)))
            }
            Err(_silent) => {
                let event = ProcessEvent {
                    event: Some(process_event::KeepAlive::default().into()),
                    ..Default::default()
                };
                Some((event, Some(follower)))
            }
        }
    });
    futures::stream::once(std::future::ready(start)).chain(rest)
}

impl wire::Process for ProcessService {
    async fn list<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, wire::ListRequest>,
    ) -> ServiceResult<impl Encodable<ListResponse> + Send + use<'a>> {
        let running = self.sandbox.processes.running();
        Response::ok(ListResponse {
            processes: running.iter().map(|process| info_of(process)).collect(),
            ..Default::default()
        })
    }

    async fn connect(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::ConnectRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<ConnectResponse> + Send + use<>>> {
        let process = self.find(&request.to_owned_message().process)?;
        let follower = process.output.follow();
        let events = events(&process, follower, keep_alive(&ctx));
        Response::stream_ok(events.map(|event| {
            Ok(ConnectResponse {
                event: event.into(),
                ..Default::default()
            })
        }))
    }

    async fn start(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::StartRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<StartResponse> + Send + use<>>> {
        self.sandbox.check_ready()?;
        let user = user_of(ctx.headers())?;
        let request = request.to_owned_message();
        let wiring = Wiring {
            terminal: request.pty.as_option().map(window_size),
            stdin: request.stdin.unwrap_or(true),
            deadline: ctx.time_remaining().map(|left| Instant::now() + left),
            cgroup: self.sandbox.cgroup_choice(),
            output_limit: request.output_limit_bytes,
        };
        let description = describe(&request.process, request.tag);
        let sandbox = Arc::clone(&self.sandbox);
        // A task of its own: a start must not be left half done when the client goes.
        let start = tokio::spawn(async move {
            let process = super::start(&sandbox, user, description, wiring).await?;
            let follower = process.output.follow();
            Ok::<_, ConnectError>((process, follower))
        });
        let failed = |_| ConnectError::internal("the process could not be started");
        let (process, follower) = start.await.map_err(failed)??;
        let events = events(&process, follower, keep_alive(&ctx));
        Response::stream_ok(events.map(|event| {
            Ok(StartResponse {
                event: event.into(),
                ..Default::default()
            })
        }))
    }

    async fn update<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::UpdateRequest>,
    ) -> ServiceResult<impl Encodable<wire::UpdateResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.find_running(&request.process)?;
        if let Some(pty) = request.pty.as_option() {
            process.resize(window_size(pty)).map_err(|error| {
                let message = format!("cannot resize the terminal: {error}");
                ConnectError::failed_precondition(message)
            })?;
        }
        Response::ok(wire::UpdateResponse::default())
    }

    async fn stream_input<'a>(
        &'a self,
        _ctx: RequestContext,
        mut requests: InboundStream<wire::StreamInputRequest>,
    ) -> ServiceResult<impl Encodable<wire::StreamInputResponse> + Send + use<'a>> {
        let mut process = None;
        while let Some(request) = requests.next().await {
            match request?.to_owned_message().event {
                Some(stream_input_request::Event::Start(start)) => {
                    process = Some(self.find_running(&start.process)?);
                }
                Some(stream_input_request::Event::Data(data)) => {
                    let first = "the first message must select a process";
                    let process = process.as_deref();
                    let process = process.ok_or_else(|| ConnectError::invalid_argument(first))?;
                    self.feed(process, &data.input).await?;
                }
                Some(stream_input_request::Event::Keepalive(_)) | None => {}
            }
        }
        Response::ok(wire::StreamInputResponse::default())
    }

    async fn send_input<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::SendInputRequest>,
    ) -> ServiceResult<impl Encodable<wire::SendInputResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.find_running(&request.process)?;
        self.feed(&process, &request.input).await?;
        Response::ok(wire::SendInputResponse::default())
    }

    async fn send_signal<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::SendSignalRequest>,
    ) -> ServiceResult<impl Encodable<wire::SendSignalResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.find_running(&request.process)?;
        let signal = request.signal.to_i32();
        let sent = process.signal(signal, request.group);
        sent.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => {
                ConnectError::invalid_argument(format!("{signal} is not a signal"))
            }
            _ => ended(&process),
        })?;
        Response::ok(wire::SendSignalResponse::default())
    }

    async fn close_stdin<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::CloseStdinRequest>,
    ) -> ServiceResult<impl Encodable<wire::CloseStdinResponse> + Send + use<'a>> {
        let process = self.find_running(&request.to_owned_message().process)?;
        process.close_input().await.map_err(|error| {
            let message = format!("cannot close the input: {error}");
            ConnectError::failed_precondition(message)
        })?;
        Response::ok(wire::CloseStdinResponse::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_e2b_clients_expect() {
        let end = |status| {
            end_event(Exit {
                status,
                timed_out: false,
                started: Duration::from_millis(2),
                ended: Duration::from_millis(5),
            })
        };
        let fine = end(ExitStatus::Code(0));
        assert_eq!((fine.exit_code, fine.exited, fine.error), (0, true, None));
        assert_eq!(fine.status, "exit status 0");
        assert_eq!((fine.started_ms, fine.ended_ms), (2.0, 5.0));
        let failed = end(ExitStatus::Code(3));
        assert_eq!(failed.error.as_deref(), Some("exit status 3"));
        let killed = end(ExitStatus::Signal(9));
        assert_eq!((killed.exit_code, killed.exited), (-1, false));
        assert_eq!(
            (killed.status.as_str(), killed.signal),
            ("signal: killed", Some(9))
        );
    }

    #[test]
    fn an_unknown_user_is_not_authenticated() {
        let headers = |value: &str| {
            let value = http::HeaderValue::from_str(value).expect("header");
            http::HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
        };
        // `root:` and `nosuch:`
        assert_eq!(user_of(&headers("Basic cm9vdDo=")).expect("root").uid, 0);
        let unknown = user_of(&headers("Basic bm9zdWNoOg==")).expect_err("unknown");
        assert_eq!(
            unknown.message.as_deref(),
            Some("there is no user 'nosuch'")
        );
    }
}

//! Between the API's types and the engine's.

pub(super) mod lifetime;
mod limits;
pub(super) mod network;
pub(super) mod snapshots;

use crate::error::ApiError;
use crate::urls::Urls;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use pando_api as api;
use pando_api::stream;
use pando_engine::Port;
use pando_engine::request as engine;
use pando_types::limits::EXEC_STDIN_BYTES;
use pando_types::{Lifespan, Name, SandboxId, Size, TemplateRef};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, SystemTime};

/// The longest timeout: a year. Above it a deadline cannot be represented everywhere.
const MAX_TIMEOUT_S: f64 = 31_536_000.0;

/// The shell that runs `shell` command lines.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// RFC 3339, UTC, to the millisecond.
pub(super) fn timestamp(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at)
        .map(|stamp| format!("{stamp:.3}"))
        .unwrap_or_default()
}

fn invalid(error: impl Display) -> ApiError {
    ApiError::BadParameter(error.to_string())
}

/// A template's reference as it is written.
pub(super) fn template_ref(text: &str) -> Result<TemplateRef, ApiError> {
    text.parse().map_err(invalid)
}

/// A size whose missing parts are the default's.
pub(super) fn size(cpus: Option<u32>, memory_mib: Option<u32>) -> Result<Size, ApiError> {
    let cpus = cpus.unwrap_or(Size::DEFAULT.cpus());
    Size::new(cpus, memory_mib.unwrap_or(Size::DEFAULT.memory_mib())).map_err(invalid)
}

/// What to make.
pub(super) fn create_sandbox(
    request: api::CreateSandboxRequest,
) -> Result<engine::CreateSandbox, ApiError> {
    // Both parts are checked here, so that the one that is given is named.
    size(request.cpus, request.memory_mib)?;
    check_env(&request.env)?;
    let start = start(request.start.as_deref())?;
    match (&request.from, &request.template) {
        (Some(_), Some(_)) => return Err(invalid("give `template` or `from`, not both")),
        (Some(_), None) if start != engine::Start::Auto => {
            return Err(invalid(
                "`start` says how a template is started: with `from` it can only be `auto`",
            ));
        }
        (None, _) if request.disk_only => {
            return Err(invalid("`disk_only` needs `from`"));
        }
        _ => {}
    }
    Ok(engine::CreateSandbox {
        lifetime: lifetime::of_new(&request)?,
        template: request.template.as_deref().map(template_ref).transpose()?,
        from: request.from,
        disk_only: request.disk_only,
        name: name(request.name)?,
        cpus: request.cpus,
        memory_mib: request.memory_mib,
        env: request.env,
        labels: request.labels,
        egress: request.egress.as_ref().map(network::egress).transpose()?,
        start,
        limits: limits::limits(&request.limits)?,
    })
}

fn name(text: Option<String>) -> Result<Option<Name>, ApiError> {
    text.map(|text| text.parse()).transpose().map_err(invalid)
}

fn start(word: Option<&str>) -> Result<engine::Start, ApiError> {
    match word {
        None | Some("auto") => Ok(engine::Start::Auto),
        Some("snapshot") => Ok(engine::Start::Snapshot),
        Some("boot") => Ok(engine::Start::Boot),
        Some(other) => Err(invalid(format!(
            "`start` cannot be `{other}`: choose `auto`, `snapshot` or `boot`"
        ))),
    }
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), ApiError> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(invalid(format!("`{name}` cannot be a variable's name")));
        }
        if value.contains('\0') {
            return Err(invalid(format!(
                "the value of the variable `{name}` holds a zero byte"
            )));
        }
    }
    Ok(())
}

/// A sandbox as the API says it.
pub(super) fn sandbox(urls: &Urls, sandbox: engine::Sandbox) -> api::Sandbox {
    api::Sandbox {
        url_template: urls.template(sandbox.id.as_str()),
        id: sandbox.id.to_string(),
        name: sandbox.name.map(|name| name.to_string()),
        state: sandbox.state.to_string(),
        state_reason: sandbox.state_reason,
        last_console: sandbox.last_console,
        template: sandbox.template.to_string(),
        parent: sandbox.parent.map(|parent| parent.to_string()),
        isolation: api::Isolation {
            vmm: sandbox.isolation.vmm,
            accelerator: sandbox.isolation.accelerator.to_string(),
            reason: sandbox.isolation.reason,
            layers: sandbox.isolation.layers,
        },
        cpus: sandbox.size.cpus(),
        memory_mib: sandbox.size.memory_mib(),
        labels: sandbox.labels,
        egress: network::egress_of(&sandbox.egress),
        limits: limits::limits_of(&sandbox.limits),
        usage: sandbox.usage.map(limits::usage),
        created_at: timestamp(sandbox.created_at),
        started_at: sandbox.started_at.map(timestamp),
        timeout_s: seconds(sandbox.lifetime.timeout),
        expires_at: sandbox.expires_at.map(timestamp),
        idle_timeout_s: seconds(sandbox.lifetime.idle_timeout),
        last_used_at: timestamp(sandbox.last_used_at),
        on_timeout: sandbox.lifetime.on_timeout.to_string(),
        auto_resume: sandbox.lifetime.auto_resume,
    }
}

fn seconds(span: Option<Lifespan>) -> Option<f64> {
    span.map(|span| span.get().as_secs_f64())
}

/// A port as the API says it.
pub(super) fn port(urls: &Urls, sandbox: &SandboxId, port: Port) -> api::Port {
    api::Port {
        port: port.port,
        open: !port.addresses.is_empty(),
        addresses: port.addresses,
        pid: port.pid,
        process: port.process,
        url: urls.of(sandbox.as_str(), port.port),
        raw: port.raw.map(|raw| raw.to_string()),
        access: port.access.as_str().to_owned(),
    }
}

/// A program to run and the bytes for its stdin.
pub(super) fn exec(request: api::ExecRequest) -> Result<(engine::Command, Bytes), ApiError> {
    let stdin = match (request.stdin, request.stdin_base64) {
        (Some(_), Some(_)) => return Err(invalid("give `stdin` or `stdin_base64`, not both")),
        (Some(text), None) => Bytes::from(text),
        (None, Some(encoded)) => {
            let bytes = BASE64.decode(encoded.as_bytes());
            Bytes::from(
                bytes.map_err(|error| invalid(format!("`stdin_base64` is not base64: {error}")))?,
            )
        }
        (None, None) => Bytes::new(),
    };
    if stdin.len() > EXEC_STDIN_BYTES {
        return Err(invalid(format!(
            "stdin is larger than {EXEC_STDIN_BYTES} bytes: use `exec/stream`, or write a file first"
        )));
    }
    let command = engine::Command {
        argv: argv(request.argv, request.shell)?,
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        timeout: timeout(request.timeout_s)?,
    };
    check_env(&command.env)?;
    Ok((command, stdin))
}

fn argv(argv: Option<Vec<String>>, shell: Option<String>) -> Result<Vec<String>, ApiError> {
    let argv = match (argv, shell) {
        (Some(argv), None) => argv,
        (None, Some(line)) => SHELL.into_iter().map(str::to_owned).chain([line]).collect(),
        (Some(_), Some(_)) => return Err(invalid("give `argv` or `shell`, not both")),
        (None, None) => return Err(invalid("give `argv` or `shell`")),
    };
    if argv.first().is_none_or(String::is_empty) {
        return Err(invalid("`argv` must begin with a program"));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(invalid("`argv` holds a zero byte"));
    }
    Ok(argv)
}

fn timeout(seconds: Option<f64>) -> Result<Option<Duration>, ApiError> {
    match seconds {
        None => Ok(None),
        Some(seconds) if seconds > 0.0 && seconds <= MAX_TIMEOUT_S => {
            Ok(Some(Duration::from_secs_f64(seconds)))
        }
        Some(_) => Err(invalid(format!(
            "`timeout_s` must be above 0 and at most {MAX_TIMEOUT_S}"
        ))),
    }
}

/// How a program ended as the API says it.
pub(super) fn exec_result(result: engine::ExecResult) -> api::ExecResponse {
    let (stdout, stdout_base64) = text_or_base64(result.stdout);
    let (stderr, stderr_base64) = text_or_base64(result.stderr);
    api::ExecResponse {
        exit_code: result.exit.exit_code,
        signal: result.exit.signal,
        stdout,
        stdout_base64,
        stderr,
        stderr_base64,
        duration_ms: result.duration.as_secs_f64() * 1e3,
        timed_out: result.exit.timed_out,
        truncated: result.truncated,
        process_id: result.process_id,
    }
}

/// Text if the bytes are UTF-8, else base64.
fn text_or_base64(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(BASE64.encode(error.as_bytes()))),
    }
}

/// What the first message of a stream asks for.
pub(super) enum StreamStart {
    /// Start a process.
    Start(engine::StartProcess),
    /// Follow one.
    Attach {
        /// Which.
        process_id: engine::ProcessId,
        /// From where.
        from_offset: u64,
    },
}

/// Reads the first message of a stream.
pub(super) fn stream_start(request: stream::StreamRequest) -> Result<StreamStart, ApiError> {
    if let Some(process_id) = request.attach {
        if request.argv.is_some() || request.shell.is_some() {
            return Err(invalid("give `attach`, or `argv` or `shell`, not both"));
        }
        return Ok(StreamStart::Attach {
            process_id,
            from_offset: request.from_offset.unwrap_or(0),
        });
    }
    if request.from_offset.is_some() {
        return Err(invalid("`from_offset` needs `attach`"));
    }
    let command = engine::Command {
        argv: argv(request.argv, request.shell)?,
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        timeout: timeout(request.timeout_s)?,
    };
    check_env(&command.env)?;
    let tty = request
        .tty
        .map(|size| window_size(size.cols, size.rows))
        .transpose()?;
    Ok(StreamStart::Start(engine::StartProcess {
        command,
        tty,
        stdin: request.stdin,
        request_id: request.request_id,
    }))
}

/// A terminal's size; the kernel's own fields are 16 bits wide.
fn window_size(cols: u32, rows: u32) -> Result<engine::WindowSize, ApiError> {
    let fits = |value: u32| (1..=u32::from(u16::MAX)).contains(&value);
    if !fits(cols) || !fits(rows) {
        return Err(invalid("a terminal has 1 to 65535 columns and rows"));
    }
    Ok(engine::WindowSize { cols, rows })
}

/// A message of the client as input for the process.
pub(super) fn process_input(
    message: &stream::ClientMessage,
) -> Result<engine::ProcessInput, ApiError> {
    /// The highest of Linux's signals.
    const MAX_SIGNAL: u32 = 64;
    match *message {
        stream::ClientMessage::Signal {
            signal: signal @ 1..=MAX_SIGNAL,
        } => Ok(engine::ProcessInput::Signal(signal)),
        stream::ClientMessage::Signal { .. } => Err(invalid("a signal is 1 to 64")),
        stream::ClientMessage::Resize { cols, rows } => {
            Ok(engine::ProcessInput::Resize(window_size(cols, rows)?))
        }
        stream::ClientMessage::CloseStdin {} => Ok(engine::ProcessInput::CloseStdin),
    }
}

/// The stream of an output as the API says it.
pub(super) fn output_stream(stream: engine::OutputStream) -> stream::OutputStream {
    match stream {
        engine::OutputStream::Stdout => stream::OutputStream::Stdout,
        engine::OutputStream::Stderr => stream::OutputStream::Stderr,
        engine::OutputStream::Tty => stream::OutputStream::Tty,
    }
}

/// A process as the API says it.
pub(super) fn process(process: engine::ProcessInfo) -> api::Process {
    api::Process {
        process_id: process.process_id,
        pid: process.pid,
        argv: process.argv,
        tty: process.tty,
        running: process.exit.is_none(),
        exit_code: process.exit.as_ref().and_then(|exit| exit.exit_code),
        signal: process.exit.as_ref().and_then(|exit| exit.signal),
        started_at: timestamp(process.started_at),
    }
}

/// An event as the API says it.
pub(super) fn event(event: engine::Event) -> api::Event {
    api::Event {
        sequence: event.sequence,
        at: timestamp(event.at),
        kind: event.kind,
        subject: event.subject,
        detail: event.detail,
    }
}

/// A template as the API says it.
pub(super) fn template(template: engine::Template) -> api::Template {
    let size = |size: Size| api::Size {
        cpus: size.cpus(),
        memory_mib: size.memory_mib(),
    };
    api::Template {
        name: template.reference.to_string(),
        content_hash: template.content_hash,
        egress: network::egress_of(&template.egress),
        baked: template.baked.into_iter().map(size).collect(),
        disk_bytes: template.disk_bytes,
        created_at: timestamp(template.created_at),
    }
}

/// The daemon's status as the API says it.
pub(super) fn status(status: engine::Status) -> api::Status {
    api::Status {
        version: status.version,
        pid: status.pid,
        uptime_s: status.uptime.as_secs(),
        vmm: status.vmm,
        accelerator: status.accelerator.to_string(),
        accelerator_reason: status.accelerator_reason,
        sandboxes: status
            .sandboxes
            .into_iter()
            .map(|(state, count)| (state.to_owned(), count))
            .collect(),
        pool: pool(status.pool),
        starts_under_way: status.starts_under_way as u64,
        starts_refused: status.starts_refused,
    }
}

fn pool(pool: engine::PoolStatus) -> api::Pool {
    let slots = pool.slots.into_iter().map(|slots| api::PoolSlots {
        template: slots.template,
        cpus: slots.size.cpus(),
        memory_mib: slots.size.memory_mib(),
        kind: slots.kind.to_owned(),
        waiting: slots.waiting as u64,
        wanted: slots.wanted as u64,
    });
    let claims = pool.claims.into_iter();
    api::Pool {
        slots: slots.collect(),
        filling: pool.filling as u64,
        limited_by: pool.limited_by,
        claims: claims
            .map(|(kind, count)| (kind.to_owned(), count))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<impl Sized, ApiError>) -> String {
        result.err().expect("refused").to_string()
    }

    #[test]
    fn a_shell_line_becomes_an_argv() {
        let request = api::ExecRequest {
            shell: Some("echo $HOME".to_owned()),
            ..Default::default()
        };
        assert_eq!(
            exec(request).unwrap().0.argv,
            ["/bin/sh", "-c", "echo $HOME"]
        );
    }

    #[test]
    fn a_program_is_named_exactly_once() {
        let both = api::ExecRequest {
            argv: Some(vec!["a".to_owned()]),
            shell: Some("b".to_owned()),
            ..Default::default()
        };
        assert_eq!(message(exec(both)), "give `argv` or `shell`, not both");
        assert_eq!(
            message(exec(api::ExecRequest::default())),
            "give `argv` or `shell`"
        );
        for argv in [vec![], vec![String::new()]] {
            let empty = api::ExecRequest {
                argv: Some(argv),
                ..Default::default()
            };
            assert_eq!(message(exec(empty)), "`argv` must begin with a program");
        }
    }

    #[test]
    fn stdin_is_text_or_base64() {
        let request = |stdin: Option<&str>, encoded: Option<&str>| api::ExecRequest {
            argv: Some(vec!["cat".to_owned()]),
            stdin: stdin.map(str::to_owned),
            stdin_base64: encoded.map(str::to_owned),
            ..Default::default()
        };
        assert_eq!(&exec(request(Some("hi"), None)).unwrap().1[..], b"hi");
        assert_eq!(
            &exec(request(None, Some("AP8="))).unwrap().1[..],
            b"\x00\xff"
        );
        assert!(message(exec(request(None, Some("!")))).contains("base64"));
        assert!(message(exec(request(Some("a"), Some("b")))).contains("not both"));
    }

    #[test]
    fn bytes_that_are_not_text_are_base64() {
        assert_eq!(
            text_or_base64(b"ok\n".to_vec()),
            (Some("ok\n".to_owned()), None)
        );
        assert_eq!(
            text_or_base64(vec![0xff, 0]),
            (None, Some("/wA=".to_owned()))
        );
    }

    #[test]
    fn timeouts_outside_of_reason_are_refused() {
        assert_eq!(
            timeout(Some(0.5)).unwrap(),
            Some(Duration::from_millis(500))
        );
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(timeout(Some(seconds)).is_err(), "{seconds}");
        }
    }

    #[test]
    fn a_bad_size_names_the_allowed_ones() {
        let request = api::CreateSandboxRequest {
            cpus: Some(3),
            ..Default::default()
        };
        assert_eq!(
            message(create_sandbox(request)),
            "3 CPUs cannot be had: choose 1, 2, 4 or 8"
        );
        let request = api::CreateSandboxRequest {
            name: Some("-x".to_owned()),
            ..Default::default()
        };
        assert!(message(create_sandbox(request)).starts_with("`-x` is not a name"));
        let env = BTreeMap::from([("A=B".to_owned(), String::new())]);
        let request = api::CreateSandboxRequest {
            env,
            ..Default::default()
        };
        assert_eq!(
            message(create_sandbox(request)),
            "`A=B` cannot be a variable's name"
        );
    }

    #[test]
    fn a_sandbox_is_made_from_a_template_or_a_snapshot() {
        let from = |more: api::CreateSandboxRequest| {
            let from = Some("green".to_owned());
            create_sandbox(api::CreateSandboxRequest { from, ..more })
        };
        let none = api::CreateSandboxRequest::default;
        let wanted = from(api::CreateSandboxRequest {
            disk_only: true,
            cpus: Some(2),
            start: Some("auto".to_owned()),
            ..none()
        })
        .unwrap();
        assert_eq!(wanted.from.as_deref(), Some("green"));
        assert_eq!(
            (wanted.disk_only, wanted.cpus, wanted.template),
            (true, Some(2), None)
        );
        assert_eq!(
            message(from(api::CreateSandboxRequest {
                template: Some("base".to_owned()),
                ..none()
            })),
            "give `template` or `from`, not both"
        );
        assert!(
            message(from(api::CreateSandboxRequest {
                start: Some("boot".to_owned()),
                ..none()
            }))
            .contains("with `from` it can only be `auto`")
        );
        assert_eq!(
            message(create_sandbox(api::CreateSandboxRequest {
                disk_only: true,
                ..none()
            })),
            "`disk_only` needs `from`"
        );
    }

    #[test]
    fn times_are_rfc3339_to_the_millisecond() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_007);
        assert_eq!(timestamp(at), "2023-11-14T22:13:20.007Z");
    }

    #[test]
    fn a_stream_starts_or_attaches() {
        let attach = stream::StreamRequest {
            attach: Some("p".to_owned()),
            ..Default::default()
        };
        assert!(matches!(
            stream_start(attach),
            Ok(StreamStart::Attach { from_offset: 0, .. })
        ));
        let neither = stream::StreamRequest {
            from_offset: Some(1),
            ..Default::default()
        };
        assert_eq!(
            message(stream_start(neither)),
            "`from_offset` needs `attach`"
        );
        assert!(process_input(&stream::ClientMessage::Signal { signal: 65 }).is_err());
        assert!(process_input(&stream::ClientMessage::Resize { cols: 0, rows: 5 }).is_err());
    }
}

//! Running commands: in the foreground, in the background, and reading what they wrote.

use crate::answer::{Answer, Done, Failure};
use crate::arguments;
use crate::follow::Followed;
use crate::server::{Call, Server};
use crate::text::{Ends, Fence, clean, whole_characters};
use bytes::Bytes;
use pando_client::StreamEvent;
use pando_client::api::stream::{OutputStream, STDIN_WINDOW_BYTES, StreamRequest};
use rmcp::handler::server::common::Extension;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A command in the foreground without a time of its own: an installation of packages ends by
/// then, and a server that was started by mistake does not hold the model for long.
const TIMEOUT_S: f64 = 120.0;

/// The longest that a command may hold a call. Longer ones belong in the background.
const MAX_TIMEOUT_S: f64 = 3600.0;

/// The longest that `read_output` waits: below the minute after which many clients give up.
const MAX_WAIT_S: f64 = 50.0;

/// Output in one answer of `read_output`, and the most that may be asked for.
const READ_BYTES: usize = 16 << 10;
const MAX_READ_BYTES: usize = 128 << 10;

/// After so long without output, a process that runs has nothing more for now: what the
/// daemon keeps comes within milliseconds.
const QUIET: Duration = Duration::from_millis(200);

/// Runs a command line with bash where the sandbox has it: models write for bash.
const SHELL: &str = r#"command -v bash >/dev/null 2>&1 && exec bash -c "$1"; exec sh -c "$1""#;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    /// Id or name; or give `vm_name`.
    sandbox: Option<String>,
    /// The same as `sandbox`.
    vm_name: Option<String>,
    /// A command line for bash; or give `argv`.
    cmd: Option<String>,
    /// Instead of `cmd`: program and arguments, no shell.
    argv: Option<Vec<String>>,
    /// Working directory; the home directory when left out.
    cwd: Option<String>,
    /// Added to the environment; nothing when left out.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Account, such as `root`; `user` when left out.
    user: Option<String>,
    /// Text for its stdin, which is empty when left out.
    stdin: Option<String>,
    /// Seconds after which it is killed, with all that it started; in the foreground 120 when left out, at most 3600.
    timeout_s: Option<f64>,
    /// Return at once with a process_id for read_output; false when left out.
    #[serde(default)]
    background: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadOutput {
    /// Id or name.
    sandbox: String,
    /// From run_command.
    process_id: String,
    /// Bytes of output to skip: next_offset of the last answer; 0 when left out.
    #[serde(default)]
    offset: u64,
    /// Seconds to wait for output if there is none; 0 when left out, at most 50.
    #[serde(default)]
    wait_s: f64,
    /// Bytes in the answer; 16384 when left out, at most 131072.
    max_bytes: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KillProcess {
    /// Id or name.
    sandbox: String,
    /// From run_command.
    process_id: String,
    /// Linux signal number; 15 (please end) when left out, 9 cannot be ignored.
    signal: Option<u32>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Ran {
    process_id: String,
    running: bool,
    exit_code: Option<i32>,
    signal: Option<u32>,
    timed_out: bool,
    duration_ms: f64,
    stdout: String,
    stderr: String,
    left_out_bytes: u64,
    next_offset: u64,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Output {
    running: bool,
    exit_code: Option<i32>,
    signal: Option<u32>,
    timed_out: bool,
    output: String,
    next_offset: u64,
    more: bool,
    lost_bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Signalled {
    process_id: String,
    signal: u32,
}

#[tool_router(router = command_tools, vis = "pub(crate)")]
impl Server {
    /// Runs a command in a sandbox and returns exit code, stdout and stderr; of long output the first and last 8 KiB
    /// of each (the rest: read_output). Not for servers and other endless commands, unless background is true.
    /// Example: {"sandbox":"web","cmd":"pytest -q | tail -5","timeout_s":300}
    #[tool(
        output_schema = schema_for_output::<Ran>(),
        annotations(read_only_hint = false, destructive_hint = true)
    )]
    async fn run_command(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<RunCommand>,
    ) -> Answer<Ran> {
        let sandbox = arguments::sandbox(arguments.sandbox.clone(), arguments.vm_name.clone())?;
        let background = arguments.background;
        let stdin = arguments.stdin.clone();
        let request = request(arguments)?;
        let followed = Followed::start(&call, &sandbox, request).await?;
        if background {
            return run_in_background(followed, stdin).await;
        }
        if let Some(stdin) = stdin {
            // A program that ends without reading it is not a fault.
            let _ = followed.feed(Bytes::from(stdin)).await;
        }
        run_to_the_end(&sandbox, followed).await
    }

    /// Reads what a command wrote, stdout and stderr mixed, from an offset on, and says whether it still runs. The last
    /// 1 MiB is kept. Not for files (read_file).
    /// Example: {"sandbox":"web","process_id":"p1","offset":0,"wait_s":10}
    #[tool(
        output_schema = schema_for_output::<Output>(),
        annotations(read_only_hint = true)
    )]
    async fn read_output(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<ReadOutput>,
    ) -> Answer<Output> {
        let wait = seconds("wait_s", arguments.wait_s, 0.0, MAX_WAIT_S)?;
        let most = arguments.max_bytes.unwrap_or(READ_BYTES);
        if !(1..=MAX_READ_BYTES).contains(&most) {
            let message = format!("`max_bytes` is {most}: give 1 to {MAX_READ_BYTES}");
            return Err(Failure::arguments(message));
        }
        let process = (&*arguments.sandbox, &*arguments.process_id);
        let mut followed = attach(&call, process, arguments.offset).await?;
        let read = read(&mut followed, wait, most).await;
        read.map_err(|failure| match &*failure.code {
            "process_not_found" => unknown(&arguments.process_id),
            _ => failure,
        })
    }

    /// Sends a signal to a command and all that it started.
    /// Not for ending the sandbox (stop, destroy_sandbox).
    /// Example: {"sandbox":"web","process_id":"p1","signal":9}
    #[tool(
        output_schema = schema_for_output::<Signalled>(),
        annotations(read_only_hint = false, destructive_hint = true)
    )]
    async fn kill_process(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<KillProcess>,
    ) -> Answer<Signalled> {
        let signal = arguments.signal.unwrap_or(15);
        if !(1..=64).contains(&signal) {
            let message = format!("`signal` is {signal}: give 1 to 64");
            return Err(Failure::arguments(message));
        }
        let (sandbox, process_id) = (arguments.sandbox, arguments.process_id);
        // A signal has no answer that would say whether there was anybody to get it.
        let known = call.client.processes(&sandbox).await?;
        let found = known.iter().find(|each| each.process_id == process_id);
        if !found.ok_or_else(|| unknown(&process_id))?.running {
            let message = format!("process `{process_id}` has ended");
            return Err(Failure::new("process_ended", message).hint("read_output says how"));
        }
        // Nothing of what it wrote.
        let followed = attach(&call, (&sandbox, &process_id), u64::MAX).await?;
        followed.signal(signal).await?;
        let text = format!("sent signal {signal} to {process_id}");
        Ok(Done::new(text, Signalled { process_id, signal }))
    }
}

/// What to start.
fn request(arguments: RunCommand) -> Result<StreamRequest, Failure> {
    let argv = match (arguments.cmd, arguments.argv) {
        (Some(line), None) => ["/bin/sh", "-c", SHELL, "sh", &line]
            .map(str::to_owned)
            .to_vec(),
        (None, Some(argv)) if !argv.is_empty() => argv,
        (None, Some(_)) => return Err(Failure::arguments("`argv` is empty")),
        (None, None) => return Err(Failure::arguments("`cmd` or `argv` is missing")),
        (Some(_), Some(_)) => return Err(Failure::arguments("give `cmd` or `argv`, not both")),
    };
    let length = arguments.stdin.as_ref().map_or(0, String::len);
    if length > STDIN_WINDOW_BYTES {
        // More would have to wait until the program reads it, which it may never do.
        let message = format!("`stdin` has {length} bytes, the most is {STDIN_WINDOW_BYTES}");
        return Err(Failure::arguments(message).hint("write a file first, and redirect from it"));
    }
    let timeout_s = match (arguments.timeout_s, arguments.background) {
        (None, true) => None,
        (Some(given), true) => Some(seconds("timeout_s", given, 0.001, f64::MAX)?.as_secs_f64()),
        (given, false) => {
            let given = given.unwrap_or(TIMEOUT_S);
            Some(seconds("timeout_s", given, 0.001, MAX_TIMEOUT_S)?.as_secs_f64())
        }
    };
    Ok(StreamRequest {
        argv: Some(argv),
        cwd: arguments.cwd,
        env: arguments.env,
        user: arguments.user,
        stdin: arguments.stdin.is_some(),
        timeout_s,
        ..StreamRequest::default()
    })
}

fn seconds(name: &str, given: f64, least: f64, most: f64) -> Result<Duration, Failure> {
    let duration = Duration::try_from_secs_f64(given).ok();
    duration
        .filter(|_| (least..=most).contains(&given))
        .ok_or_else(|| {
            let failure =
                Failure::arguments(format!("`{name}` is {given}: give {least} to {most}"));
            failure.hint("for a command that takes longer: background and read_output")
        })
}

/// Until here a cancelled call kills it: its client would not learn how to find it.
async fn run_in_background(mut followed: Followed, stdin: Option<String>) -> Answer<Ran> {
    if let Some(stdin) = stdin {
        followed.feed(Bytes::from(stdin)).await?;
    }
    followed.let_go();
    let ran = Ran {
        process_id: followed.process_id().to_owned(),
        running: true,
        ..Ran::default()
    };
    let id = &ran.process_id;
    let text =
        format!("runs as process_id {id}; read_output(process_id=\"{id}\") shows its output");
    Ok(Done::new(text, ran))
}

async fn run_to_the_end(sandbox: &str, mut followed: Followed) -> Answer<Ran> {
    let begun = Instant::now();
    let (mut stdout, mut stderr) = (Ends::default(), Ends::default());
    let mut ran = Ran {
        process_id: followed.process_id().to_owned(),
        ..Ran::default()
    };
    loop {
        match followed.next().await? {
            StreamEvent::Output {
                stream,
                data,
                next_offset,
            } => {
                let kept = match stream {
                    OutputStream::Stderr => &mut stderr,
                    OutputStream::Stdout | OutputStream::Tty => &mut stdout,
                };
                kept.push(&data, next_offset.saturating_sub(data.len() as u64));
            }
            // It wrote faster than we read, more than is kept.
            StreamEvent::Gap { lost_bytes } => ran.left_out_bytes += lost_bytes,
            StreamEvent::Exit {
                exit_code,
                signal,
                timed_out,
            } => {
                (ran.exit_code, ran.signal, ran.timed_out) = (exit_code, signal, timed_out);
                break;
            }
        }
    }
    ran.duration_ms = begun.elapsed().as_secs_f64() * 1e3;
    ran.next_offset = followed.next_offset();
    ran.left_out_bytes += stdout.left_out_bytes() + stderr.left_out_bytes();
    let id = &ran.process_id;
    let note = |bytes: u64, from: u64| {
        format!(
            "… {bytes} bytes left out; read_output(sandbox=\"{sandbox}\", process_id=\"{id}\", offset={from})"
        )
    };
    let (out, err) = (stdout.render(note), stderr.render(note));
    (ran.stdout, ran.stderr) = (out, err);
    Ok(Done::new(ran_text(&ran), ran))
}

/// Our words come first, the guest's behind a fence.
fn ran_text(ran: &Ran) -> String {
    let mut text = format!(
        "{} after {:.2} s",
        ending(ran.exit_code, ran.signal, ran.timed_out),
        ran.duration_ms / 1e3
    );
    let fence = Fence::new();
    for (name, output) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        if !output.is_empty() {
            text.push_str(&fence.before(name));
            text.push_str(output);
        }
    }
    text
}

fn ending(exit_code: Option<i32>, signal: Option<u32>, timed_out: bool) -> String {
    match (exit_code, signal, timed_out) {
        (_, _, true) => "killed by its timeout".to_owned(),
        (Some(code), _, _) => format!("exit code {code}"),
        (None, Some(signal), _) => format!("ended by signal {signal}"),
        (None, None, _) => "ended with the sandbox".to_owned(),
    }
}

/// Follows a process from an offset of its output on.
async fn attach(
    call: &Call,
    (sandbox, process_id): (&str, &str),
    from_offset: u64,
) -> Result<Followed, Failure> {
    let request = StreamRequest {
        attach: Some(process_id.to_owned()),
        from_offset: Some(from_offset),
        ..StreamRequest::default()
    };
    Ok(Followed::open(call, sandbox, &request).await?)
}

/// There is no such process, or it was before the sandbox last began to run.
fn unknown(process_id: &str) -> Failure {
    let message = format!("process `{process_id}` not found");
    Failure::new("process_not_found", message)
        .hint("a process_id is known until a pause, stop or rollback; `ps` in run_command shows what runs")
}

/// Takes what there is, up to `most` bytes; waits for something if there is nothing.
async fn read(followed: &mut Followed, wait: Duration, most: usize) -> Answer<Output> {
    let mut kept: Vec<u8> = Vec::new();
    let mut output = Output {
        running: true,
        ..Output::default()
    };
    loop {
        let patience = if kept.is_empty() {
            wait.max(QUIET)
        } else {
            QUIET
        };
        let Ok(event) = tokio::time::timeout(patience, followed.next()).await else {
            break;
        };
        match event? {
            StreamEvent::Output { data, .. } => kept.extend_from_slice(&data),
            StreamEvent::Gap { lost_bytes } => output.lost_bytes += lost_bytes,
            StreamEvent::Exit {
                exit_code,
                signal,
                timed_out,
            } => {
                output.running = false;
                (output.exit_code, output.signal, output.timed_out) =
                    (exit_code, signal, timed_out);
                break;
            }
        }
        if kept.len() >= most {
            output.more = true;
            break;
        }
    }
    let length = if output.running {
        // The rest of a character that is cut off comes with the next answer. At least one
        // byte where there is more, so that reading on always ends.
        whole_characters(&kept[..kept.len().min(most)]).max(usize::from(output.more))
    } else {
        kept.len()
    };
    output.next_offset = followed.next_offset() - (kept.len() - length) as u64;
    output.output = clean(&String::from_utf8_lossy(&kept[..length]));
    Ok(Done::new(output_text(&output), output))
}

fn output_text(output: &Output) -> String {
    let state = match (output.more, output.running) {
        (true, _) => "there is more".to_owned(),
        (false, true) => "still runs".to_owned(),
        (false, false) => ending(output.exit_code, output.signal, output.timed_out),
    };
    let mut text = format!("{state}; next_offset {}", output.next_offset);
    if output.lost_bytes > 0 {
        text.push_str(&format!(
            "; {} bytes before this are no longer kept",
            output.lost_bytes
        ));
    }
    if !output.output.is_empty() {
        text.push_str(&Fence::new().before("output"));
        text.push_str(&output.output);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(arguments: serde_json::Value) -> Result<StreamRequest, Failure> {
        request(serde_json::from_value(arguments).unwrap())
    }

    #[test]
    fn a_command_comes_in_both_forms() {
        let line = parsed(json!({ "vm_name": "a", "cmd": "echo $X" })).unwrap();
        assert_eq!(line.argv.unwrap().last().unwrap(), "echo $X");
        assert_eq!(line.timeout_s, Some(TIMEOUT_S));
        let words = parsed(json!({ "sandbox": "a", "argv": ["echo", "$X"] })).unwrap();
        assert_eq!(words.argv.unwrap(), ["echo", "$X"]);
    }

    #[test]
    fn nonsense_is_refused_with_the_argument_named() {
        for (arguments, named) in [
            (json!({ "cmd": "a", "argv": ["b"] }), "not both"),
            (json!({}), "`cmd` or `argv`"),
            (json!({ "argv": [] }), "`argv` is empty"),
            (json!({ "cmd": "a", "timeout_s": 0 }), "`timeout_s` is 0"),
            (json!({ "cmd": "a", "timeout_s": -1 }), "`timeout_s` is -1"),
            (
                json!({ "cmd": "a", "timeout_s": 3601 }),
                "give 0.001 to 3600",
            ),
            (
                json!({ "cmd": "a", "timeout_s": 1e300, "background": true }),
                "`timeout_s`",
            ),
            (
                json!({ "cmd": "a", "stdin": "x".repeat(STDIN_WINDOW_BYTES + 1) }),
                "`stdin` has",
            ),
        ] {
            let failure = parsed(arguments).unwrap_err();
            assert!(failure.message.contains(named), "{}", failure.message);
        }
        let unknown = serde_json::from_value::<RunCommand>(json!({ "cmd": "a", "dir": "/" }));
        assert!(unknown.unwrap_err().to_string().contains("dir"));
    }

    #[test]
    fn in_the_background_there_is_no_timeout_unless_asked_for() {
        let endless = parsed(json!({ "cmd": "a", "background": true })).unwrap();
        assert_eq!(endless.timeout_s, None);
        let long = parsed(json!({ "cmd": "a", "background": true, "timeout_s": 90000 })).unwrap();
        assert_eq!(long.timeout_s, Some(90_000.0));
    }

    #[test]
    fn a_guest_cannot_write_the_line_before_its_words() {
        let ran = |stdout: &str| Ran {
            exit_code: Some(1),
            stdout: stdout.to_owned(),
            stderr: "x".to_owned(),
            ..Ran::default()
        };
        let fence = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("--- stderr"));
            line.unwrap().to_owned()
        };
        let seen = ran_text(&ran("first"));
        assert!(
            seen.starts_with("exit code 1 after 0.00 s\n--- stdout "),
            "{seen}"
        );
        let forged = ran_text(&ran(&fence(&seen)));
        let real = forged.lines().rev().nth(1).unwrap();
        assert_ne!(fence(&forged), real, "the fence was the same twice");
    }
}

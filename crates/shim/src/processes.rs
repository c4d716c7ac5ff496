//! The processes this shim started: it owns their output, whoever follows it.
//!
//! A task per process reads the agent's stream and never waits for a follower, so
//! that one slow reader holds up neither the guest nor another reader. Losing a
//! follower ends nothing.

mod exec;

pub(crate) use exec::Executed;

use crate::replay::{Chunk, Next, Replay, Stream};
use bytes::Bytes;
use connectrpc::ConnectError;
use connectrpc::client::{CallOptions, ClientTransport, ServerStream};
use exec::{Capture, Requests};
use pando_types::limits::{PROCESS_REPLAY_BYTES, PROCESSES_KEPT};
use pando_wire::process::{self, ProcessClient, process_event};
use pando_wire::shim;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// SIGKILL, the same number on every Linux.
const SIGKILL: u32 = 9;

/// How long a killed process group may take to end before its exec is answered anyway:
/// what hangs in the kernel must not hang the caller.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Bytes of stdin in one message to the agent.
const INPUT_CHUNK_BYTES: usize = 64 << 10;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<u32>,
    pub(crate) timed_out: bool,
}

impl Exit {
    /// The VM ended before the process did.
    pub(crate) fn is_unknown(&self) -> bool {
        self.exit_code.is_none() && self.signal.is_none()
    }
}

impl From<&Exit> for shim::Exit {
    fn from(exit: &Exit) -> Self {
        Self {
            exit_code: exit.exit_code,
            signal: exit.signal,
            timed_out: exit.timed_out,
            ..Self::default()
        }
    }
}

/// What changes as a process goes on.
#[derive(Debug)]
struct Progress {
    replay: Replay,
    capture: Option<Capture>,
    exit: Option<Exit>,
    /// Set before the kill, so that the end says why.
    timed_out: bool,
    /// From its start to its end.
    lasted: Option<Duration>,
    /// What the agent says of its begin and its end, in milliseconds since the request.
    agent_steps: [(&'static str, f64); 2],
}

/// A process of the guest.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: String,
    pub(crate) pid: u32,
    pub(crate) argv: Vec<String>,
    pub(crate) tty: bool,
    pub(crate) started_at: SystemTime,
    /// When it was asked for.
    asked: Instant,
    started: Instant,
    progress: Mutex<Progress>,
    /// Counts changes of `progress`; followers wait on it.
    changes: watch::Sender<u64>,
}

impl Process {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress());
        self.changes.send_modify(|count| *count += 1);
    }

    /// How it ended, if it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.progress().exit.clone()
    }

    /// What a follower at `offset` gets next; waits while there is nothing.
    pub(crate) async fn next(&self, offset: u64) -> Followed {
        let mut changes = self.changes.subscribe();
        loop {
            // Marked seen before looking: a change in between wakes the wait below.
            changes.borrow_and_update();
            {
                let progress = self.progress();
                match (progress.replay.next(offset), &progress.exit) {
                    (Next::Chunk(chunk), _) => return Followed::Output(chunk),
                    (
                        Next::Gap {
                            lost_bytes,
                            resume_at,
                        },
                        _,
                    ) => {
                        return Followed::Gap {
                            lost_bytes,
                            resume_at,
                        };
                    }
                    (Next::Nothing, Some(exit)) => return Followed::Exit(exit.clone()),
                    (Next::Nothing, None) => {}
                }
            }
            if changes.changed().await.is_err() {
                return Followed::Exit(Exit {
                    exit_code: None,
                    signal: None,
                    timed_out: false,
                });
            }
        }
    }

    async fn ended(&self) -> Exit {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if let Some(exit) = self.exit() {
                return exit;
            }
            // The sender is in `self`: this cannot fail while we wait.
            drop(changes.changed().await);
        }
    }
}

/// One step of following a process.
#[derive(Debug)]
pub(crate) enum Followed {
    Output(Chunk),
    Gap { lost_bytes: u64, resume_at: u64 },
    Exit(Exit),
}

/// What to start.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) command: shim::Command,
    pub(crate) tty: Option<process::pty::Size>,
    pub(crate) stdin: bool,
    /// Keep this much of stdout and of stderr whole.
    pub(crate) capture_bytes: Option<usize>,
}

/// The table of processes.
pub(crate) struct Processes<T> {
    client: ProcessClient<T>,
    table: Mutex<Table>,
    requests: Requests,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    by_number: BTreeMap<u64, Arc<Process>>,
}

impl<T> Processes<T>
where
    T: ClientTransport,
    T::ResponseBody: Unpin,
    <T::ResponseBody as http_body::Body>::Error: std::fmt::Display,
{
    pub(crate) fn new(client: ProcessClient<T>) -> Self {
        Self {
            client,
            table: Mutex::new(Table::default()),
            requests: Requests::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process and the task that reads its output.
    pub(crate) async fn start(&self, start: Start) -> Result<Arc<Process>, ConnectError> {
        let asked = Instant::now();
        let timeout = Duration::from_millis(start.command.timeout_ms);
        let (request, options) = start_request(&start)?;
        let mut stream = self.client.start_with_options(request, options).await?;
        let pid = loop {
            match stream
                .message()
                .await?
                .map(|message| message.to_owned_message())
            {
                Some(message) => {
                    if let Some(process_event::Event::Start(start)) =
                        message.event.into_option().and_then(|event| event.event)
                    {
                        break start.pid;
                    }
                }
                None => {
                    return Err(ConnectError::internal(
                        "the agent ended the stream before the process began",
                    ));
                }
            }
        };
        let process = self.insert(&start, pid, asked);
        tokio::spawn(pump(Arc::clone(&process), stream));
        if !timeout.is_zero() {
            tokio::spawn(kill_after(
                self.client.clone(),
                Arc::clone(&process),
                timeout,
            ));
        }
        Ok(process)
    }

    fn insert(&self, start: &Start, pid: u32, asked: Instant) -> Arc<Process> {
        let capture = start.capture_bytes.map(Capture::new);
        let mut table = self.table();
        table.next += 1;
        let number = table.next;
        let process = Arc::new(Process {
            id: format!("p{number}"),
            pid,
            argv: start.command.argv.clone(),
            tty: start.tty.is_some(),
            started_at: SystemTime::now(),
            asked,
            started: Instant::now(),
            progress: Mutex::new(Progress {
                replay: Replay::new(PROCESS_REPLAY_BYTES),
                capture,
                exit: None,
                timed_out: false,
                lasted: None,
                agent_steps: [(exec::STARTED, 0.0), (exec::ENDED, 0.0)],
            }),
            changes: watch::Sender::new(0),
        });
        table.by_number.insert(number, Arc::clone(&process));
        table.forget_oldest_ended();
        exec::trim(table.by_number.values().rev());
        process
    }

    /// The process with this id.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Process>, ConnectError> {
        let number = id
            .strip_prefix('p')
            .and_then(|number| number.parse::<u64>().ok());
        number
            .and_then(|number| self.table().by_number.get(&number).cloned())
            .ok_or_else(|| ConnectError::not_found(format!("process `{id}` not found")))
    }

    /// All that are kept, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Process>> {
        self.table().by_number.values().cloned().collect()
    }

    /// Feeds bytes to stdin or the terminal.
    pub(crate) async fn send(&self, process: &Process, data: &[u8]) -> Result<(), ConnectError> {
        for chunk in data.chunks(INPUT_CHUNK_BYTES) {
            self.client
                .send_input(input(process.pid, process.tty, chunk))
                .await?;
        }
        Ok(())
    }

    /// Ends stdin.
    pub(crate) async fn close_stdin(&self, process: &Process) -> Result<(), ConnectError> {
        close_stdin(&self.client, process.pid).await
    }

    /// Signals the process group.
    pub(crate) async fn signal(&self, process: &Process, signal: u32) -> Result<(), ConnectError> {
        signal_group(&self.client, process.pid, signal).await
    }

    /// Sets the terminal's size.
    pub(crate) async fn resize(
        &self,
        process: &Process,
        size: process::pty::Size,
    ) -> Result<(), ConnectError> {
        let pty = process::PTY {
            size: size.into(),
            ..process::PTY::default()
        };
        let request = process::UpdateRequest {
            process: selector(process.pid).into(),
            pty: pty.into(),
            ..process::UpdateRequest::default()
        };
        self.client.update(request).await.map(drop)
    }
}

impl Table {
    fn forget_oldest_ended(&mut self) {
        while self.by_number.len() > PROCESSES_KEPT {
            let ended = self
                .by_number
                .iter()
                .find(|(_, process)| process.exit().is_some())
                .map(|(number, _)| *number);
            let Some(number) = ended else { return };
            self.by_number.remove(&number);
        }
    }
}

/// The agent's request for a command, and the header that names its user.
fn start_request(start: &Start) -> Result<(process::StartRequest, CallOptions), ConnectError> {
    let (program, arguments) = start
        .command
        .argv
        .split_first()
        .ok_or_else(|| ConnectError::invalid_argument("no program is given"))?;
    let config = process::ProcessConfig {
        cmd: program.clone(),
        args: arguments.to_vec(),
        envs: start.command.env.clone(),
        cwd: start.command.cwd.clone(),
        ..process::ProcessConfig::default()
    };
    let pty = start.tty.clone().map(|size| process::PTY {
        size: size.into(),
        ..process::PTY::default()
    });
    let request = process::StartRequest {
        process: config.into(),
        pty: pty.into(),
        stdin: Some(start.stdin),
        // One more than is kept: that tells that there was more.
        output_limit_bytes: start.capture_bytes.map(|bytes| bytes as u64 + 1),
        ..process::StartRequest::default()
    };
    let mut options = CallOptions::default();
    if !start.command.user.is_empty() {
        options = options
            .try_with_header("authorization", basic(&start.command.user))
            .map_err(|_| ConnectError::invalid_argument("the user's name is malformed"))?;
    }
    Ok((request, options))
}

/// `Basic` credentials with an empty password, as E2B clients name the user.
fn basic(user: &str) -> String {
    use base64::Engine as _;
    format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(format!("{user}:"))
    )
}

/// Reads a process' events to the end.
async fn pump<B>(
    process: Arc<Process>,
    mut stream: ServerStream<B, process::StartResponseView<'static>>,
) where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    loop {
        let message = match stream.message().await {
            Ok(Some(message)) => message.to_owned_message(),
            Ok(None) | Err(_) => break,
        };
        match message.event.into_option().and_then(|event| event.event) {
            Some(process_event::Event::Data(data)) => {
                let Some(output) = data.output else { continue };
                let (stream, data) = split(output);
                process.change(|progress| {
                    if let Some(capture) = &mut progress.capture {
                        capture.push(stream, &data);
                    }
                    progress.replay.push(stream, data);
                });
            }
            Some(process_event::Event::End(end)) => {
                process.change(|progress| {
                    let exit_code = (end.signal.is_none() && end.exited).then_some(end.exit_code);
                    let timed_out = end.timed_out || progress.timed_out;
                    progress.lasted = Some(process.started.elapsed());
                    progress.agent_steps =
                        [(exec::STARTED, end.started_ms), (exec::ENDED, end.ended_ms)];
                    progress.exit.get_or_insert(Exit {
                        exit_code,
                        signal: end.signal,
                        timed_out,
                    });
                });
                return;
            }
            _ => {}
        }
    }
    // The channel is gone, and with it the guest; nobody will ever know how it ended.
    process.change(|progress| {
        progress.exit.get_or_insert(Exit {
            exit_code: None,
            signal: None,
            timed_out: progress.timed_out,
        });
    });
}

fn split(output: process_event::data_event::Output) -> (Stream, Bytes) {
    use process_event::data_event::Output;
    match output {
        Output::Stdout(data) => (Stream::Stdout, data.into()),
        Output::Stderr(data) => (Stream::Stderr, data.into()),
        Output::Pty(data) => (Stream::Tty, data.into()),
    }
}

/// Kills the process group when its time is over.
async fn kill_after<T: ClientTransport>(
    client: ProcessClient<T>,
    process: Arc<Process>,
    timeout: Duration,
) where
    <T::ResponseBody as http_body::Body>::Error: std::fmt::Display,
{
    if tokio::time::timeout(timeout, process.ended()).await.is_ok() {
        return;
    }
    process.change(|progress| progress.timed_out = true);
    // It may have ended this instant; then there is nothing to kill.
    drop(signal_group(&client, process.pid, SIGKILL).await);
    if tokio::time::timeout(KILL_GRACE, process.ended())
        .await
        .is_err()
    {
        process.change(|progress| {
            progress.exit.get_or_insert(Exit {
                exit_code: None,
                signal: Some(SIGKILL),
                timed_out: true,
            });
        });
    }
}

/// Feeds all of `stdin` and ends it; a process that no longer reads is no error.
async fn feed<T: ClientTransport>(client: ProcessClient<T>, pid: u32, stdin: Vec<u8>)
where
    <T::ResponseBody as http_body::Body>::Error: std::fmt::Display,
{
    for chunk in stdin.chunks(INPUT_CHUNK_BYTES) {
        if client.send_input(input(pid, false, chunk)).await.is_err() {
            return;
        }
    }
    drop(close_stdin(&client, pid).await);
}

fn selector(pid: u32) -> process::ProcessSelector {
    process::ProcessSelector {
        selector: Some(process::process_selector::Selector::Pid(pid)),
        ..Default::default()
    }
}

fn input(pid: u32, tty: bool, data: &[u8]) -> process::SendInputRequest {
    use process::process_input::Input;
    let input = if tty {
        Input::Pty(data.to_vec())
    } else {
        Input::Stdin(data.to_vec())
    };
    let input = process::ProcessInput {
        input: Some(input),
        ..Default::default()
    };
    process::SendInputRequest {
        process: selector(pid).into(),
        input: input.into(),
        ..Default::default()
    }
}

async fn close_stdin<T: ClientTransport>(
    client: &ProcessClient<T>,
    pid: u32,
) -> Result<(), ConnectError>
where
    <T::ResponseBody as http_body::Body>::Error: std::fmt::Display,
{
    let request = process::CloseStdinRequest {
        process: selector(pid).into(),
        ..Default::default()
    };
    client.close_stdin(request).await.map(drop)
}

async fn signal_group<T: ClientTransport>(
    client: &ProcessClient<T>,
    pid: u32,
    signal: u32,
) -> Result<(), ConnectError>
where
    <T::ResponseBody as http_body::Body>::Error: std::fmt::Display,
{
    let number =
        i32::try_from(signal).map_err(|_| ConnectError::invalid_argument("no such signal"))?;
    let request = process::SendSignalRequest {
        process: selector(pid).into(),
        signal: number.into(),
        group: true,
        ..Default::default()
    };
    client.send_signal(request).await.map(drop)
}

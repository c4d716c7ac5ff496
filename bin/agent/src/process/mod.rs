//! Processes that clients start.
//!
//! A process lives in the [`table::Table`], not in the request that started it:
//! losing a connection closes no stdin and kills no child. [`start`] begins, a task
//! of its own ([`supervise`]) sees each process to its end.

pub(crate) mod command;
pub(crate) mod output;
mod pump;
pub(crate) mod service;
pub(crate) mod table;
mod terminal;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use connectrpc::ConnectError;
use pando_sys::guest::spawn::{Spawn, SpawnError};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::Instant;

use self::command::{Command, Prepared};
use self::output::{Exit, ExitStatus, Output, Stream};
use crate::descriptor;
use crate::sandbox::Sandbox;
use crate::users::User;
pub(crate) use terminal::WindowSize;

/// Soft and hard limit of open files, as a login on Debian has them.
const OPEN_FILES: (u64, u64) = (1024, 524_288);

/// What the list of processes shows.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    /// Program name or path.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The request's own environment.
    pub environment: Vec<(String, String)>,
    /// The request's working directory.
    pub directory: Option<String>,
    /// The client's own name for it.
    pub tag: Option<String>,
}

/// How a process is wired up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wiring {
    /// A terminal of this size instead of pipes.
    pub terminal: Option<WindowSize>,
    /// Whether stdin can be fed; otherwise it is empty.
    pub stdin: bool,
    /// When to kill the process group.
    pub deadline: Option<Instant>,
    /// Where it lives.
    pub cgroup: CgroupChoice,
    /// Bytes kept of each output; what comes after is read and dropped.
    pub output_limit: Option<u64>,
}

/// Where a process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CgroupChoice {
    /// With all that the sandbox's user runs.
    User,
    /// Apart, for what has to run while the user's processes are frozen: resume hooks,
    /// and what warms a clone up that is nobody's yet.
    Hooks,
}

/// A process that a client has started.
pub(crate) struct Process {
    /// Its id, and that of its session and process group.
    pub pid: u32,
    /// What was asked for.
    pub description: Description,
    /// What it writes.
    pub output: Arc<Output>,
    ended: AtomicBool,
    input: Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
    terminal: Option<Arc<AsyncFd<OwnedFd>>>,
}

impl Process {
    /// Whether its id is still its own.
    pub(crate) fn is_running(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    fn set_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether it has a terminal.
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Sends a signal, to the process or to its whole group.
    ///
    /// # Errors
    /// It has ended, or there is no such signal.
    pub(crate) fn signal(&self, signal: i32, group: bool) -> io::Result<()> {
        let (true, Some(pid)) = (self.is_running(), Pid::from_raw(self.pid as i32)) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
        let sent = match group {
            true => kill_process_group(pid, signal),
            false => kill_process(pid, signal),
        };
        Ok(sent?)
    }

    /// Feeds its stdin or terminal; waits until it has taken the bytes.
    ///
    /// # Errors
    /// It has none, or does not read any more.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        // One writer at a time; in order.
        let input = self.input.lock().await;
        let target = input.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        pump::write_all(target, bytes).await
    }

    /// Closes its stdin; at a terminal, what Ctrl-D at the start of a line does.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) async fn close_input(&self) -> io::Result<()> {
        let mut input = self.input.lock().await;
        match &self.terminal {
            Some(terminal) => pump::write_all(terminal, &[terminal::END_OF_FILE]).await,
            None => {
                input.take();
                Ok(())
            }
        }
    }

    /// Changes its terminal's size.
    ///
    /// # Errors
    /// It has no terminal.
    pub(crate) fn resize(&self, size: WindowSize) -> io::Result<()> {
        let terminal = self.terminal.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        terminal::resize(terminal.get_ref(), size)
    }
}

/// The agent's ends of a process's descriptors.
struct Ends {
    input: Option<OwnedFd>,
    output: Vec<(Stream, OwnedFd)>,
}

/// Starts a process and its supervision.
///
/// # Errors
/// `invalid_argument` for what can't be executed, `resource_exhausted` at the
/// sandbox's limits; nothing runs then.
pub(crate) async fn start(
    sandbox: &Arc<Sandbox>,
    user: User,
    description: Description,
    wiring: Wiring,
) -> Result<Arc<Process>, ConnectError> {
    let asked = Instant::now();
    let (ends, stdio) = open_ends(wiring, &user).map_err(|error| no_descriptors(&error))?;
    let environment = sandbox.environment();
    let starting = sandbox.processes.starting();
    let (user, description, spawned) = {
        let sandbox = Arc::clone(sandbox);
        // Blocks until the program is executed, which may be long if the disk is slow
        // or the user's memory is full.
        let spawned = tokio::task::spawn_blocking(move || {
            let spawned = spawn(&sandbox, &user, &description, wiring, &stdio, &environment);
            (user, description, spawned)
        });
        let failed = |_| ConnectError::internal("the process could not be started");
        spawned.await.map_err(failed)?
    };
    let pid = spawned.map_err(|error| match error {
        StartError::Command(error) => error,
        StartError::Spawn(error) => command_of(&user, &description, wiring).explain(&error),
    })?;
    let times = Times {
        asked,
        started: asked.elapsed(),
    };
    let exit = starting.started(pid);
    let registered = register(pid, description, ends, wiring);
    let (process, pumps) = registered.map_err(|error| no_descriptors(&error))?;
    sandbox.processes.insert(Arc::clone(&process));
    let supervision = supervise(
        Arc::clone(sandbox),
        Arc::clone(&process),
        exit,
        pumps,
        times,
        wiring.deadline,
    );
    tokio::spawn(supervision);
    Ok(process)
}

fn no_descriptors(error: &io::Error) -> ConnectError {
    ConnectError::resource_exhausted(format!("cannot wire up a process: {error}"))
}

enum StartError {
    Command(ConnectError),
    Spawn(SpawnError),
}

fn command_of<'a>(user: &'a User, description: &'a Description, wiring: Wiring) -> Command<'a> {
    let environment = description.environment.iter();
    Command {
        program: &description.program,
        arguments: description.arguments.iter().map(String::as_str).collect(),
        environment: environment.map(|(k, v)| (k.as_str(), v.as_str())).collect(),
        directory: description.directory.as_deref(),
        user,
        terminal: wiring.terminal.is_some(),
    }
}

fn spawn(
    sandbox: &Sandbox,
    user: &User,
    description: &Description,
    wiring: Wiring,
    stdio: &[OwnedFd; 3],
    environment: &std::collections::BTreeMap<String, String>,
) -> Result<u32, StartError> {
    let command = command_of(user, description, wiring);
    let Prepared {
        programs,
        arguments,
        environment,
        directory,
    } = command.prepare(environment).map_err(StartError::Command)?;
    let spawn = Spawn {
        programs,
        arguments,
        environment,
        directory,
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        stdio: stdio.each_ref().map(AsFd::as_fd),
        terminal: wiring.terminal.is_some(),
        cgroup: Some(match wiring.cgroup {
            CgroupChoice::User => sandbox.cgroup.folder(),
            CgroupChoice::Hooks => sandbox.cgroup.hooks_folder(),
        }),
        open_files: sandbox.open_files(OPEN_FILES),
    };
    spawn.start().map_err(StartError::Spawn)
}

/// Makes pipes or a terminal: the agent's ends and the process's.
fn open_ends(wiring: Wiring, user: &User) -> io::Result<(Ends, [OwnedFd; 3])> {
    if let Some(size) = wiring.terminal {
        let (ours, theirs) = terminal::open(size, user)?;
        let ends = Ends {
            input: Some(ours.try_clone()?),
            output: vec![(Stream::Terminal, ours)],
        };
        return Ok((ends, [theirs.try_clone()?, theirs.try_clone()?, theirs]));
    }
    let (stdin, input) = match wiring.stdin {
        true => pipe_with(PipeFlags::CLOEXEC).map(|(read, write)| (read, Some(write)))?,
        false => (std::fs::File::open("/dev/null")?.into(), None),
    };
    let (stdout, stdout_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, stderr_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    for pipe in [&stdout, &stderr] {
        // The usual size does as well.
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, pump::PIPE_BYTES);
    }
    let ends = Ends {
        input,
        output: vec![(Stream::Stdout, stdout), (Stream::Stderr, stderr)],
    };
    Ok((ends, [stdin, stdout_writer, stderr_writer]))
}

/// The pumps of a process, told by a switch that it has ended.
struct Pumps {
    ended: watch::Sender<bool>,
    drained: Vec<oneshot::Receiver<()>>,
}

fn register(
    pid: u32,
    description: Description,
    ends: Ends,
    wiring: Wiring,
) -> io::Result<(Arc<Process>, Pumps)> {
    let input = match ends.input {
        Some(input) => Some(Arc::new(descriptor::register(input, Interest::WRITABLE)?)),
        None => None,
    };
    let output = Arc::new(Output::default());
    let (ended, ended_receiver) = watch::channel(false);
    let mut drained = Vec::new();
    for (stream, fd) in ends.output {
        let source = Arc::new(descriptor::register(fd, Interest::READABLE)?);
        let (sender, receiver) = oneshot::channel();
        let output = Arc::clone(&output);
        let pump = pump::Pump::new(source, stream, output, wiring.output_limit);
        tokio::spawn(pump.run(ended_receiver.clone(), sender));
        drained.push(receiver);
    }
    let process = Arc::new(Process {
        pid,
        description,
        output,
        ended: AtomicBool::new(false),
        terminal: wiring.terminal.and(input.clone()),
        input: Mutex::new(input),
    });
    Ok((process, Pumps { ended, drained }))
}

/// When a process came to be.
#[derive(Clone, Copy)]
struct Times {
    asked: Instant,
    /// From then to the program's begin.
    started: Duration,
}

/// Sees a process to its end: the deadline, the exit status, the rest of its output.
async fn supervise(
    sandbox: Arc<Sandbox>,
    process: Arc<Process>,
    mut exit: oneshot::Receiver<ExitStatus>,
    pumps: Pumps,
    times: Times,
    deadline: Option<Instant>,
) {
    let (status, timed_out) = wait_for_end(&process, &mut exit, deadline).await;
    let ended = times.asked.elapsed();
    process.set_ended();
    // A writer that still waits has it; it ends with its request.
    if let Ok(mut input) = process.input.try_lock() {
        input.take();
    }
    pumps.ended.send_replace(true);
    for drained in pumps.drained {
        // Ends without a word when the pipe has ended: as good.
        let _ = drained.await;
    }
    process.output.finish(Exit {
        status,
        timed_out,
        started: times.started,
        ended,
    });
    sandbox.processes.retire(&process).await;
}

/// Waits for the end; at the deadline kills the process group. Returns the status
/// and whether the deadline was the reason.
async fn wait_for_end(
    process: &Process,
    exit: &mut oneshot::Receiver<ExitStatus>,
    deadline: Option<Instant>,
) -> (ExitStatus, bool) {
    // The table lets go of the sender only with a status.
    let lost = ExitStatus::Code(-1);
    if let Some(deadline) = deadline {
        match tokio::time::timeout_at(deadline, &mut *exit).await {
            Ok(status) => return (status.unwrap_or(lost), false),
            Err(_elapsed) => {
                // It may have ended this instant; then there is nobody to kill.
                let killed = process.signal(Signal::KILL.as_raw(), true).is_ok();
                return (exit.await.unwrap_or(lost), killed);
            }
        }
    }
    (exit.await.unwrap_or(lost), false)
}

//! The agent: PID 1 of every sandbox's guest.
//!
//! It boots the guest ([`boot`]), answers on the two ports of the channel
//! ([`control`], [`server`]), makes a clone itself after every spawn ([`resume`]),
//! runs the user's processes ([`process`]) and ends it all ([`shutdown`]).
//!
//! It must outlive whatever its guest does: it is in a cgroup of its own with
//! priority, its memory is locked, and what a freeze needs is open beforehand. It
//! protects nobody from a hostile guest root: the host does not depend on it.

mod access;
mod boot;
mod control;
mod descriptor;
mod epoch;
mod files;
mod filesystem;
mod limits;
mod log;
mod metrics;
mod notify;
mod paths;
mod ports;
mod process;
mod reply;
mod resume;
mod sandbox;
mod server;
mod shutdown;
mod tunnel;
mod users;
mod vport;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pando_wire::channel::{GuestPort, PortControl};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::boot::Bake;
use crate::boot::cgroups::UserCgroup;
use crate::control::{ControlHandler, DataHandler};
use crate::log::{last_words, log};
use crate::sandbox::Sandbox;
use crate::server::{PortKind, Server};

/// Stacks of helper threads: file reads and process starts need little.
const THREAD_STACK_BYTES: usize = 256 << 10;

/// The stack of the data port's thread, on which HTTP is served; only what is touched costs.
const DATA_STACK_BYTES: usize = 2 << 20;

/// Threads for what blocks. A few may hang in a slow disk or a full user memory
/// without stopping the rest.
const MAX_BLOCKING_THREADS: usize = 64;

/// Making a thread costs more than keeping it.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(600);

/// Every process takes three descriptors, every transfer one.
const OPEN_FILES: u64 = 65_536;

/// As `nice` counts.
const HIGHEST_PRIORITY: i32 = -20;

/// See [`HIGHEST_PRIORITY`]; of a thread.
const USUAL_PRIORITY: i32 = 0;

fn main() {
    std::panic::set_hook(Box::new(|panic| {
        last_words(&format!("{panic}"));
    }));
    if std::process::id() != 1 {
        last_words("this program is for PID 1 of a Pando guest");
        return;
    }
    // As PID 1 returns the kernel panics and the VM ends: the host sees that.
    if let Err(error) = run() {
        last_words(&format!("cannot go on: {error:#}"));
    }
}

fn run() -> Result<()> {
    let bake = boot::early()?;
    let cgroup = UserCgroup::create(metrics::memory().total_bytes)?;
    protect_self();
    let sandbox = Arc::new(Sandbox::new(cgroup));
    if bake == Bake::Ready {
        sandbox.set_root(boot::assemble()?);
    }
    new_runtime()?.block_on(serve(sandbox, bake))
}

fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(THREAD_STACK_BYTES)
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .build()
}

/// Keeps the agent alive whatever the guest does. Best effort: a guest without it
/// is still one.
fn protect_self() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        log!("cannot leave the reach of the OOM killer: {error}");
    }
    // Whatever user processes do, the agent runs next.
    if let Err(error) = setpriority_process(None, HIGHEST_PRIORITY) {
        log!("cannot raise the agent's priority: {error}");
    }
    // Only what is touched: locking all of it would cost the whole heap's room.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(flags) {
        log!("cannot lock the agent's memory: {error}");
    }
    let limit = Rlimit {
        current: Some(OPEN_FILES),
        maximum: Some(OPEN_FILES),
    };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        log!("cannot raise the limit on open files: {error}");
    }
}

async fn serve(sandbox: Arc<Sandbox>, bake: Bake) -> Result<()> {
    spawn_signal_tasks(&sandbox)?;
    let control = open("pando.ctl").await?;
    let (opened, data) = oneshot::channel();
    let (ending, data_ended) = oneshot::channel();
    let sandbox_of_data = Arc::clone(&sandbox);
    std::thread::Builder::new()
        .name("data".to_owned())
        .stack_size(DATA_STACK_BYTES)
        .spawn(move || ending.send(serve_data(&sandbox_of_data, opened)))?;
    let data = data.await.context("the data port did not open")?;
    let handler = ControlHandler {
        sandbox: Arc::clone(&sandbox),
        data,
    };
    let control_server = Server::new(&sandbox, PortKind::Control);
    log!("{bake:?} after {} ms", metrics::uptime_ms());
    let control = tokio::spawn(control.run(handler, control_server));
    // A port that can't be used any more is the end: nobody could reach the guest.
    tokio::select! {
        ended = control => ended?.context("the ctl port")?,
        ended = data_ended => ended?.context("the data port")?,
    }
    anyhow::bail!("a port of the channel ended")
}

async fn open(name: &'static str) -> Result<GuestPort> {
    let (reader, writer) = vport::open(name).await.context(name)?;
    Ok(GuestPort::new(reader, writer))
}

/// The data port, to its end, in this thread. It has no more of the CPU than any program of
/// the user's: bulk data must not keep an exec's processes waiting, which the agent's own
/// priority would. The other thread's calls, and a freeze, go before it.
fn serve_data(sandbox: &Arc<Sandbox>, opened: oneshot::Sender<PortControl>) -> Result<()> {
    if let Err(error) = setpriority_process(None, USUAL_PRIORITY) {
        log!("cannot lower the data port's priority: {error}");
    }
    new_runtime()?.block_on(async {
        let data = open("pando.data").await?;
        // Nobody waits for it where the agent is at its end.
        let _ = opened.send(data.control().clone());
        let server = Server::new(sandbox, PortKind::Data);
        Ok(data.run(DataHandler, server).await?)
    })
}

/// Signals to PID 1: ended children, and power-off from inside.
fn spawn_signal_tasks(sandbox: &Arc<Sandbox>) -> Result<()> {
    let mut children = signal(SignalKind::child())?;
    let reaping = Arc::clone(sandbox);
    tokio::spawn(async move {
        loop {
            reaping.processes.reap();
            children.recv().await;
        }
    });
    let off = [
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
        SignalKind::terminate(),
        SignalKind::interrupt(),
    ];
    for kind in off {
        let mut asked = signal(kind)?;
        let sandbox = Arc::clone(sandbox);
        tokio::spawn(async move {
            asked.recv().await;
            shutdown::power_off(&sandbox, shutdown::DEFAULT_GRACE).await;
        });
    }
    Ok(())
}

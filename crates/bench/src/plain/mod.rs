//! What snapshots are compared with: the VM of a sandbox under plain QEMU, kept by `savevm`
//! and brought back by `loadvm`.
//!
//! ```text
//!   a sandbox's QEMU ── its arguments, from /proc ──► rewritten ──► a QEMU of our own
//!   its slot ────────── root, memory, disks, linked ──────────────► the same guest
//!        us ── QMP: savevm, loadvm ──► it        us ── HELLO on `ctl` ──► its agent
//! ```
//!
//! It is loaded from the sandbox's own files, so memory, machine and accelerator are the
//! same. What differs is what a person without Pando would have: no library that tracks
//! writes, a qcow2 disk whose flushes are done, all of it in one process.
//!
//! With a network card that leads to QEMU's own gateway it is what egress is compared with;
//! see [`network`].
//!
//! Limits: where it saves and loads, the guest answers one frame, and runs no program for us.

mod arguments;
mod greeting;
mod network;
mod qcow2;
mod qmp;

pub(crate) use network::{HOST, PlainNetworkVm};

use crate::daemon::DEVICE_STATE;
use crate::session::{Session, Start};
use crate::stats::milliseconds_since;
use crate::{BenchError, procfs};
use arguments::Network;
use greeting::Greeter;
use qmp::Qmp;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// QEMU listens a few hundredths of a second after its start.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// How often we look whether it does.
const LISTEN_PAUSE: Duration = Duration::from_millis(1);

/// One step of a VM that saves half a gigabyte to a slow disk.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// A file's blocks in `stat`.
const BLOCK_BYTES: f64 = 512.0;

/// A VM without Pando.
pub(crate) struct PlainVm {
    files: Files,
    process: Process,
    saved: usize,
}

/// What a QEMU of our own is started with.
struct Files {
    directory: PathBuf,
    /// As after a load, without what says from where.
    arguments: Vec<String>,
    /// Where it saves.
    disk: PathBuf,
}

/// A QEMU that stands still, and the ways to it.
struct Launched {
    child: Child,
    qmp: Qmp,
    ctl: UnixStream,
    data: UnixStream,
}

/// One whose guest is only greeted.
struct Process {
    child: Child,
    qmp: Qmp,
    greeter: Greeter,
    /// Kept open: to the guest it is its host that closes it.
    _data: UnixStream,
}

/// What a `savevm` took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    /// From the command to its answer. The VM stands still for all of it.
    pub(crate) pause_ms: f64,
    /// By how much the disk's file grew.
    pub(crate) mib: f64,
}

/// Makes a sandbox for `load` to make a VM of, and removes it again.
async fn instead_of<V>(
    session: &Session<'_>,
    load: impl AsyncFnOnce(&str) -> io::Result<V>,
) -> Result<V, BenchError> {
    session.await_pool().await?;
    let sandbox = session.make(Start::Auto).await?.id;
    let vm = load(&sandbox).await;
    session.remove(&sandbox).await?;
    session.await_pool().await?;
    vm.map_err(BenchError::Plain)
}

impl PlainVm {
    /// Loads the VM of a sandbox that is made for it and removed again, and lets it run.
    pub(crate) async fn start(session: &Session<'_>, name: &str) -> Result<Self, BenchError> {
        instead_of(session, async |sandbox| {
            Self::like(session, sandbox, name).await
        })
        .await
    }

    async fn like(session: &Session<'_>, sandbox: &str, name: &str) -> io::Result<Self> {
        let files = Files::of(session, sandbox, name, Network::None)?;
        let launched = files.load().await?;
        let mut process = Process::of(launched);
        process.go_on().await?;
        Ok(Self {
            files,
            process,
            saved: 0,
        })
    }

    /// Saves all of it.
    pub(crate) async fn save(&mut self) -> Result<Saved, BenchError> {
        self.try_save().await.map_err(BenchError::Plain)
    }

    async fn try_save(&mut self) -> io::Result<Saved> {
        // Under a new name each time: space that a removed one had would be used again.
        self.saved += 1;
        let command = format!("savevm {}", name_of(self.saved));
        let before = allocated_bytes(&self.files.disk)?;
        let began = Instant::now();
        self.process.qmp.monitor(&command).await?;
        Ok(Saved {
            pause_ms: milliseconds_since(began),
            mib: (allocated_bytes(&self.files.disk)? - before) / f64::from(1 << 20),
        })
    }

    /// Goes back to what was saved last: milliseconds from the command until the guest
    /// answers.
    pub(crate) async fn load(&mut self) -> Result<f64, BenchError> {
        self.try_load().await.map_err(BenchError::Plain)
    }

    async fn try_load(&mut self) -> io::Result<f64> {
        let command = format!("loadvm {}", name_of(self.saved));
        let began = Instant::now();
        self.process.qmp.monitor(&command).await?;
        self.process.greet().await?;
        Ok(milliseconds_since(began))
    }

    /// The same in a new QEMU: milliseconds from its start.
    pub(crate) async fn load_anew(&mut self) -> Result<f64, BenchError> {
        self.try_load_anew().await.map_err(BenchError::Plain)
    }

    async fn try_load_anew(&mut self) -> io::Result<f64> {
        // Two of them must not write one disk.
        self.process.child.kill().await?;
        let mut arguments = self.files.arguments.clone();
        arguments.extend(["-loadvm".to_owned(), name_of(self.saved)]);
        let began = Instant::now();
        self.process = Process::of(Launched::start(&arguments, &self.files.directory).await?);
        self.process.go_on().await?;
        Ok(milliseconds_since(began))
    }

    /// Ends it, and gives its disk's space back.
    pub(crate) async fn end(mut self) {
        let _ = self.process.child.kill().await;
        let _ = fs::remove_dir_all(&self.files.directory);
    }
}

impl Files {
    /// The sandbox's own, but for the disk that is written.
    fn of(session: &Session<'_>, sandbox: &str, name: &str, network: Network) -> io::Result<Self> {
        let directory = session.daemon.scratch(name);
        fs::create_dir(&directory)?;
        let arguments = procfs::arguments(procfs::child_of(session.daemon.shim(sandbox)?)?)?;
        let slot = session.daemon.slot(sandbox);
        let disk = arguments::top_disk(&arguments)
            .and_then(|path| path.strip_prefix(&slot).ok().map(Path::to_owned))
            .ok_or_else(|| io::Error::other("a QEMU whose disk is not in its slot"))?;
        link(&slot, &directory, &disk)?;
        let arguments = arguments::rewrite(arguments, &slot, &directory, network);
        let disk = directory.join(disk);
        qcow2::create(&disk, &directory.join("disk.0"))?;
        Ok(Self {
            directory,
            arguments,
            disk,
        })
    }

    /// A VM as the sandbox was when it was loaded; it does not run yet.
    async fn load(&self) -> io::Result<Launched> {
        let mut incoming = self.arguments.clone();
        incoming.extend(["-incoming".to_owned(), "defer".to_owned()]);
        let mut launched = Launched::start(&incoming, &self.directory).await?;
        let state = self.directory.join(DEVICE_STATE);
        launched.qmp.migrate_incoming(&state).await?;
        Ok(launched)
    }
}

impl Launched {
    async fn start(arguments: &[String], directory: &Path) -> io::Result<Self> {
        for socket in arguments::SOCKETS {
            let _ = fs::remove_file(arguments::socket(directory, socket));
        }
        let (program, arguments) = arguments
            .split_first()
            .ok_or_else(|| io::Error::other("a QEMU without a command line"))?;
        let errors = fs::File::create(directory.join("qemu.log"))?;
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let [qmp, ctl, data] = arguments::SOCKETS.map(|name| arguments::socket(directory, name));
        Ok(Self {
            qmp: Qmp::new(connect(&qmp, &mut child).await?).await?,
            ctl: connect(&ctl, &mut child).await?,
            data: connect(&data, &mut child).await?,
            child,
        })
    }
}

impl Process {
    fn of(launched: Launched) -> Self {
        Self {
            child: launched.child,
            qmp: launched.qmp,
            greeter: Greeter::new(launched.ctl),
            _data: launched.data,
        }
    }

    /// Lets the guest run until it answers.
    async fn go_on(&mut self) -> io::Result<()> {
        self.qmp.cont().await?;
        self.greet().await
    }

    async fn greet(&mut self) -> io::Result<()> {
        match tokio::time::timeout(STEP_LIMIT, self.greeter.greet()).await {
            Ok(answered) => answered,
            Err(_) => Err(io::Error::other("the guest does not answer")),
        }
    }
}

fn name_of(saved: usize) -> String {
    format!("s{saved}")
}

/// What never changes is used as it is; the disk that is written is not.
fn link(slot: &Path, directory: &Path, except: &Path) -> io::Result<()> {
    for file in fs::read_dir(slot)? {
        let name = file?.file_name();
        if name != except {
            fs::hard_link(slot.join(&name), directory.join(&name))?;
        }
    }
    Ok(())
}

fn allocated_bytes(path: &Path) -> io::Result<f64> {
    Ok(fs::metadata(path)?.blocks() as f64 * BLOCK_BYTES)
}

async fn connect(path: &Path, child: &mut Child) -> io::Result<UnixStream> {
    let began = Instant::now();
    loop {
        let error = match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("QEMU ended with {status}")));
        }
        if began.elapsed() > LISTEN_LIMIT {
            return Err(error);
        }
        tokio::time::sleep(LISTEN_PAUSE).await;
    }
}

//! The benchmark's own daemon: started, measured, and gone without a trace.

use crate::{BenchError, DaemonCommand, procfs};
use pando_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// It may first find out whether KVM works.
const START_LIMIT: Duration = Duration::from_secs(60);

/// It ends its connections and closes its index.
const END_LIMIT: Duration = Duration::from_secs(15);

/// A killed process is gone when its memory is given back.
const SWEEP_LIMIT: Duration = Duration::from_secs(10);

/// How often we look whether it is.
const SWEEP_PAUSE: Duration = Duration::from_millis(50);

/// Lines of the log that an error shows.
const LOG_LINES: usize = 15;

/// The file in a VM's slot that it is loaded from.
pub(crate) const DEVICE_STATE: &str = "device-state";

/// A VM of a daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vm {
    pub(crate) shim: u32,
    /// The file's number: those that are loaded from one snapshot share it.
    pub(crate) loaded_from: u64,
}

/// A daemon in a directory of its own.
#[derive(Debug)]
pub(crate) struct Daemon {
    directory: TempDir,
    child: Child,
    /// Its API.
    pub(crate) client: Client,
    /// Its process.
    pub(crate) pid: u32,
}

impl Daemon {
    /// Starts one and waits until it answers.
    pub(crate) async fn start(command: &DaemonCommand) -> Result<Self, BenchError> {
        let directory = make_directory(&command.cache_dir)?;
        let mut child = spawn(command, directory.path()).map_err(|source| BenchError::Daemon {
            reason: source.to_string(),
            log: String::new(),
        })?;
        let failed = |reason: &str| BenchError::Daemon {
            reason: reason.to_owned(),
            log: log_of(directory.path()),
        };
        let pid = child.id().unwrap_or_default();
        let stdout = child.stdout.take().ok_or_else(|| failed("no output"))?;
        let mut line = String::new();
        // Its one line on stdout is where it listens, printed once it answers.
        let mut reader = BufReader::new(stdout);
        let read = tokio::time::timeout(START_LIMIT, reader.read_line(&mut line)).await;
        match read {
            Ok(Ok(length)) if length > 0 => {}
            Ok(_) => return Err(failed("it ended")),
            Err(_) => return Err(failed("it does not answer")),
        }
        let key = fs::read_to_string(directory.path().join("state/admin.key"));
        let key = key.map_err(|error| failed(&format!("its key cannot be read: {error}")))?;
        let client = Client::new(line.trim(), Some(key.trim()))
            .map_err(|error| failed(&error.to_string()))?;
        Ok(Self {
            directory,
            child,
            client,
            pid,
        })
    }

    /// A place for files of the benchmark's.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The process of the shim of a sandbox that did not come from a snapshot.
    pub(crate) fn shim(&self, sandbox: &str) -> io::Result<u32> {
        shim_in(&self.sandboxes().join(sandbox))
    }

    /// Where the files of such a sandbox's VM are.
    pub(crate) fn slot(&self, sandbox: &str) -> PathBuf {
        self.sandboxes().join(sandbox).join("slot")
    }

    /// All VMs, those that wait for a sandbox too.
    pub(crate) fn vms(&self) -> io::Result<Vec<Vm>> {
        let mut vms = Vec::new();
        for directory in fs::read_dir(self.sandboxes())? {
            let directory = directory?.path();
            let loaded_from = fs::metadata(directory.join("slot").join(DEVICE_STATE));
            // One that is being made or removed is none.
            if let (Ok(shim), Ok(file)) = (shim_in(&directory), loaded_from) {
                vms.push(Vm {
                    shim,
                    loaded_from: file.ino(),
                });
            }
        }
        Ok(vms)
    }

    fn sandboxes(&self) -> PathBuf {
        self.scratch("state/v1/sandboxes")
    }

    /// The end of its log, on lines of its own.
    pub(crate) fn log(&self) -> String {
        log_of(self.directory.path())
    }

    /// Ends it and whatever it left, and removes its directory.
    pub(crate) async fn end(mut self) {
        signal(self.pid, Signal::TERM);
        if tokio::time::timeout(END_LIMIT, self.child.wait())
            .await
            .is_err()
        {
            let _ = self.child.kill().await;
        }
        sweep(self.directory.path()).await;
    }
}

/// Kills every process that names this directory or works in it: shims outlive their daemon
/// by design, and their VMs go with them.
async fn sweep(directory: &Path) {
    let began = Instant::now();
    let name = directory.display().to_string();
    while began.elapsed() < SWEEP_LIMIT {
        let mut left = procfs::matching(|line| line.contains(&name)).unwrap_or_default();
        left.extend(procfs::working_in(directory));
        left.retain(|pid| *pid != std::process::id());
        if left.is_empty() {
            return;
        }
        left.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may be gone already.
        let _ = kill_process(pid, signal);
    }
}

/// Where the system puts temporary files, if that is the cache's file system: layers are
/// hard links, and siblings share memory only through the same inode. Else beside the cache.
fn make_directory(cache: &Path) -> Result<TempDir, BenchError> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let temporary = std::env::temp_dir();
    let place = match device(cache) {
        Some(of_cache) if device(&temporary) != Some(of_cache) => cache.to_owned(),
        _ => temporary,
    };
    let failed = |source| BenchError::Directory {
        path: place.clone(),
        source,
    };
    let directory = tempfile::Builder::new()
        .prefix("pando-bench-")
        .tempdir_in(&place)
        .map_err(failed)?;
    // Sandboxes' accounts must be able to pass through.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).map_err(failed)?;
    Ok(directory)
}

fn spawn(command: &DaemonCommand, directory: &Path) -> io::Result<Child> {
    let log = fs::File::create(directory.join("daemon.log"))?;
    Command::new(&command.program)
        .args(&command.arguments)
        .args(["serve", "--listen", "127.0.0.1:0", "--state-dir"])
        .arg(directory.join("state"))
        .env("PANDO_CACHE_DIR", &command.cache_dir)
        .env_remove("PANDO_URL")
        .env_remove("PANDO_API_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        // Ctrl-C is for us: sandboxes are removed before the daemon ends.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// The process that a sandbox's directory names.
fn shim_in(directory: &Path) -> io::Result<u32> {
    let text = fs::read_to_string(directory.join("shim.pid"))?;
    let pid = text
        .split_whitespace()
        .next()
        .and_then(|pid| pid.parse().ok());
    pid.ok_or_else(|| io::Error::other("a process file without a process"))
}

fn log_of(directory: &Path) -> String {
    let text = fs::read_to_string(directory.join("daemon.log")).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    last.iter().map(|line| format!("\n    {line}")).collect()
}

//! The driver of QEMU (8.2 or newer), machine `microvm`.

mod arguments;
mod command_line;
mod config;
mod console;
mod launch;
mod limits;
mod qmp;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pando_sys::memory::GuestMemory;
use pando_sys::readiness::Readiness;
use pando_sys::spawn::Child;
use pando_types::Size;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

pub use arguments::{
    CPU_MODEL_KVM, CPU_MODEL_TCG, DEVICE_SET, TB_SIZE_MIB, TIMER_MULT, machine_properties,
};
pub use command_line::{BakePoint, CommandLine};
pub use config::{Binding, Channels, QemuConfig, Start};
pub use limits::DiskRates;

use crate::error::{LaunchError, VmmError};
use crate::event::{ShutdownReason, VmEvent, VmExit};
use crate::vmm::{PreparedOverlay, RunState, Vmm};
use console::{Log, Tail};
use launch::SIGKILL;
use qmp::Qmp;

/// How long a load may take. It is 3 to 9 ms of work; a host that starts 100
/// VMs on two cores makes one wait for all the others.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two looks at a load, which mostly is done at the second.
const LOAD_POLL: Duration = Duration::from_millis(1);

/// How long the sockets of an ended QEMU are read on: what it said last is in
/// them, and nothing else holds their other ends.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// A running QEMU. Dropping it kills the process.
#[derive(Debug)]
pub struct Qemu {
    child: Arc<Child>,
    qmp: Arc<Qmp>,
    memory: OnceLock<Arc<GuestMemory>>,
    size: Size,
    layers: Vec<String>,
    console: Tail,
    exit: watch::Receiver<Option<VmExit>>,
    disk: Mutex<DiskTop>,
    next_set: AtomicU64,
}

/// Descriptors that QEMU was given under one number.
#[derive(Debug)]
struct DescriptorSet(u64);

impl DescriptorSet {
    /// What QEMU takes for a file's path.
    fn path(&self) -> String {
        format!("/dev/fdset/{}", self.0)
    }
}

fn open(path: &Path, options: &std::fs::OpenOptions) -> Result<File, VmmError> {
    options.open(path).map_err(|source| VmmError::File {
        path: path.to_owned(),
        source,
    })
}

/// The disk layer that is written.
#[derive(Debug)]
struct DiskTop {
    /// Number of its node.
    index: usize,
    path: PathBuf,
    /// Number of the next node, whether or not the last one came into use.
    next: usize,
}

impl Qemu {
    /// Starts a QEMU and waits until it answers. The VM does not run yet.
    ///
    /// QEMU dies with the *thread* that polls this: call it on a runtime's
    /// worker that lives as long as the VM should, not on a blocking pool.
    ///
    /// # Errors
    /// With what QEMU wrote to stderr, where it ended at once.
    pub async fn launch(config: QemuConfig) -> Result<Self, LaunchError> {
        let log = Log::create(&config.console).map_err(|source| LaunchError::File {
            path: config.console.clone(),
            source,
        })?;
        let launched = launch::launch(&config)?;
        let child = Arc::new(launched.child);
        let kill_on_error = KillOnDrop(Some(Arc::clone(&child)));
        let memory = config.start.memory();
        let memory = memory.map(|file| GuestMemory::open(child.pid(), file));

        let (qmp, qmp_task) = Qmp::new(launched.qmp);
        let qmp = Arc::new(qmp);
        let (console, stderr) = (Tail::default(), Tail::default());
        let readers = [
            qmp_task,
            tokio::spawn(console::follow(
                launched.console,
                console.clone(),
                Some(log),
            )),
            tokio::spawn(console::follow(launched.stderr, stderr.clone(), None)),
        ];
        let (exit_sender, mut exit) = watch::channel(None);
        let pidfd = child
            .pidfd()
            .try_clone_to_owned()
            .map_err(LaunchError::Sockets)?;
        let pidfd = Readiness::new(pidfd).map_err(LaunchError::Sockets)?;
        let watcher = Watcher {
            child: Arc::clone(&child),
            qmp: Arc::clone(&qmp),
            console: console.clone(),
            stderr,
        };
        tokio::spawn(watcher.watch(pidfd, readers, exit_sender));

        match qmp.execute("qmp_capabilities", json!({})).await {
            Ok(_) => {}
            Err(VmmError::Ended) => return Err(ended(&mut exit).await),
            Err(error) => return Err(LaunchError::Control(error)),
        }
        let path = config.disk.into_iter().next_back().unwrap_or_default();
        let memory = match memory.transpose()? {
            Some(memory) => OnceLock::from(Arc::new(memory)),
            None => OnceLock::new(),
        };
        kill_on_error.disarm();
        Ok(Self {
            child,
            qmp,
            memory,
            size: config.size,
            layers: launched.layers,
            console,
            exit,
            disk: Mutex::new(DiskTop {
                index: 0,
                path,
                next: 1,
            }),
            next_set: AtomicU64::new(0),
        })
    }

    /// Gives an unbound VM its memory and disks, and makes its devices; it is then where
    /// one that was launched to be loaded is.
    ///
    /// # Errors
    /// A file cannot be used; the VM is of no use then.
    pub async fn bind(&self, binding: &Binding) -> Result<(), VmmError> {
        let malformed = |_| VmmError::Path(binding.memory.clone());
        let memory = arguments::memory(&binding.memory, self.size, false).map_err(malformed)?;
        self.qmp.execute("object-add", memory).await?;
        let backend = json!({
            "path": "/machine", "property": "memory-backend",
            "value": format!("/objects/{}", arguments::MEMORY),
        });
        self.qmp.execute("qom-set", backend).await?;
        let top = utf8(&binding.top)?;
        let nodes =
            arguments::block_nodes(&binding.root, &binding.lower, top).map_err(malformed)?;
        for node in nodes {
            self.qmp.execute("blockdev-add", node).await?;
        }
        self.disk
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .path
            .clone_from(&binding.top);
        self.command("x-exit-preconfig").await?;
        let opened = GuestMemory::open(self.child.pid(), &binding.memory)?;
        // Bound once: QEMU refuses to leave that state again.
        let _ = self.memory.set(Arc::new(opened));
        Ok(())
    }

    /// Gives QEMU descriptors under one path. Its jail lets it open no file for
    /// writing that was not there at its start.
    async fn give(&self, files: &[File]) -> Result<DescriptorSet, VmmError> {
        let set = DescriptorSet(self.next_set.fetch_add(1, Ordering::Relaxed));
        for file in files {
            self.qmp.add_descriptor(set.0, file.as_fd()).await?;
        }
        Ok(set)
    }

    async fn command(&self, command: &'static str) -> Result<(), VmmError> {
        self.qmp.execute(command, json!({})).await.map(drop)
    }

    async fn status(&self) -> Result<String, VmmError> {
        let command = "query-status";
        let answer = self.qmp.execute(command, json!({})).await?;
        let status = answer.get("status").and_then(Value::as_str);
        status
            .map(str::to_owned)
            .ok_or(VmmError::Protocol { command })
    }

    async fn expect_paused(&self, status: String) -> Result<(), VmmError> {
        match run_state(&status) {
            Some(RunState::Paused) => Ok(()),
            _ => Err(VmmError::State {
                wanted: "paused",
                found: status,
            }),
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // The watcher reaps it. One that has ended already is left alone.
        let _ = self.child.kill(SIGKILL);
    }
}

impl Vmm for Qemu {
    async fn load(&self, device_state: &Path) -> Result<(), VmmError> {
        let uri = format!("file:{}", utf8(device_state)?);
        self.qmp
            .execute("migrate-incoming", json!({ "uri": uri }))
            .await?;
        let deadline = Instant::now() + LOAD_TIMEOUT;
        loop {
            let status = self.status().await?;
            if run_state(&status) != Some(RunState::AwaitingLoad) {
                return self.expect_paused(status).await;
            }
            if Instant::now() > deadline {
                return Err(VmmError::State {
                    wanted: "paused",
                    found: status,
                });
            }
            tokio::time::sleep(LOAD_POLL).await;
        }
    }

    async fn cont(&self) -> Result<(), VmmError> {
        self.command("cont").await
    }

    async fn stop(&self) -> Result<(), VmmError> {
        self.command("stop").await
    }

    async fn run_state(&self) -> Result<RunState, VmmError> {
        let status = self.status().await?;
        run_state(&status).ok_or(VmmError::State {
            wanted: "a known state",
            found: status,
        })
    }

    async fn save_device_state(&self, path: &Path) -> Result<(), VmmError> {
        self.expect_paused(self.status().await?).await?;
        let file = open(path, File::options().write(true).create_new(true))?;
        let set = self.give(&[file]).await?;
        // Not live: a live save would also hand the disks over to another QEMU.
        let arguments = json!({ "filename": set.path(), "live": false });
        let saved = self
            .qmp
            .execute("xen-save-devices-state", arguments)
            .await
            .map(drop);
        self.qmp
            .execute("remove-fd", json!({ "fdset-id": set.0 }))
            .await?;
        saved
    }

    async fn prepare_disk_overlay(&self, path: &Path) -> Result<PreparedOverlay, VmmError> {
        let index = {
            let mut top = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
            top.next += 1;
            top.next - 1
        };
        // Both ways: once sealed, QEMU opens the layer again to read it only.
        let write = open(path, File::options().read(true).write(true))?;
        let read = open(path, File::options().read(true))?;
        let set = self.give(&[write, read]).await?;
        let node = arguments::disk_node(index);
        let overlay = PreparedOverlay {
            index,
            descriptors: set.0,
            path: path.to_owned(),
        };
        // Without a lower layer: the switch below puts it on the current one.
        for node in arguments::disk_layer(&node, &set.path(), None, true) {
            if let Err(error) = self.qmp.execute("blockdev-add", node).await {
                drop(self.discard_disk_overlay(overlay).await);
                return Err(error);
            }
        }
        Ok(overlay)
    }

    async fn discard_disk_overlay(&self, overlay: PreparedOverlay) -> Result<(), VmmError> {
        let node = arguments::disk_node(overlay.index);
        let mut outcome = Ok(());
        // The format node holds the file node. Either may not have come to be.
        for node in [node.clone(), arguments::file_node(&node)] {
            let deleted = self
                .qmp
                .execute("blockdev-del", json!({ "node-name": node }));
            outcome = outcome.and(deleted.await.map(drop));
        }
        let set = json!({ "fdset-id": overlay.descriptors });
        outcome.and(self.qmp.execute("remove-fd", set).await.map(drop))
    }

    async fn switch_disk_overlay(&self, overlay: PreparedOverlay) -> Result<PathBuf, VmmError> {
        let node = {
            let top = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
            arguments::disk_node(top.index)
        };
        let arguments = json!({ "node": node, "overlay": arguments::disk_node(overlay.index) });
        self.qmp.execute("blockdev-snapshot", arguments).await?;
        let mut top = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        top.index = overlay.index;
        Ok(std::mem::replace(&mut top.path, overlay.path))
    }

    fn guest_memory(&self) -> Result<Arc<GuestMemory>, VmmError> {
        self.memory.get().cloned().ok_or_else(|| VmmError::State {
            wanted: "bound",
            found: "unbound".to_owned(),
        })
    }

    fn pid(&self) -> u32 {
        self.child.pid()
    }

    fn layers(&self) -> &[String] {
        &self.layers
    }

    fn subscribe(&self) -> broadcast::Receiver<VmEvent> {
        self.qmp.subscribe()
    }

    async fn exited(&self) -> VmExit {
        wait_for_exit(&mut self.exit.clone()).await
    }

    fn console_tail(&self) -> String {
        self.console.text()
    }

    fn kill(&self) {
        // One that has ended already is as good.
        let _ = self.child.kill(SIGKILL);
    }

    async fn quit(&self, grace: Duration) -> VmExit {
        // An error means that it has ended, or will be killed below.
        let asked = async {
            let _ = self.command("quit").await;
            self.exited().await
        };
        if let Ok(exit) = tokio::time::timeout(grace, asked).await {
            return exit;
        }
        let _ = self.child.kill(SIGKILL);
        self.exited().await
    }
}

fn utf8(path: &Path) -> Result<&str, VmmError> {
    path.to_str().ok_or_else(|| VmmError::Path(path.to_owned()))
}

fn run_state(status: &str) -> Option<RunState> {
    match status {
        "running" => Some(RunState::Running),
        // `postmigrate` and the others are the paused VM's history.
        "paused" | "prelaunch" | "postmigrate" | "finish-migrate" | "save-vm" => {
            Some(RunState::Paused)
        }
        "inmigrate" => Some(RunState::AwaitingLoad),
        "io-error" => Some(RunState::IoError),
        "shutdown" => Some(RunState::Shutdown),
        _ => None,
    }
}

/// Kills a QEMU whose start did not come to its end.
struct KillOnDrop(Option<Arc<Child>>);

impl KillOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(child) = &self.0 {
            let _ = child.kill(SIGKILL);
        }
    }
}

/// Waits for a QEMU's end and tells it with everything it said last.
struct Watcher {
    child: Arc<Child>,
    qmp: Arc<Qmp>,
    console: Tail,
    stderr: Tail,
}

impl Watcher {
    async fn watch(
        self,
        pidfd: Readiness,
        readers: [JoinHandle<()>; 3],
        sender: watch::Sender<Option<VmExit>>,
    ) {
        let exit = loop {
            match self.child.try_wait() {
                Ok(Some(exit)) => break exit,
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, "QEMU was reaped by somebody else");
                    break pando_sys::spawn::ChildExit::Signal(0);
                }
            }
            if pidfd.readable().await.is_err() {
                return; // The runtime shuts down.
            }
        };
        let drained = async {
            for reader in readers {
                let _ = reader.await;
            }
        };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
        let shutdown = self.qmp.shutdown();
        // A panic restarts the guest; words on the console without that are only words.
        let restarted = shutdown == Some(ShutdownReason::GuestReset);
        let end = VmExit {
            exit,
            shutdown,
            panic: self.console.panic().filter(|_| restarted),
            stderr: self.stderr.text(),
        };
        sender.send_replace(Some(end));
    }
}

async fn wait_for_exit(exit: &mut watch::Receiver<Option<VmExit>>) -> VmExit {
    loop {
        if let Some(end) = exit.borrow_and_update().clone() {
            return end;
        }
        if exit.changed().await.is_err() {
            // The watcher never ends without sending, unless the runtime does,
            // and then nobody is left to be told.
            std::future::pending::<()>().await;
        }
    }
}

async fn ended(exit: &mut watch::Receiver<Option<VmExit>>) -> LaunchError {
    let end = wait_for_exit(exit).await;
    LaunchError::Ended {
        exit: end.exit.to_string(),
        stderr: end.stderr.trim().to_owned(),
    }
}

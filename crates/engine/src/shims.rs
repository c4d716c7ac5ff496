//! Shim processes: started, found again, ended.

use crate::trace;
use crate::{EngineError, Interruption, groups};
use pando_shim::client::ShimClient;
use pando_shim::spec::ShimSpec;
use pando_store::{SandboxDir, read_untrusted};
use pando_sys::jail::landlock::{Access, Policy, Ruleset};
use pando_sys::jail::seccomp::Program;
use pando_sys::jail::{Layer, Layers};
use pando_sys::readiness::Readiness;
use pando_sys::spawn::{Child, ChildExit, Identity, Limit, Spawn};
use pando_wire::shim::{ClaimRequest, ReadyRequest, ReadyResponse, State};
use rustix::process::{Pid, Signal};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tracing::Instrument as _;

/// Descriptors of a shim: its own few, a handful for the VMM, and the gateway's connections.
const OPEN_FILES: u64 = 4096;

/// How often, and after which pauses, it is looked how a shim ended whose socket is closed.
const EXIT_LOOKS: u32 = 20;
const EXIT_PAUSE: Duration = Duration::from_millis(10);

/// How long a killed process may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// How shims are started on this host.
#[derive(Clone, Debug)]
pub(crate) struct ShimStarter {
    /// The program that has the `shim` command: ours.
    pub(crate) program: PathBuf,
    /// The VMM.
    pub(crate) qemu: PathBuf,
    /// The library for the VMM with which the kernel tracks what a VM writes.
    pub(crate) preload: Option<PathBuf>,
    /// What is put on: all layers, but where a test shows what one of them stops.
    pub(crate) jail: Layers,
}

/// A shim that runs.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) client: ShimClient,
    pub(crate) process: Option<ShimProcess>,
    /// What was done to the sandbox that cut off the calls to this shim.
    interrupted: OnceLock<Interruption>,
    /// How the process ended, if it was started by this daemon.
    exit: Arc<OnceLock<ChildExit>>,
}

/// Names a process for as long as the host is up: a number alone may be another's later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShimProcess {
    pid: u32,
    /// In clock ticks since the host's start, from `/proc/PID/stat`.
    started_ticks: u64,
}

impl ShimStarter {
    /// Starts a shim in `dir` as `identity` and waits until it listens. The spec is
    /// written first; the socket is made here, so that no time passes before it is there.
    pub(crate) async fn start(
        &self,
        dir: &SandboxDir,
        spec: &ShimSpec,
        identity: Option<Identity>,
    ) -> Result<Shim, EngineError> {
        let identity = identity.filter(|_| self.jail.has(Layer::Account));
        let failed = |what: &str, error: &dyn std::error::Error| {
            EngineError::SpawnFailed(format!("{what}: {error}"))
        };
        let text =
            serde_json::to_vec_pretty(spec).map_err(|error| EngineError::internal(&error))?;
        write_whole(&dir.spec(), &text)
            .map_err(|error| no_space_or(&error, "cannot write the spec"))?;
        drop(fs::remove_file(dir.ended()));
        let listener = listen(&dir.socket())
            .map_err(|error| failed("cannot make the shim's socket", &error))?;
        if let Some(identity) = identity {
            give_to(dir, identity)
                .map_err(|error| failed("cannot hand the directory over", &error))?;
        }
        let group = groups::create(dir, spec.memory_mib);
        let child = self.spawn(dir, listener, identity, group)?;
        let process = ShimProcess::of(child.pid());
        if let Some(process) = process {
            let written = write_whole(&dir.process(), process.to_line().as_bytes());
            if let Err(error) = written {
                // Nobody would find it again.
                process.kill().await;
                drop(child.try_wait());
                return Err(no_space_or(&error, "cannot write the shim's process id"));
            }
        }
        let exit = Arc::new(OnceLock::new());
        tokio::spawn(reap(child, Arc::clone(&exit)));
        let client = ShimClient::connect(&dir.socket())
            .await
            .map_err(|error| failed("the shim does not answer", &error))?;
        Ok(Shim {
            exit,
            ..Shim::new(client, process)
        })
    }

    fn spawn(
        &self,
        dir: &SandboxDir,
        listener: OwnedFd,
        identity: Option<Identity>,
        group: Option<OwnedFd>,
    ) -> Result<Child, EngineError> {
        let failed = |error: &dyn std::error::Error| {
            EngineError::SpawnFailed(format!(
                "cannot start the shim: {}",
                pando_shim::error_chain(error)
            ))
        };
        let log: OwnedFd = open_log(&dir.log())
            .map_err(|error| no_space_or(&error, "cannot write the shim's log"))?
            .into();
        let log_too = log.try_clone().map_err(|error| failed(&error))?;
        let mut spawn = Spawn::new(&self.program)
            .args(["shim", "."])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("RUST_BACKTRACE", "1")
            .current_dir(dir.path())
            .descriptor(log, 1)
            .descriptor(log_too, 2)
            .descriptor(listener, pando_shim::LISTENER_FD)
            .new_session()
            .limit(Limit::OpenFiles(OPEN_FILES));
        if let Ok(fault) = std::env::var("PANDO_FAULT") {
            spawn = spawn.env("PANDO_FAULT", fault);
        }
        if let Some(identity) = identity {
            spawn = spawn.identity(identity);
        }
        if let Some(group) = group {
            spawn = spawn.group(group);
        }
        if self.jail.has(Layer::Seccomp) {
            spawn = spawn.seccomp(Program::shim().map_err(|error| failed(&error))?);
        }
        let ruleset = self.ruleset(dir).map_err(|error| failed(&error))?;
        let spawn = spawn.layers(self.jail).landlock(ruleset);
        spawn.spawn().map_err(|error| failed(&error))
    }

    /// What a shim may reach: its own directory, the programs and libraries it and the
    /// VMM need, what it must know of the VMM's memory; later the network.
    fn ruleset(
        &self,
        dir: &SandboxDir,
    ) -> Result<Ruleset, pando_sys::jail::landlock::RulesetError> {
        let mut policy = Policy::new()
            .allow(&dir.spec(), Access::Read)
            .allow(&dir.slot(), Access::Manage)
            .allow(&dir.shim(), Access::Manage)
            .allow(&self.program, Access::Execute)
            .allow(&self.qemu, Access::Execute)
            .allow(Path::new("/proc"), Access::Read)
            .allow(Path::new("/dev/null"), Access::Device)
            .allow_if_present(Path::new("/dev/kvm"), Access::Device)
            .allow_if_present(Path::new("/dev/urandom"), Access::Read)
            .allow_tcp();
        if let Some(library) = &self.preload {
            policy = policy.allow_if_present(library, Access::Execute);
        }
        for path in [
            "/lib",
            "/lib64",
            "/usr/lib",
            "/usr/lib64",
            "/usr/libexec",
            "/usr/local/lib",
        ] {
            policy = policy.allow_if_present(Path::new(path), Access::Execute);
        }
        for path in [
            "/etc/ld.so.cache",
            "/usr/share/qemu",
            "/usr/share/seabios",
            "/usr/local/share/qemu",
            "/sys/devices/system/cpu",
        ] {
            policy = policy.allow_if_present(Path::new(path), Access::Read);
        }
        Ruleset::new(&policy, self.jail)
    }

    /// Names of what is around a shim, beside its account, which its VMM has too.
    pub(crate) fn layers(&self) -> Vec<String> {
        let landlock = Layer::landlock;
        let present = |layer: &Layer| match landlock(*layer) {
            // The account is named with its number.
            0 => *layer != Layer::Account,
            // TCP is left to it: it is the sandbox's way to the network.
            version => version <= pando_sys::jail::landlock::abi() && *layer != Layer::NoTcp,
        };
        Layer::all()
            .filter(|layer| self.jail.has(*layer) && present(layer))
            .map(|layer| format!("shim-{}", layer.name()))
            .collect()
    }

    /// Names of the layers that are left off.
    pub(crate) fn loosened(&self) -> Vec<String> {
        let off = self.jail.missing();
        off.map(|layer| layer.name().to_owned()).collect()
    }
}

impl Shim {
    fn new(client: ShimClient, process: Option<ShimProcess>) -> Self {
        Self {
            client,
            process,
            interrupted: OnceLock::new(),
            exit: Arc::default(),
        }
    }

    /// From now on calls that fail were cut off by this.
    pub(crate) fn interrupt(&self, by: Interruption) {
        // The first is what their callers are told.
        let _ = self.interrupted.set(by);
    }

    /// What cut off calls to it, if anything did.
    pub(crate) fn interrupted(&self) -> Option<Interruption> {
        self.interrupted.get().copied()
    }

    /// That it died, and how as far as this daemon can know.
    pub(crate) async fn how_it_died(&self) -> String {
        // Its socket is closed a moment before it can be waited for.
        for _ in 0..EXIT_LOOKS {
            if let Some(exit) = self.exit.get() {
                return format!("its shim died: {exit}");
            }
            tokio::time::sleep(EXIT_PAUSE).await;
        }
        "its shim died".to_owned()
    }

    /// Finds a shim that an earlier daemon started.
    pub(crate) async fn find(dir: &SandboxDir) -> Option<Self> {
        let process = ShimProcess::read(dir).filter(|process| process.is_alive());
        let client = ShimClient::connect(&dir.socket()).await.ok()?;
        Some(Self::new(client, process))
    }

    /// Makes the slot that it is a sandbox, which answers then.
    pub(crate) async fn claim(&self, request: ClaimRequest) -> Result<ReadyResponse, EngineError> {
        let span = tracing::info_span!(target: pando_trace::TARGET, "claim");
        let claiming = async {
            let from = SystemTime::now();
            let ready = self.client.rpc.claim(request).await;
            let ready = ready.map_err(went_away)?.into_owned();
            if ready.state != State::STATE_RUNNING {
                return Err(EngineError::not_spawned(ready.cause));
            }
            trace::ready(from, &ready);
            Ok(ready)
        };
        claiming.instrument(span).await
    }

    /// Waits until the sandbox answers or is known not to.
    pub(crate) async fn ready(&self) -> Result<ReadyResponse, EngineError> {
        let ready = self.client.rpc.ready(ReadyRequest::default()).await;
        ready
            .map(connectrpc::client::UnaryResponse::into_owned)
            .map_err(went_away)
    }
}

/// A shim that does not answer.
pub(crate) fn went_away(error: connectrpc::ConnectError) -> EngineError {
    let message = error.message;
    EngineError::SpawnFailed(message.unwrap_or_else(|| "the shim went away".to_owned()))
}

impl ShimProcess {
    fn of(pid: u32) -> Option<Self> {
        Some(Self {
            pid,
            started_ticks: started_ticks(pid)?,
        })
    }

    /// The process that was written down in a sandbox's directory.
    pub(crate) fn read(dir: &SandboxDir) -> Option<Self> {
        let text = fs::read_to_string(dir.process()).ok()?;
        let (pid, ticks) = text.trim().split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok()?,
            started_ticks: ticks.parse().ok()?,
        })
    }

    fn to_line(self) -> String {
        format!("{} {}\n", self.pid, self.started_ticks)
    }

    /// Its number, as long as that is its own.
    pub(crate) fn pid(self) -> Option<u32> {
        self.is_alive().then_some(self.pid)
    }

    /// The numbers of what it has started.
    pub(crate) fn children_pids(self) -> impl Iterator<Item = u32> {
        self.children().into_iter().map(|child| child.pid)
    }

    fn is_alive(self) -> bool {
        started_ticks(self.pid) == Some(self.started_ticks)
    }

    /// Ends the shim of a sandbox's directory, and with it the VM, if there is one.
    pub(crate) async fn end(dir: &SandboxDir) {
        if let Some(process) = Self::read(dir) {
            process.kill().await;
        }
        groups::remove(dir).await;
    }

    /// Kills it, and with it its VMM, and waits until both are gone.
    pub(crate) async fn kill(self) {
        if !self.is_alive() {
            return;
        }
        // Looked up while it is their parent; they get their signal when it dies.
        let all = [vec![self], self.children()].concat();
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // Gone already is as good.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let deadline = tokio::time::Instant::now() + KILL_WAIT;
        let any_alive = || all.iter().any(|process| process.is_alive());
        while any_alive() && tokio::time::Instant::now() < deadline {
            // Not our child after a restart of the daemon: there is nothing to wait on.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What it has started: its VMM. Each of its threads has its own list.
    fn children(self) -> Vec<Self> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        let lists = threads
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        lists
            .flat_map(|list| {
                let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
                pids.filter_map(Self::of).collect::<Vec<_>>()
            })
            .collect()
    }
}

/// Waits for a child's end, so that it leaves no zombie.
async fn reap(child: Child, exit: Arc<OnceLock<ChildExit>>) {
    if let Ok(ended) = child.pidfd().try_clone_to_owned().and_then(Readiness::new) {
        drop(ended.readable().await);
    }
    if let Ok(Some(ended)) = child.try_wait() {
        let _ = exit.set(ended);
    }
}

/// Bytes of a log that are shown when a VM did not come up.
const TAIL_BYTES: u64 = 4 << 10;

/// Puts the end of a sandbox's logs into ours, before they are removed with it.
pub(crate) fn log_last_words(dir: &SandboxDir) {
    for path in [dir.log(), dir.console()] {
        let end = read_untrusted(&path, TAIL_BYTES).unwrap_or_default();
        // A guest writes the console: its control characters are not for our terminal.
        let text = String::from_utf8_lossy(&end).replace(|c: char| c.is_control() && c != '\n', "");
        if !text.trim().is_empty() {
            tracing::warn!(log = %path.display(), "{}", text.trim());
        }
    }
}

/// Field 22 of `/proc/PID/stat`; `None` when there is no such process or it is a zombie.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    drop(fs::remove_file(path));
    // A path longer than sun_path (108) would be refused: go through the directory's descriptor.
    let (parent, name) = (
        path.parent().unwrap_or(Path::new("/")),
        path.file_name().unwrap_or_default(),
    );
    let directory = File::open(parent)?;
    let short = Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(name);
    Ok(UnixListener::bind(short)?.into())
}

fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    fs::rename(&temporary, path)
}

/// Gives a sandbox's two directories and what it may write in them to its account; the
/// links to layers stay the daemon's.
fn give_to(dir: &SandboxDir, identity: Identity) -> io::Result<()> {
    // Never through a link: the sandbox's account could have put one there.
    let give = |path: &Path| lchown(path, Some(identity.uid), Some(identity.gid));
    // Its environment may hold secrets: for this account's eyes only, and not to be changed.
    lchown(dir.spec(), Some(0), Some(identity.gid))?;
    fs::set_permissions(dir.spec(), fs::Permissions::from_mode(0o640))?;
    for place in [dir.slot(), dir.shim()] {
        give(&place)?;
        for entry in fs::read_dir(&place)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_file() && metadata.permissions().readonly() {
                continue;
            }
            give(&entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn no_space_or(error: &io::Error, what: &str) -> EngineError {
    if error.kind() == io::ErrorKind::StorageFull {
        EngineError::NoSpace(what.to_owned())
    } else {
        EngineError::SpawnFailed(format!("{what}: {error}"))
    }
}

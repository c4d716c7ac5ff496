//! Container runtimes: which are here, and how long they take.

use super::bundle;
use crate::stats::milliseconds_since;
use crate::{BenchError, procfs};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

/// A container of these starts in a fraction of a second, on a busy machine in a few.
const RUN_LIMIT: Duration = Duration::from_secs(30);

/// Longer than a benchmark, so that a container never ends in the middle of one.
const LIFE: &str = "100000";

/// After this long a runtime that is at work is one that hangs.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// How often we look whether it still is.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);

/// The bundle whose program ends at once.
const SHORT: &str = "short";

/// The flag of all runtimes that leaves a container running.
const DETACH: &str = "--detach";

/// What is known of a runtime before it is tried.
struct Kind {
    program: &'static str,
    run: &'static str,
    exec: &'static str,
    options: &'static [&'static str],
    what: &'static str,
}

/// The runtimes that are tried.
const KINDS: [Kind; 4] = [
    Kind {
        program: "crun",
        run: "crun run",
        exec: "crun exec",
        options: &[],
        what: "an ordinary container, by a runtime in C",
    },
    Kind {
        program: "runc",
        run: "runc run",
        exec: "runc exec",
        options: &[],
        what: "an ordinary container, by Docker's runtime",
    },
    Kind {
        program: "runsc",
        run: "runsc run",
        exec: "runsc exec",
        options: &["--network=none", "--ignore-cgroups"],
        what: "gVisor, with the platform that it chooses itself",
    },
    Kind {
        program: "runsc",
        run: "runsc run (ptrace)",
        exec: "runsc exec (ptrace)",
        options: &["--network=none", "--ignore-cgroups", "--platform=ptrace"],
        what: "gVisor with its platform ptrace",
    },
];

/// The runtimes of this host, and where their containers are kept.
#[derive(Debug)]
pub(crate) struct Containers {
    pub(crate) runtimes: Vec<Runtime>,
    /// Below which all of it is.
    directory: PathBuf,
    /// A mount namespace in which crun finds cgroups as it wants them; the process that is held keeps it.
    namespace: Option<Child>,
}

/// A runtime, or the reason why it cannot be used.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// `crun run`.
    pub(crate) run_name: &'static str,
    /// `crun exec`.
    pub(crate) exec_name: &'static str,
    /// What it is, with its version.
    pub(crate) what: String,
    /// Why it cannot be used.
    pub(crate) missing: Option<String>,
    /// The command up to its verb.
    command: Vec<OsString>,
    /// What it complains of. A file, since a container that stays would keep a pipe open.
    complaints: PathBuf,
    /// Runs `/bin/true`.
    short: PathBuf,
    /// Runs for long.
    long: PathBuf,
    containers: AtomicU32,
}

/// A container that runs, for programs to be run in.
#[derive(Debug)]
pub(crate) struct Running {
    id: String,
}

impl Containers {
    /// Nothing is compared with containers.
    pub(crate) fn none() -> Self {
        Self {
            runtimes: Vec::new(),
            directory: PathBuf::new(),
            namespace: None,
        }
    }

    /// Looks for runtimes and tries each once. All that they leave is below `directory`.
    pub(crate) async fn find(&mut self, directory: &Path) {
        directory.clone_into(&mut self.directory);
        let bundles = make_bundles(directory);
        for (index, kind) in KINDS.iter().enumerate() {
            let state = directory.join(format!("state-{index}"));
            let mut runtime = Runtime::new(kind, &state);
            match &bundles {
                Ok((short, long)) => {
                    runtime.short.clone_from(short);
                    runtime.long.clone_from(long);
                    self.try_out(&mut runtime, kind).await;
                }
                Err(error) => runtime.missing = Some(format!("no container can be made: {error}")),
            }
            self.runtimes.push(runtime);
        }
    }

    /// Removes what an interruption left. A runtime that is killed leaves cgroups behind, so
    /// those that are at work end first, which takes them a moment.
    pub(crate) async fn clean(&self) {
        let began = Instant::now();
        while began.elapsed() < SETTLE_LIMIT && self.is_at_work() {
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        futures::future::join_all(self.runtimes.iter().map(Runtime::clean)).await;
    }

    /// Whether a container is being started, or a short one runs.
    fn is_at_work(&self) -> bool {
        if self.directory.as_os_str().is_empty() {
            return false;
        }
        let short = self.directory.join(SHORT).display().to_string();
        let ours = self.directory.display().to_string();
        let at_work =
            |line: &str| line.contains(&short) || (line.contains(&ours) && line.contains(DETACH));
        procfs::matching(at_work).is_ok_and(|found| !found.is_empty())
    }

    async fn try_out(&mut self, runtime: &mut Runtime, kind: &Kind) {
        runtime.missing = runtime.try_once().await.err();
        let Some(reason) = &runtime.missing else {
            return;
        };
        // crun refuses hosts with both versions of cgroups mounted, which other runtimes do not.
        if kind.program != "crun" || !reason.contains("cgroup") {
            return;
        }
        let Ok((namespace, pid)) = cgroup2_namespace().await else {
            return;
        };
        let enter = ["nsenter", "--mount", "--target", &pid.to_string(), "--"].map(OsString::from);
        runtime.command.splice(0..0, enter);
        runtime.missing = runtime.try_once().await.err();
        if runtime.missing.is_none() {
            runtime
                .what
                .push_str(", entered by `nsenter` into a mount namespace with cgroup 2 alone");
            self.namespace = Some(namespace);
        }
    }
}

impl Runtime {
    fn new(kind: &Kind, state: &Path) -> Self {
        let mut command = vec![
            OsString::from(kind.program),
            OsString::from("--root"),
            state.into(),
        ];
        command.extend(kind.options.iter().map(OsString::from));
        Self {
            run_name: kind.run,
            exec_name: kind.exec,
            what: kind.what.to_owned(),
            missing: None,
            command,
            complaints: state.with_extension("stderr"),
            short: PathBuf::new(),
            long: PathBuf::new(),
            containers: AtomicU32::new(0),
        }
    }

    /// A container from nothing, to the end of `/bin/true`: milliseconds.
    pub(crate) async fn run(&self) -> Result<f64, BenchError> {
        let id = self.next_id();
        self.timed(&["run", "--bundle"], &[self.short.as_os_str(), id.as_ref()])
            .await
    }

    /// Several at once: milliseconds of each.
    pub(crate) async fn run_at_once(&self, count: usize) -> Result<Vec<f64>, BenchError> {
        futures::future::try_join_all((0..count).map(|_| self.run())).await
    }

    /// Starts a container that stays.
    pub(crate) async fn start(&self) -> Result<Running, BenchError> {
        let id = self.next_id();
        let arguments = [self.long.as_os_str(), id.as_ref()];
        self.timed(&["run", DETACH, "--bundle"], &arguments).await?;
        Ok(Running { id })
    }

    /// `/bin/true` in a container that runs: milliseconds.
    pub(crate) async fn exec(&self, container: &Running) -> Result<f64, BenchError> {
        self.timed(&["exec"], &[container.id.as_ref(), "/bin/true".as_ref()])
            .await
    }

    /// Bytes into a file of a container that runs, through `dd`: milliseconds.
    pub(crate) async fn upload(&self, to: &Running, bytes: &[u8]) -> Result<f64, BenchError> {
        let mut command = self.verb(&["exec"]);
        command.args([&*to.id, "/bin/dd", "of=/tmp/file", "bs=1M", "status=none"]);
        command.stdin(Stdio::piped());
        let work = async {
            let mut child = command.spawn()?;
            let stdin = child.stdin.take();
            let mut stdin = stdin.ok_or_else(|| io::Error::other("no stdin"))?;
            stdin.write_all(bytes).await?;
            drop(stdin);
            child.wait().await
        };
        self.checked(work).await
    }

    /// The same back out: milliseconds.
    pub(crate) async fn download(&self, from: &Running) -> Result<f64, BenchError> {
        let mut command = self.verb(&["exec"]);
        command.args([&*from.id, "/bin/dd", "if=/tmp/file", "bs=1M", "status=none"]);
        command.stdout(Stdio::piped());
        let work = async {
            let mut child = command.spawn()?;
            if let Some(mut stdout) = child.stdout.take() {
                tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await?;
            }
            child.wait().await
        };
        self.checked(work).await
    }

    /// Removes a container that [`Runtime::start`] made. What is left is not our concern.
    pub(crate) async fn remove(&self, container: &Running) {
        let mut command = self.verb(&["delete", "--force", &container.id]);
        let _ = tokio::time::timeout(RUN_LIMIT, command.status()).await;
    }

    /// Removes whatever containers are left.
    async fn clean(&self) {
        let listed = self
            .verb(&["list", "--quiet"])
            .stdout(Stdio::piped())
            .output();
        let Ok(Ok(output)) = tokio::time::timeout(RUN_LIMIT, listed).await else {
            return;
        };
        for id in String::from_utf8_lossy(&output.stdout).lines() {
            let id = id.to_owned();
            self.remove(&Running { id }).await;
        }
    }

    fn next_id(&self) -> String {
        let number = self.containers.fetch_add(1, Ordering::Relaxed);
        format!("pando-bench-{}-{number}", std::process::id())
    }

    /// Whether it is here and works, and which version it is.
    async fn try_once(&mut self) -> Result<(), String> {
        let output = |mut command: Command| async move {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            match tokio::time::timeout(RUN_LIMIT, command.output()).await {
                Ok(Ok(output)) => Ok(output),
                Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                    Err("not installed".to_owned())
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("it hangs".to_owned()),
            }
        };
        let version = output(self.verb(&["--version"])).await?;
        let id = self.next_id();
        let mut run = self.verb(&["run", "--bundle"]);
        run.arg(&self.short).arg(&id);
        let ran = output(run).await?;
        if !ran.status.success() {
            let said = last_line(&ran.stderr).unwrap_or_else(|| ran.status.to_string());
            return Err(format!("it does not work here: {said}"));
        }
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        if let Some(version) = text.lines().next() {
            self.what.push_str(&format!(" ({version})"));
        }
        Ok(())
    }

    /// The command with its verb, quiet. Ctrl-C on the terminal is not for it.
    fn verb(&self, verb: &[&str]) -> Command {
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().cloned().unwrap_or_default());
        command.args(words).args(verb).process_group(0);
        let complaints = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.complaints);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints.map_or_else(|_| Stdio::null(), Stdio::from));
        command
    }

    /// From the start of the process to its end, in milliseconds.
    async fn timed(&self, verb: &[&str], rest: &[&std::ffi::OsStr]) -> Result<f64, BenchError> {
        let mut command = self.verb(verb);
        command.args(rest);
        self.checked(command.status()).await
    }

    /// A process that must end well: how long that took, in milliseconds.
    async fn checked(
        &self,
        work: impl Future<Output = io::Result<ExitStatus>>,
    ) -> Result<f64, BenchError> {
        let failed = |reason: String| BenchError::Container {
            runtime: self.run_name,
            reason,
        };
        let began = Instant::now();
        match tokio::time::timeout(RUN_LIMIT, work).await {
            Ok(Ok(status)) if status.success() => Ok(milliseconds_since(began)),
            Ok(Ok(status)) => {
                let said = fs::read(&self.complaints).unwrap_or_default();
                let said = last_line(&said).map_or_else(String::new, |line| format!(": {line}"));
                Err(failed(format!("{status}{said}")))
            }
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("it hangs".to_owned())),
        }
    }
}

/// One that ends at once and one that stays.
fn make_bundles(directory: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let root = directory.join("root");
    fs::create_dir_all(&root)?;
    bundle::make_root(&root)?;
    let short = bundle::make(directory.join(SHORT), &root, &["/bin/true"])?;
    let long = bundle::make(directory.join("long"), &root, &["/bin/sleep", LIFE])?;
    Ok((short, long))
}

/// A process that holds a mount namespace with nothing but cgroup 2 at the usual place.
async fn cgroup2_namespace() -> io::Result<(Child, u32)> {
    let script = "mount -t cgroup2 none /sys/fs/cgroup && echo && exec sleep 100000";
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // It is needed to clean up after Ctrl-C.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().unwrap_or_default();
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut reader = BufReader::new(stdout);
        let ready = tokio::time::timeout(RUN_LIMIT, reader.read_line(&mut line)).await;
        ready.map_err(|_| io::Error::other("it hangs"))??;
    }
    match line.is_empty() {
        true => Err(io::Error::other("it cannot be mounted")),
        false => Ok((child, pid)),
    }
}

/// The last line with anything in it.
fn last_line(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.map(|line| line.trim().to_owned())
}

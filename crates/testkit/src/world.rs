//! Starting and ending a daemon of a test's own.

use crate::api::Api;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A daemon answers within a second; a busy machine may need many.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The program under test: `PANDO_BIN`, else the release build of this workspace.
pub fn pando() -> PathBuf {
    std::env::var_os("PANDO_BIN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/pando"),
        PathBuf::from,
    )
}

/// How a world differs from the usual one.
#[derive(Default)]
pub struct Options {
    /// Use this directory for state instead of a fresh one; it is not removed.
    pub state_dir: Option<PathBuf>,
    /// Environment of the daemon.
    pub env: Vec<(String, String)>,
    /// Do not make the template `base`.
    pub without_template: bool,
    /// Run everything as this account, with a cache of its own.
    pub account: Option<u32>,
}

/// A daemon and its state, removed with all sandboxes when dropped.
pub struct World {
    temporary: TempDir,
    state_dir: PathBuf,
    daemon: Option<Child>,
    env: Vec<(String, String)>,
    address: String,
    account: Option<u32>,
    /// What the kernel is to say of the host's boot, if not the truth.
    boot_id: Option<PathBuf>,
    /// The program under test, where that was exchanged.
    exchanged: Option<PathBuf>,
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code; -1 when a signal ended it.
    pub code: i32,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Ran {
    /// Exit code and stderr of a command that was refused; stdout is for data, so there is nothing on it.
    pub fn refusal(&self) -> String {
        assert_eq!(self.stdout, "", "stdout is for data: {self:?}");
        format!("exit {}: {}", self.code, self.stderr.trim_end())
    }
}

impl World {
    /// A fresh world with the template `base`.
    pub fn start() -> Self {
        Self::with(Options::default())
    }

    /// A world with options.
    pub fn with(options: Options) -> Self {
        let temporary = tempfile::Builder::new()
            .prefix("pando-test-")
            .tempdir()
            .expect("a temporary directory");
        let state_dir = options
            .state_dir
            .unwrap_or_else(|| temporary.path().join("state"));
        // Sandboxes' accounts must be able to pass through.
        open_to_all(temporary.path());
        let mut world = Self {
            temporary,
            state_dir,
            daemon: None,
            env: options.env,
            address: String::new(),
            account: options.account,
            boot_id: None,
            exchanged: None,
        };
        if let Some(account) = options.account {
            world.move_in(account);
        }
        world.start_daemon();
        if !options.without_template {
            let made = world.run(["template", "bake", "base"]);
            assert_eq!(made.code, 0, "cannot make the template: {made:?}");
        }
        world
    }

    /// Starts the daemon, which is down.
    pub fn start_daemon(&mut self) {
        self.start_daemon_at("127.0.0.1:0");
    }

    /// Starts the daemon, which is down, on this address.
    pub fn start_daemon_at(&mut self, address: &str) {
        assert!(self.daemon.is_none(), "the daemon is up");
        let mut command = self.program();
        if let Some(boot_id) = &self.boot_id {
            command = on_another_boot(boot_id, &command);
        }
        self.settings(&mut command)
            .args(["serve", "--listen", address]);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("a log");
        let mut daemon = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("`pando` starts");
        let stdout = daemon.stdout.take().expect("it is piped");
        self.daemon = Some(daemon);
        // Its one line on stdout is where it listens, printed once it answers.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            drop(BufReader::new(stdout).read_line(&mut line));
            drop(sender.send(line));
        });
        let line = receiver.recv_timeout(START_TIMEOUT).unwrap_or_default();
        let address = line
            .trim()
            .strip_prefix("http://")
            .unwrap_or_default()
            .to_owned();
        assert!(
            !address.is_empty(),
            "the daemon did not start: {}",
            self.log()
        );
        self.address = address;
    }

    /// The next daemon gets none of the environment of [`Options::env`].
    pub fn forget_env(&mut self) {
        self.env.clear();
    }

    /// Kills the daemon with SIGKILL; sandboxes run on.
    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("the daemon is up");
        daemon.kill().expect("it can be killed");
        daemon.wait().expect("it ends");
    }

    /// Ends the daemon in order, with SIGTERM; sandboxes run on.
    pub fn end_daemon(&mut self) {
        let told = Command::new("kill")
            .args(["-TERM", &self.daemon_pid().to_string()])
            .status();
        assert!(told.is_ok_and(|status| status.success()), "it can be told");
        self.await_daemons_end();
    }

    /// Waits for the end of a daemon that was told to end.
    pub fn await_daemons_end(&mut self) {
        let mut daemon = self.daemon.take().expect("the daemon is up");
        let status = daemon.wait().expect("it ends");
        assert!(status.success(), "the daemon ended badly: {status}");
    }

    /// From now on the program is another file, as after an upgrade: a copy with something
    /// more at its end, which changes nothing of what it does.
    pub fn upgrade(&mut self) {
        let count = self
            .exchanged
            .as_ref()
            .map_or(0, |path| path.as_os_str().len());
        let path = self.scratch(&format!("pando-{}", "x".repeat(1 + count % 7)));
        std::fs::copy(self.exchanged.clone().unwrap_or_else(pando), &path).expect("a copy");
        let mut file = std::fs::File::options()
            .append(true)
            .open(&path)
            .expect("it opens");
        file.write_all(b"\nmore\n").expect("it is written");
        self.exchanged = Some(path);
    }

    /// The next daemons get this in their environment too.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Kills the daemon, if it is up, and every shim and VMM, and waits until all are gone.
    pub fn kill_all(&mut self) {
        if self.daemon.is_some() {
            self.kill_daemon();
        }
        for pid in self.processes() {
            kill(pid);
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.processes().is_empty() {
            assert!(Instant::now() < deadline, "killed processes live on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The next daemons find a host that was started anew: the kernel says another boot id.
    pub fn host_starts_anew(&mut self) {
        let boot_id = self.scratch("boot-id");
        let fresh = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("an id");
        std::fs::write(&boot_id, fresh).expect("a file");
        self.boot_id = Some(boot_id);
    }

    /// Shims and VMMs: processes whose working directory is in the world.
    pub fn processes(&self) -> BTreeSet<u32> {
        let inside = |pid: &u32| {
            std::fs::read_link(format!("/proc/{pid}/cwd"))
                .is_ok_and(|cwd| cwd.starts_with(&self.state_dir))
        };
        std::fs::read_dir("/proc")
            .expect("the processes")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(inside)
            .collect()
    }

    /// The daemon's process id.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().expect("the daemon is up").id()
    }

    /// `http://ADDRESS:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// A place for a test's own files.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// The directory of a sandbox.
    pub fn sandbox_dir(&self, id: &str) -> PathBuf {
        self.state_dir.join("v1/sandboxes").join(id)
    }

    /// The admin key.
    pub fn key(&self) -> String {
        std::fs::read_to_string(self.state_dir.join("admin.key"))
            .expect("the admin key")
            .trim()
            .to_owned()
    }

    /// Takes out of a text what differs from run to run: this world's places, and these ids.
    pub fn filtered(&self, ids: &[&str], text: &str) -> String {
        let mut text = text
            .replace(&self.state_dir.display().to_string(), "<state>")
            .replace(&self.url(), "<url>");
        for id in ids {
            text = text.replace(id, "<id>");
        }
        text
    }

    /// The REST API, with the admin key.
    pub fn api(&self) -> Api {
        Api::new(self.url(), Some(self.key()))
    }

    /// A command with this world's settings; not run yet.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.program();
        self.settings(&mut command)
            .env("PANDO_URL", self.url())
            .args(args);
        command
    }

    /// Runs `pando ARGS` to its end.
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ran {
        self.run_with_input(args, b"")
    }

    /// Runs `pando ARGS` with this on its stdin.
    pub fn run_with_input<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> Ran {
        let mut command = self.command(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("`pando` starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        let input = input.to_vec();
        // A program that does not read its input must not block the test.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("`pando` ends");
        feeder.join().expect("the feeder does not panic");
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs `pando ARGS`, which must succeed, and gives its stdout without the last newline.
    pub fn ok<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim_end_matches('\n').to_owned()
    }

    /// Makes a sandbox and gives its id.
    pub fn create(&self) -> String {
        self.ok(["create"])
    }

    /// Runs a shell line in a sandbox through REST, which must exit with 0, and gives its stdout.
    pub fn sh(&self, id: &str, line: &str) -> String {
        let answer = self.exec(id, &json!({ "shell": line }));
        assert_eq!(answer["exit_code"], 0, "`{line}`: {answer}");
        answer["stdout"]
            .as_str()
            .unwrap_or_default()
            .trim_end_matches('\n')
            .to_owned()
    }

    /// A blocking exec through REST, which must be answered with 200.
    pub fn exec(&self, id: &str, request: &Value) -> Value {
        let answer = self
            .api()
            .post(&format!("/v1/sandboxes/{id}/exec"), request);
        assert_eq!(answer.status, 200, "{request}: {}", answer.text);
        answer.json()
    }

    /// The sandbox as REST shows it.
    pub fn inspect(&self, id: &str) -> Value {
        let answer = self.api().get(&format!("/v1/sandboxes/{id}"));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// What waits for requests, as the daemon's status says it.
    pub fn pool(&self) -> Value {
        self.api().get("/v1/status").json()["pool"].clone()
    }

    /// Waits until the pool is like this. A fill takes a second; other tests may keep the
    /// machine busy.
    pub fn await_pool(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let pool = self.pool();
            if fits(&pool) {
                return pool;
            }
            assert!(
                Instant::now() < deadline,
                "the pool is still not {what}: {pool}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until everything that is wanted waits.
    pub fn await_full_pool(&self) -> Value {
        self.await_pool("full", |pool| {
            let slots = pool["slots"].as_array().expect("a list");
            !slots.is_empty()
                && pool["filling"] == 0
                && slots
                    .iter()
                    .all(|slots| slots["waiting"] == slots["wanted"])
        })
    }

    /// Waits until a sandbox has this state, which an event brings about soon.
    pub fn await_state(&self, id: &str, state: &str) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let found = self.inspect(id);
            if found["state"] == state {
                return found;
            }
            assert!(Instant::now() < deadline, "still not {state}: {found}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process id of a sandbox's shim.
    pub fn shim_pid(&self, id: &str) -> u32 {
        let text = std::fs::read_to_string(self.sandbox_dir(id).join("shim.pid")).expect("a shim");
        text.split(' ')
            .next()
            .and_then(|pid| pid.parse().ok())
            .expect("a process id")
    }

    /// The process id of a sandbox's QEMU.
    pub fn vmm_pid(&self, id: &str) -> u32 {
        let shim = self.shim_pid(id);
        let children = std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children"))
            .unwrap_or_default();
        let direct = children
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok());
        // QEMU is started by one of the shim's threads, not always by the first.
        direct
            .or_else(|| child_of(shim))
            .expect("the shim has a child")
    }

    /// `pando`, as this world's account.
    fn program(&self) -> Command {
        let Some(account) = self.account else {
            return Command::new(self.exchanged.clone().unwrap_or_else(pando));
        };
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                &account.to_string(),
                "--regid",
                &account.to_string(),
            ])
            .args(["--clear-groups", "--"])
            .arg(self.scratch("pando"));
        command
    }

    /// Gives an account a program, a home and a cache with the base image, which would
    /// take minutes to make; the bakes are its own.
    fn move_in(&mut self, account: u32) {
        let cache = self.scratch("cache");
        std::fs::create_dir(&cache).expect("a cache");
        std::fs::copy(pando(), self.scratch("pando")).expect("a copy of the program");
        let ours = cache_dir();
        let copied = Command::new("cp")
            .args(["-r", "--sparse=always"])
            .arg(ours.join("base-v1"))
            .arg(&cache)
            .status();
        assert!(
            copied.is_ok_and(|status| status.success()),
            "no base image in `{}`",
            ours.display()
        );
        let owner = format!("{account}:{account}");
        let given = Command::new("chown")
            .args(["-R", &owner])
            .arg(self.temporary.path())
            .status();
        assert!(
            given.is_ok_and(|status| status.success()),
            "only root can test as another account"
        );
        self.env
            .push(("PANDO_CACHE_DIR".to_owned(), cache.display().to_string()));
        self.env.push((
            "HOME".to_owned(),
            self.temporary.path().display().to_string(),
        ));
    }

    fn settings<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("PANDO_STATE_DIR", &self.state_dir)
            // Work ahead of requests is for the tests that are about it: they ask for it.
            .env("PANDO_WARM", "0")
            .env_remove("PANDO_API_KEY")
            .env_remove("PANDO_URL");
        for (name, value) in &self.env {
            command.env(name, value);
        }
        command
    }

    fn log_path(&self) -> PathBuf {
        self.temporary.path().join("daemon.log")
    }

    /// The daemon's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn print_logs(&self) {
        eprintln!("--- daemon.log\n{}", tail(&self.log_path()));
        let Ok(sandboxes) = std::fs::read_dir(self.state_dir.join("v1/sandboxes")) else {
            return;
        };
        for sandbox in sandboxes.flatten() {
            for name in ["shim.log", "shim/console.log", "shim/ended"] {
                let path = sandbox.path().join(name);
                if path.exists() {
                    eprintln!("--- {}\n{}", path.display(), tail(&path));
                }
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        if self.daemon.is_some() {
            let sandboxes = self.run(["ls", "-q"]);
            for id in sandboxes.stdout.lines() {
                self.run(["rm", id]);
            }
        }
        if let Some(mut daemon) = self.daemon.take() {
            drop(daemon.kill());
            drop(daemon.wait());
        }
        // A daemon that a test killed left its shims: they go by their files.
        if let Ok(sandboxes) = std::fs::read_dir(self.state_dir.join("v1/sandboxes")) {
            for sandbox in sandboxes.flatten() {
                let pid =
                    std::fs::read_to_string(sandbox.path().join("shim.pid")).unwrap_or_default();
                if let Some(pid) = pid.split(' ').next().and_then(|pid| pid.parse().ok()) {
                    kill(pid);
                }
            }
        }
    }
}

fn kill(pid: u32) {
    let mut kill = Command::new("kill");
    kill.args(["-9", &pid.to_string()]).stderr(Stdio::null());
    // Its end is what was wanted, whoever brought it about.
    drop(kill.status());
}

/// The same program where the kernel says this boot id. All else of the host is the same,
/// and what is unmounted outside is unmounted inside.
fn on_another_boot(boot_id: &Path, program: &Command) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "slave", "sh", "-c"])
        .arg("mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"")
        .arg(boot_id)
        .arg(program.get_program())
        .args(program.get_args());
    command
}

fn child_of(parent: u32) -> Option<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.to_owned())
            .unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    let processes = std::fs::read_dir("/proc").ok()?;
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .find(is_child)
}

/// Where images and bakes are for every world.
pub(crate) fn cache_dir() -> PathBuf {
    std::env::var_os("PANDO_CACHE_DIR").map_or_else(|| "/var/cache/pando".into(), PathBuf::from)
}

pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711))
        .expect("its mode can be set");
}

/// The last 20 KiB of a file.
pub(crate) fn tail(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = std::fs::File::open(path) {
        drop(file.read_to_end(&mut bytes));
    }
    let start = bytes.len().saturating_sub(20 << 10);
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

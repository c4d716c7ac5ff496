//! A daemon, a sandbox that is to be reached, and one whose place the probe takes.

use pando_e2e::jail::{Report, Role, Start, Targets};
use pando_sys::jail::{Layer, Layers};
use pando_testkit::{Options, World};
use rustix::process::{Resource, Rlimit};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whom the program that lends rights lends them of.
const LENDER: u32 = 4243;

pub(crate) struct Stage {
    pub(crate) world: World,
    /// A sandbox that runs.
    pub(crate) other: String,
    account: Option<u32>,
    donor: PathBuf,
    program: PathBuf,
    targets: Targets,
    runs: AtomicU32,
}

impl Stage {
    /// A daemon of this account, or of root.
    pub(crate) fn new(account: Option<u32>) -> Self {
        let_limits_be_seen();
        let world = World::with(Options {
            account,
            ..Options::default()
        });
        let other = world.create();
        let snapshot = world.ok(["snapshot", &other]);
        world.ok(["create", "--from", &snapshot]);
        let outside = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = outside.local_addr().unwrap().port();
        let abstract_name = format!("pando-jail-{}", std::process::id());
        let address = UnixAddr::from_abstract_name(&abstract_name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        // Nobody waits in a queue that is full.
        std::thread::spawn(move || while outside.accept().is_ok() {});
        std::thread::spawn(move || while listener.accept().is_ok() {});
        let donor = the_one_beside(&world.sandbox_dir(&other));
        let spec = std::fs::read(donor.join("spec.json")).unwrap();
        let spec: Value = serde_json::from_slice(&spec).unwrap();
        // The uppermost layer of the snapshot; above it is the sandbox's own.
        let sealed = spec["disks"].as_u64().unwrap() - 2;
        let dir = world.sandbox_dir(&other);
        let own = top_disk(&dir);
        let targets = Targets {
            role: Role::Qemu,
            report: PathBuf::new(),
            other_disk: dir.join("slot").join(&own),
            other_disk_beside: Path::new("../..").join(&other).join("slot").join(&own),
            other_spec: dir.join("spec.json"),
            other_socket: dir.join("shim.sock"),
            other_vmm: world.vmm_pid(&other),
            sealed: sealed_layer(&world),
            own_sealed: format!("disk.{sealed}").into(),
            own_file: "own-file".into(),
            own_spec: "../spec.json".into(),
            own_socket: "../shim.sock".into(),
            database: world.state_dir().join("pando.db"),
            key: world.state_dir().join("admin.key"),
            home_file: home_file(&world, account),
            lent_rights: lender(&world),
            daemon: world.daemon_pid(),
            parent: 0,
            api: world.url().trim_start_matches("http://").parse().unwrap(),
            outside: SocketAddr::new(own_address(), port),
            abstract_name,
            log_socket: log_socket(&world),
            shared_memory: 0,
        };
        Self {
            program: probe(&world),
            world,
            other,
            account,
            donor,
            targets,
            runs: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.account.is_none()
    }

    /// Has everything tried with these layers.
    pub(crate) fn run(&self, role: Role, on: Layers) -> Report {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        // As the id of a sandbox: an `s` and 19 letters and figures.
        let home = self.donor.with_file_name(format!("sprobe{run:014}"));
        let start = Start {
            donor: self.donor.clone(),
            home,
            program: self.program.clone(),
            off: on.missing().map(Layer::name).map(str::to_owned).collect(),
            targets: Targets {
                role,
                ..self.targets.clone()
            },
        };
        let file = self.world.scratch("start.json");
        std::fs::write(&file, serde_json::to_vec(&start).unwrap()).unwrap();
        let mut command = self.starter();
        let output = command.arg("start").arg(&file).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{role:?}, {on:?}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The probe, as the daemon's user.
    fn starter(&self) -> Command {
        let Some(account) = self.account else {
            return Command::new(&self.program);
        };
        let account = account.to_string();
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                &account,
                "--regid",
                &account,
                "--clear-groups",
                "--",
            ])
            .arg(&self.program);
        command
    }
}

/// A process that has no limits may have many files and leave its memory in one, so that a
/// limit of the jail is seen to be one.
fn let_limits_be_seen() {
    let everything = Rlimit {
        current: None,
        maximum: None,
    };
    rustix::process::setrlimit(Resource::Core, everything).unwrap();
    let files = rustix::process::getrlimit(Resource::Nofile);
    let files = Rlimit {
        current: files.maximum,
        maximum: files.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, files).unwrap();
}

/// A copy that every account can run.
fn probe(world: &World) -> PathBuf {
    let copy = world.scratch("jail-probe");
    std::fs::copy(env!("CARGO_BIN_EXE_jail-probe"), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

/// The only other sandbox's directory. What was made from a snapshot has one by another name.
fn the_one_beside(dir: &Path) -> PathBuf {
    let all = std::fs::read_dir(dir.parent().unwrap()).unwrap().flatten();
    all.map(|entry| entry.path())
        .find(|path| path != dir)
        .expect("there are two")
}

/// Name of the layer that a sandbox writes: the uppermost.
fn top_disk(dir: &Path) -> String {
    let files = std::fs::read_dir(dir.join("slot")).unwrap().flatten();
    let numbers = files.filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        name.strip_prefix("disk.")?.parse::<u32>().ok()
    });
    format!("disk.{}", numbers.max().expect("it has a disk"))
}

/// A disk layer of the one snapshot that there is.
fn sealed_layer(world: &World) -> PathBuf {
    let snapshots = world.state_dir().join("v1/snapshots");
    let files = std::fs::read_dir(snapshots)
        .unwrap()
        .flatten()
        .filter_map(|snapshot| std::fs::read_dir(snapshot.path()).ok())
        .flat_map(|files| files.flatten());
    files
        .map(|file| file.path())
        .find(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("disk")
        })
        .expect("a snapshot has a disk layer")
}

fn home_file(world: &World, account: Option<u32>) -> PathBuf {
    let home = world.scratch("home");
    std::fs::create_dir(&home).unwrap();
    let file = home.join("secret");
    std::fs::write(&file, "secret").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    chown(&file, account, account).unwrap();
    file
}

/// A program with a mode that has whoever runs it do so as another.
fn lender(world: &World) -> PathBuf {
    let file = world.scratch("lender");
    std::fs::write(&file, pando_sys::jail::attempts::WHOSE_RIGHTS).unwrap();
    chown(&file, Some(LENDER), Some(LENDER)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
    file
}

/// A socket that takes what anybody sends, and is read.
fn log_socket(world: &World) -> PathBuf {
    let path = world.scratch("log");
    let socket = UnixDatagram::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::thread::spawn(move || while socket.recv(&mut [0]).is_ok() {});
    path
}

/// An address of this host that is not loopback, where it has one.
fn own_address() -> IpAddr {
    let route = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip())
    });
    route.unwrap_or(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)))
}

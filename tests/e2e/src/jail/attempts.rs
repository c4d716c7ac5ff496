//! What is tried, and what stops it. SECURITY.md has this as a table.

use super::{Attempt, Stop, Targets};
use pando_sys::jail::Layer::{
    Account, Files, Limits, NoAbstractSockets, NoNewPrivileges, NoPtrace, NoSignals, NoTcp,
    Seccomp, Truncate,
};
use pando_sys::jail::{Layer, attempts};
use rustix::thread::CapabilitySet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

/// How long a connection on this host may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// More descriptors than a shim (4096) or a QEMU (1856) may have.
const MANY: usize = 6000;

/// The network card's socket, the third that QEMU inherits after its three standard ones.
const CARD: i32 = 6;

const fn by(root: &'static [Layer], user: &'static [Layer]) -> Stop {
    Stop::By {
        root,
        user: Some(user),
    }
}

/// Where an account makes no difference.
const fn both(layers: &'static [Layer]) -> Stop {
    by(layers, layers)
}

/// What an ordinary user may not do in any case.
const fn as_root(root: &'static [Layer]) -> Stop {
    Stop::By { root, user: None }
}

const fn attempt(
    name: &'static str,
    run: fn(&Targets) -> io::Result<()>,
    qemu: Stop,
    shim: Stop,
) -> Attempt {
    Attempt {
        name,
        run,
        qemu,
        shim,
        traces: false,
    }
}

/// An attempt that needs what tracing needs.
const fn tracing(
    name: &'static str,
    run: fn(&Targets) -> io::Result<()>,
    qemu: Stop,
    shim: Stop,
) -> Attempt {
    Attempt {
        traces: true,
        ..attempt(name, run, qemu, shim)
    }
}

/// A file of the daemon's user that nobody else may reach.
const OTHERS_FILE: Stop = by(&[Account, Files], &[Files]);
/// The same where a call of its own has to be let through before.
const OTHERS_FILE_BY_CALL: Stop = by(&[Account, Seccomp, Files], &[Seccomp, Files]);
/// A truncation by name, which is no opening of the file.
const TRUNCATION: Stop = by(&[Account, Seccomp, Truncate], &[Seccomp, Truncate]);
const CALL: Stop = both(&[Seccomp]);

/// Everything that is tried.
pub const ATTEMPTS: &[Attempt] = &[
    // Files of others.
    attempt(
        "read another sandbox's disk",
        |t| read(&t.other_disk),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "write another sandbox's disk",
        |t| write(&t.other_disk),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "write another sandbox's disk by way of its own directory",
        |t| write(&t.other_disk_beside),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "truncate another sandbox's disk",
        |t| truncate(&t.other_disk),
        TRUNCATION,
        TRUNCATION,
    ),
    attempt(
        "link another sandbox's disk into its own directory",
        |t| link(&t.other_disk),
        OTHERS_FILE_BY_CALL,
        OTHERS_FILE_BY_CALL,
    ),
    tracing(
        "read another sandbox's disk by way of the root of its QEMU",
        |t| read(&in_root_of(t.other_vmm, &t.other_disk)),
        by(&[Account, Files, NoPtrace], &[Files, NoPtrace]),
        by(&[Account, Files, NoPtrace], &[Files, NoPtrace]),
    ),
    attempt(
        "open another sandbox's disk by its handle",
        |t| attempts::open_by_handle(&t.other_disk),
        as_root(&[Account, Seccomp, Files]),
        as_root(&[Account, Seccomp, Files]),
    ),
    attempt(
        "read another sandbox's description",
        |t| read(&t.other_spec),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "read the state database",
        |t| read(&t.database),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "read the admin key",
        |t| read(&t.key),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "read a file in a home directory",
        |t| read(&t.home_file),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "read /etc/shadow",
        |_| read(Path::new("/etc/shadow")),
        as_root(&[Account, Files]),
        as_root(&[Account, Files]),
    ),
    attempt(
        "write to the kernel's log",
        |_| write_only(Path::new("/dev/kmsg")),
        as_root(&[Account, Files]),
        as_root(&[Account, Files]),
    ),
    attempt(
        "change a setting of the kernel",
        |_| write_only(Path::new("/proc/sys/kernel/core_pattern")),
        as_root(&[Account, Files]),
        as_root(&[Account, Files]),
    ),
    // Sealed layers.
    attempt(
        "write a sealed layer in the store",
        |t| unseal(&t.sealed),
        by(&[Account, Files], &[Files, Seccomp]),
        by(&[Account, Files], &[Files, Seccomp]),
    ),
    attempt(
        "write a sealed layer by its own link",
        |t| unseal(&t.own_sealed),
        by(&[Account, Files], &[Files, Seccomp]),
        // It may write in its slot, as it must: mode and owner keep what is linked there.
        by(&[Account], &[Seccomp]),
    ),
    attempt(
        "truncate a sealed layer by its own link",
        |t| unseal_and(&t.own_sealed, truncate),
        TRUNCATION,
        by(&[Account, Seccomp], &[Seccomp]),
    ),
    // Its own directory.
    attempt(
        "make a file",
        |_| make("made", 0o600),
        both(&[Files]),
        Stop::Allowed,
    ),
    attempt(
        "make a file that lends rights",
        |_| make("lending", 0o4700),
        both(&[Files, Seccomp]),
        CALL,
    ),
    attempt(
        "make a file lend rights",
        |t| mode(&t.own_file, 0o4700),
        CALL,
        CALL,
    ),
    attempt(
        "make a file lend rights by the newest call",
        |t| attempts::change_mode_anew(&t.own_file, 0o4700),
        CALL,
        CALL,
    ),
    attempt(
        "make a symbolic link",
        |_| {
            std::os::unix::fs::symlink("/etc/shadow", "link")?;
            fs::remove_file("link")
        },
        both(&[Files, Seccomp]),
        both(&[Files, Seccomp]),
    ),
    attempt(
        "rename its file",
        |t| {
            let elsewhere = t.own_file.with_extension("elsewhere");
            fs::rename(&t.own_file, &elsewhere)?;
            fs::rename(&elsewhere, &t.own_file)
        },
        both(&[Files, Seccomp]),
        Stop::Allowed,
    ),
    attempt(
        "make a directory",
        |_| {
            fs::create_dir("directory")?;
            fs::remove_dir("directory")
        },
        both(&[Files, Seccomp]),
        Stop::Allowed,
    ),
    attempt(
        "make a device",
        |_| attempts::make_device(),
        as_root(&[Account, Seccomp, Files]),
        as_root(&[Account, Seccomp, Files]),
    ),
    attempt(
        "read its own description",
        |t| read(&t.own_spec),
        both(&[Files]),
        Stop::Allowed,
    ),
    attempt(
        "change its own description",
        |t| write(&t.own_spec),
        OTHERS_FILE,
        OTHERS_FILE,
    ),
    attempt(
        "ask to be killed last",
        |_| write_only(Path::new("/proc/self/oom_score_adj")),
        both(&[Files]),
        both(&[Files]),
    ),
    // Other processes.
    tracing(
        "open the memory of its parent",
        |t| read(&of_process(t.parent, "mem")),
        both(&[Files, NoPtrace]),
        by(&[Account, NoPtrace], &[NoPtrace]),
    ),
    tracing(
        "read the memory of its parent",
        |t| attempts::read_memory(t.parent),
        both(&[Seccomp, NoPtrace]),
        by(&[Account, NoPtrace], &[NoPtrace]),
    ),
    tracing(
        "trace its parent",
        |t| attempts::trace(t.parent),
        both(&[Seccomp, NoPtrace]),
        by(&[Account, Seccomp, NoPtrace], &[Seccomp, NoPtrace]),
    ),
    tracing(
        "take a descriptor of its parent",
        |t| attempts::take_descriptor(t.parent),
        both(&[Seccomp, NoPtrace]),
        by(&[Account, Seccomp, NoPtrace], &[Seccomp, NoPtrace]),
    ),
    tracing(
        "read the environment of the daemon",
        |t| {
            // With these root reads it without asking for the right to trace.
            give_up(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)?;
            read_all(&of_process(t.daemon, "environ"))
        },
        by(&[Account, Files, NoPtrace], &[Files, NoPtrace]),
        by(&[Account, NoPtrace], &[NoPtrace]),
    ),
    tracing(
        "open the memory of another QEMU",
        |t| read(&of_process(t.other_vmm, "mem")),
        by(&[Account, Files, NoPtrace], &[Files, NoPtrace]),
        by(&[Account, NoPtrace], &[NoPtrace]),
    ),
    attempt(
        "signal its parent",
        |t| attempts::signal(t.parent),
        both(&[Seccomp, NoSignals]),
        by(&[Account, NoSignals], &[NoSignals]),
    ),
    attempt(
        "signal a thread of its parent",
        |t| attempts::signal_thread(t.parent),
        both(&[Seccomp, NoSignals]),
        by(&[Account, NoSignals], &[NoSignals]),
    ),
    attempt(
        "signal its parent with a value",
        |t| attempts::signal_with_value(t.parent),
        both(&[Seccomp, NoSignals]),
        by(&[Account, NoSignals], &[NoSignals]),
    ),
    attempt(
        "signal its parent by a descriptor",
        |t| attempts::signal_by_descriptor(t.parent),
        both(&[Seccomp, NoSignals]),
        by(&[Account, NoSignals], &[NoSignals]),
    ),
    attempt(
        "signal another QEMU",
        |t| attempts::signal(t.other_vmm),
        by(&[Account, Seccomp, NoSignals], &[Seccomp, NoSignals]),
        by(&[Account, NoSignals], &[NoSignals]),
    ),
    attempt(
        "limit its parent",
        |t| attempts::set_limit(t.parent),
        CALL,
        by(&[Account, Seccomp], &[Seccomp]),
    ),
    attempt(
        "share memory with a process of the daemon's user",
        |t| attempts::attach_shared_memory(t.shared_memory),
        by(&[Account, Seccomp], &[Seccomp]),
        by(&[Account, Seccomp], &[Seccomp]),
    ),
    // Sockets.
    attempt(
        "connect to the API",
        |t| connect(t.api),
        both(&[Seccomp, NoTcp]),
        Stop::Allowed,
    ),
    attempt(
        "connect out",
        |t| connect(t.outside),
        both(&[Seccomp, NoTcp]),
        Stop::Allowed,
    ),
    attempt(
        "listen",
        |_| TcpListener::bind("0.0.0.0:0").map(drop),
        both(&[Seccomp, NoTcp]),
        Stop::Allowed,
    ),
    attempt(
        "send a datagram out",
        |t| attempts::send_datagram(t.outside),
        CALL,
        Stop::Allowed,
    ),
    attempt(
        "connect to the shim of its sandbox",
        |t| UnixStream::connect(&t.own_socket).map(drop),
        by(&[Account, Seccomp], &[Seccomp]),
        by(&[Account, Seccomp], &[Seccomp]),
    ),
    attempt(
        "connect to the shim of another sandbox",
        |t| UnixStream::connect(&t.other_socket).map(drop),
        by(&[Account, Seccomp], &[Seccomp]),
        by(&[Account, Seccomp], &[Seccomp]),
    ),
    attempt(
        "connect to an abstract socket",
        |t| {
            let address = UnixAddr::from_abstract_name(&t.abstract_name)?;
            UnixStream::connect_addr(&address).map(drop)
        },
        both(&[Seccomp, NoAbstractSockets]),
        both(&[Seccomp, NoAbstractSockets]),
    ),
    attempt(
        "write to the host's log by a socket of its own",
        |t| {
            UnixDatagram::unbound()?
                .send_to(b"x", &t.log_socket)
                .map(drop)
        },
        CALL,
        CALL,
    ),
    attempt(
        "write to the host's log by one of a pair",
        |t| {
            UnixDatagram::pair()?
                .0
                .send_to(b"x", &t.log_socket)
                .map(drop)
        },
        CALL,
        CALL,
    ),
    // The kind of the card's socket stops it, which takes no address.
    attempt(
        "write to the host's log by the network card",
        |_| attempts::send_elsewhere(CARD),
        Stop::Always,
        Stop::Pointless,
    ),
    // Programs and privileges.
    attempt(
        "run a shell",
        |_| attempts::run(Path::new("/bin/sh"), &["-c", "exit 0"]),
        both(&[Files]),
        both(&[Files]),
    ),
    attempt(
        "run a program from memory",
        |_| attempts::run_from_memory(),
        CALL,
        CALL,
    ),
    attempt(
        "run a program that lends rights",
        |t| attempts::run(&t.lent_rights, &[]),
        both(&[Files, NoNewPrivileges]),
        both(&[Files, NoNewPrivileges]),
    ),
    attempt(
        "open more files than it may",
        |_| attempts::many_descriptors(MANY),
        both(&[Limits]),
        both(&[Limits]),
    ),
    attempt(
        "leave its memory in a file",
        |_| attempts::core_dump(),
        both(&[Limits]),
        both(&[Limits]),
    ),
    attempt(
        "enter a user namespace",
        |_| attempts::unshare_users(),
        CALL,
        CALL,
    ),
    attempt(
        "start in a user namespace",
        |_| attempts::clone_users(),
        CALL,
        CALL,
    ),
    attempt(
        "start in a user namespace by clone3",
        |_| attempts::clone3_users(),
        CALL,
        CALL,
    ),
    attempt(
        "enter the network namespace of its parent",
        |t| attempts::enter_network(t.parent),
        as_root(&[Account, Seccomp, NoPtrace]),
        as_root(&[Account, Seccomp, NoPtrace]),
    ),
    attempt(
        "change a mount",
        |_| attempts::mount(),
        as_root(&[Account, Seccomp, Files]),
        as_root(&[Account, Seccomp, Files]),
    ),
    attempt(
        "change its root",
        |_| attempts::change_root(),
        as_root(&[Account, Seccomp]),
        as_root(&[Account, Seccomp]),
    ),
    // Interfaces of the kernel.
    attempt("use io_uring", |_| attempts::io_ring(), CALL, CALL),
    attempt("use bpf", |_| attempts::bpf(), CALL, CALL),
    attempt("use the kernel's keys", |_| attempts::keyring(), CALL, CALL),
    attempt(
        "use performance counters",
        |_| attempts::performance_counter(),
        CALL,
        CALL,
    ),
    attempt(
        "become another system",
        |_| attempts::personality(),
        CALL,
        CALL,
    ),
    attempt(
        "hold up the kernel by userfaultfd",
        |_| attempts::kernel_faults(),
        as_root(&[Account, Seccomp]),
        as_root(&[Account, Seccomp]),
    ),
];

fn read(path: &Path) -> io::Result<()> {
    File::open(path).map(drop)
}

fn read_all(path: &Path) -> io::Result<()> {
    fs::read(path).map(drop)
}

fn write(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map(drop)
}

fn write_only(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path).map(drop)
}

/// To the size that it has, if that is known.
fn truncate(path: &Path) -> io::Result<()> {
    let bytes = fs::metadata(path)?.len();
    attempts::truncate(path, bytes)
}

fn link(path: &Path) -> io::Result<()> {
    fs::hard_link(path, "linked")?;
    fs::remove_file("linked")
}

fn make(name: &str, mode: u32) -> io::Result<()> {
    let mut open = OpenOptions::new();
    open.write(true)
        .create_new(true)
        .mode(mode)
        .open(name)
        .map(drop)
}

fn mode(path: &Path, mode: u32) -> io::Result<()> {
    let before = fs::metadata(path)?.permissions();
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    fs::set_permissions(path, before)
}

fn unseal(path: &Path) -> io::Result<()> {
    unseal_and(path, write)
}

/// A file that nobody may write can be made one that its owner may.
fn unseal_and(path: &Path, then: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let before = fs::metadata(path)?.permissions();
    let changed = fs::set_permissions(path, fs::Permissions::from_mode(0o644));
    let done = then(path);
    if changed.is_ok() {
        fs::set_permissions(path, before)?;
    }
    done
}

fn give_up(capabilities: CapabilitySet) -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective.remove(capabilities);
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn connect(address: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map(drop)
}

fn of_process(pid: u32, file: &str) -> std::path::PathBuf {
    format!("/proc/{pid}/{file}").into()
}

fn in_root_of(pid: u32, path: &Path) -> std::path::PathBuf {
    of_process(pid, "root").join(path.strip_prefix("/").unwrap_or(path))
}

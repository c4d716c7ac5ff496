//! The jails, tried from inside.
//!
//! `jail-probe` stands in for a QEMU that its guest has taken over, or for such a shim: it
//! is started in their place, by the function and with the arguments that they are started
//! with, makes every one of [`ATTEMPTS`], and reports how each went. A test runs it with all
//! layers, and with some off, and compares with what each attempt says of the layers that
//! stop it. So every layer is seen to be one: without it something gets through.

mod attempts;

use pando_sys::jail::{Layer, Layers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use attempts::ATTEMPTS;

/// Whose place is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// QEMU's, in the shim's jail and its own.
    Qemu,
    /// The shim's.
    Shim,
}

/// What there is to be reached; the test puts it there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Targets {
    /// Whose place the probe takes.
    pub role: Role,
    /// Where its report goes, from its sandbox's directory: a file that it may write. Who
    /// starts it knows.
    #[serde(default)]
    pub report: PathBuf,
    /// The disk of another sandbox that runs.
    pub other_disk: PathBuf,
    /// The same from the probe's working directory.
    pub other_disk_beside: PathBuf,
    /// The other sandbox's description, with its environment.
    pub other_spec: PathBuf,
    /// The socket of the other sandbox's shim.
    pub other_socket: PathBuf,
    /// The process of the other sandbox's QEMU.
    pub other_vmm: u32,
    /// A disk layer of a snapshot, in the store.
    pub sealed: PathBuf,
    /// A sealed layer by the link in the probe's own slot, its working directory.
    pub own_sealed: PathBuf,
    /// A file in it that it may write.
    pub own_file: PathBuf,
    /// The probe's own description, from there.
    pub own_spec: PathBuf,
    /// The socket of the probe's own shim, from there.
    pub own_socket: PathBuf,
    /// The daemon's index.
    pub database: PathBuf,
    /// The daemon's key.
    pub key: PathBuf,
    /// A file in the home directory of who runs the daemon.
    pub home_file: PathBuf,
    /// A program that runs with another's rights.
    pub lent_rights: PathBuf,
    /// The daemon's process.
    pub daemon: u32,
    /// The process that started the probe; for QEMU it is its shim, for a shim what stands
    /// for the daemon. Known to the probe alone.
    #[serde(default)]
    pub parent: u32,
    /// Where the API listens.
    pub api: SocketAddr,
    /// Where something listens on an address that is not loopback.
    pub outside: SocketAddr,
    /// Name of an abstract socket.
    pub abstract_name: String,
    /// Path of a socket that takes datagrams of everybody, as logs do.
    pub log_socket: PathBuf,
    /// Shared memory of who runs the daemon, by number; made by who starts the probe.
    #[serde(default)]
    pub shared_memory: i32,
}

/// What stops an attempt.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// Nothing: it is what the process is for.
    Allowed,
    /// Something that no test takes off, which the attempt's documentation says.
    Always,
    /// It is not tried: there is nothing of that kind.
    Pointless,
    /// Each of these layers alone: with all of them off it succeeds.
    By {
        /// Where the daemon is root.
        root: &'static [Layer],
        /// Where it is an ordinary user; `None` where only root could succeed.
        user: Option<&'static [Layer]>,
    },
}

/// Something that a process in a jail tries.
#[derive(Debug)]
pub struct Attempt {
    /// Its name.
    pub name: &'static str,
    /// Does it.
    pub run: fn(&Targets) -> io::Result<()>,
    /// What stops QEMU.
    pub qemu: Stop,
    /// What stops the shim.
    pub shim: Stop,
    /// Whether the host may refuse it beside us, by `kernel.yama.ptrace_scope`.
    pub traces: bool,
}

impl Attempt {
    /// What stops it in this role.
    pub fn stop(&self, role: Role) -> Stop {
        match role {
            Role::Qemu => self.qemu,
            Role::Shim => self.shim,
        }
    }

    /// The layers that each stop it; `None` where no layer decides.
    pub fn layers(&self, role: Role, root: bool) -> Option<&'static [Layer]> {
        match self.stop(role) {
            Stop::Allowed | Stop::Always | Stop::Pointless => None,
            Stop::By { root: layers, .. } if root => Some(layers),
            Stop::By { user, .. } => user,
        }
    }

    /// Whether it gets through where these layers are on.
    pub fn gets_through(&self, role: Role, root: bool, on: Layers, host: &Host) -> bool {
        if matches!(self.stop(role), Stop::Allowed) {
            return true;
        }
        let privileged = root && !on.has(Layer::Account);
        let host_refuses = self.traces && host.restricts_tracing && !privileged;
        let layers = self.layers(role, root);
        layers.is_some_and(|layers| !layers.iter().any(|layer| on.has(*layer))) && !host_refuses
    }
}

/// What of the host has a say beside the layers.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// `kernel.yama.ptrace_scope` is not 0.
    pub restricts_tracing: bool,
}

impl Host {
    /// What this kernel says.
    pub fn of_this_kernel() -> Self {
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        Self {
            restricts_tracing: scope.is_ok_and(|scope| scope.trim() != "0"),
        }
    }
}

/// How an attempt went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It got through.
    Through,
    /// The kernel refused it; its error number.
    Refused(i32),
    /// Something else happened, so that nothing was tried.
    Broken(String),
}

impl Outcome {
    /// Judges what an attempt returned.
    pub fn of(result: io::Result<()>) -> Self {
        // Not permitted, no access, other "file system" (how landlock refuses a link),
        // unknown call (how a filter hides one), too many descriptors.
        const REFUSALS: [rustix::io::Errno; 5] = [
            rustix::io::Errno::PERM,
            rustix::io::Errno::ACCESS,
            rustix::io::Errno::XDEV,
            rustix::io::Errno::NOSYS,
            rustix::io::Errno::MFILE,
        ];
        let Err(error) = result else {
            return Self::Through;
        };
        match error.raw_os_error() {
            Some(code) if REFUSALS.iter().any(|errno| errno.raw_os_error() == code) => {
                Self::Refused(code)
            }
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// How every attempt went, by its name.
pub type Report = BTreeMap<String, Outcome>;

/// What `jail-probe start` is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The sandbox that the probe's is a copy of.
    pub donor: PathBuf,
    /// The probe's own directory, beside it; made now, removed after.
    pub home: PathBuf,
    /// The copy of the probe that is run.
    pub program: PathBuf,
    /// Names of the layers that are off.
    pub off: Vec<String>,
    /// What is tried.
    pub targets: Targets,
}

/// Name of the targets in the slot.
pub const TARGETS: &str = "targets.json";

/// Name of the attempt of a shim at the memory of its own QEMU, which it may read.
pub const OWN_VMM_MEMORY: &str = "read the memory of its own QEMU";

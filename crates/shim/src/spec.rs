//! What the daemon tells a shim to run: `spec.json` in the sandbox's directory.

use pando_sys::jail::{Layer, Layers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The read-only root image in the slot.
pub const ROOT: &str = "root";
/// Guest memory in the slot.
pub const MEMORY: &str = "memory";
/// Device state in the slot.
pub const DEVICE_STATE: &str = "device-state";
/// The layers of pages that a snapshot writes, and its device state, until the daemon has
/// its own.
pub const TAKEN_PAGES: &str = "taken-pages";
/// See [`TAKEN_PAGES`].
pub const TAKEN_DEVICE_STATE: &str = "taken-device-state";
/// What a snapshot's gateway knew of names and connections, in the slot.
pub const NETWORK: &str = "network";
/// What a snapshot writes of that, until the daemon has its own.
pub const TAKEN_NETWORK: &str = "taken-network";
/// Kernel of a cold boot.
pub const KERNEL: &str = "kernel";
/// Initrd of a cold boot.
pub const INITRD: &str = "initrd";

/// The layer that a slot of [`Wait::Generic`] will write, before its number is known.
pub const OWN_DISK: &str = "disk.own";

/// Name of the `index`-th layer of the writable disk in the slot, base first.
pub fn disk(index: usize) -> String {
    format!("disk.{index}")
}

/// Name in the slot of the `index`-th layer of pages that lies over the memory.
pub fn pages(index: usize) -> String {
    format!("pages.{index}")
}

/// How the VM begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Begin {
    /// From the kernel, up to the point at which `ready` is saved. Only bakes do this.
    BakeReady,
    /// From the kernel, up to the point at which `pre-mount` is saved.
    BakePreMount,
    /// From the kernel, all the way: a sandbox of its own.
    Boot,
    /// From the memory and device state in the slot.
    Spawn {
        /// The snapshot was taken at a quiet channel.
        clean_barrier: bool,
        /// The disk is not mounted in it.
        mount: bool,
    },
}

/// How far a slot is prepared before it waits to be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// The VMM fits any snapshot of this size; which one, the claim says. Its layers are
    /// put into the slot right before. `begin` and `disks` of the spec mean nothing.
    Generic,
    /// The VMM has the layers open; nothing is loaded.
    Bound,
    /// The VM has answered, was warmed up, and is stopped.
    Warm,
}

/// What makes a shim a slot: work done before anybody asks for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Where it waits.
    pub wait: Wait,
    /// What it is made from, for a daemon that finds it.
    pub key: String,
    /// Programs that take the way of the first real one, each to its end; all must
    /// exit with 0. Only for [`Wait::Warm`].
    pub warm_up: Vec<Vec<String>>,
}

/// What the guest may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// In order, as [`pando_types::EgressRule`] is written; the first that matches
    /// decides.
    pub rules: Vec<String>,
    /// Whether the rest is allowed.
    pub allow_rest: bool,
    /// Where names are asked.
    pub resolvers: Vec<SocketAddr>,
}

/// What the sandbox may use of its host; what is absent is not limited. See
/// [`pando_types::SandboxLimits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Of one CPU of the host; less than all of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Processes of the guest's users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// MiB that its disk may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// MiB a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib_s: Option<u32>,
    /// Requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_iops: Option<u32>,
    /// MiB a second, each way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_mib_s: Option<u32>,
    /// Of one process of the guest's users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
}

/// Everything a shim needs; its working directory is the sandbox's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShimSpec {
    /// Whose shim it is.
    pub sandbox_id: String,
    /// The VMM's program.
    pub qemu: PathBuf,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// What the guest is told of the host's TSC, in kHz, where it is told.
    pub tsc_khz: Option<u32>,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// How the VM begins.
    pub begin: Begin,
    /// Layers of the writable disk in the slot; the last is made if it is missing.
    pub disks: usize,
    /// What the first snapshot of this VM is compared with, by the name that the daemon will
    /// give of it.
    pub base: String,
    /// How many of the disk's layers that has.
    pub kept_disks: usize,
    /// Layers of pages in the slot that are written over the memory before the load.
    pub pages: usize,
    /// What the guest calls itself.
    pub hostname: String,
    /// 32 hex digits.
    pub machine_id: String,
    /// Environment of every process.
    pub env: BTreeMap<String, String>,
    /// What it may reach: nothing in a slot, before it is claimed, and in a bake.
    pub network: Option<Network>,
    /// Payload of its network, each way; `None` is as much as there is.
    pub bandwidth_bytes_per_second: Option<u64>,
    /// What it may use of its host; none in a slot, before it is claimed, and in a bake.
    #[serde(default)]
    pub limits: Limits,
    /// Present in a slot, which waits to be claimed. Hostname and machine id may change
    /// then, and the environment comes only then.
    pub slot: Option<Slot>,
    /// The library for QEMU with which the kernel tracks what the VM writes.
    pub preload: Option<PathBuf>,
    /// Names of the jail's layers that are left off: none, but where a test shows what one
    /// of them stops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loosened: Vec<String>,
}

impl ShimSpec {
    /// What confines the VMM.
    ///
    /// # Errors
    /// Names what is no layer.
    pub fn jail(&self) -> Result<Layers, String> {
        let off = self.loosened.iter().map(|name| {
            let layer = Layer::named(name);
            layer.ok_or_else(|| format!("a jail has no layer `{name}`"))
        });
        off.into_iter()
            .try_fold(Layers::ALL, |layers, off| Ok(layers.without(off?)))
    }
}

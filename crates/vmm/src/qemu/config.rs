//! What a QEMU is started with.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use pando_sys::jail::Layers;
use pando_types::{Accelerator, Size};

/// Where a VM comes from.
#[derive(Clone, Debug)]
pub enum Start {
    /// It boots a kernel.
    Cold {
        /// The kernel image.
        kernel: PathBuf,
        /// The initial file system, uncompressed.
        initrd: PathBuf,
        /// The kernel's arguments; see [`super::CommandLine`].
        command_line: String,
        /// Created, sparse.
        memory: PathBuf,
        /// While the VM runs the file *is* its memory, to be saved as it is. Otherwise it
        /// stays empty, and what the VM writes is its own, as after a load.
        keep: bool,
    },
    /// It goes on where a snapshot was taken: [`crate::Vmm::load`] must follow.
    Load {
        /// The snapshot's memory file, which is only read: what the VM writes is its own.
        memory: PathBuf,
    },
    /// It is not known yet: [`super::Qemu::bind`] must follow, then [`crate::Vmm::load`].
    /// Of the configuration's disk there is the last layer only, which will be written, and
    /// `root` is not looked at.
    Unbound,
}

impl Start {
    /// The memory file, where it is known.
    pub fn memory(&self) -> Option<&PathBuf> {
        match self {
            Self::Cold { memory, .. } | Self::Load { memory } => Some(memory),
            Self::Unbound => None,
        }
    }
}

/// What an unbound VM is bound to: the files of a snapshot. All are in its slot, which is
/// all that its QEMU can read.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The snapshot's memory file.
    pub memory: PathBuf,
    /// The template's root image.
    pub root: PathBuf,
    /// The layers of the writable disk that are only read, the lowest first.
    pub lower: Vec<PathBuf>,
    /// Where the layer that is written is now: the file of the start, perhaps renamed.
    pub top: PathBuf,
}

/// QEMU's ends of the socket pairs between it and this process. They must be
/// connected before a load; keep a duplicate to hand the VM to another QEMU.
#[derive(Debug)]
pub struct Channels {
    /// Stream pair of the port `pando.ctl`.
    pub ctl: OwnedFd,
    /// Stream pair of the port `pando.data`.
    pub data: OwnedFd,
    /// Pair of the network card, which keeps the bounds of what is written: one Ethernet
    /// frame each. Of kind `SOCK_SEQPACKET`, which takes no address of another socket.
    pub nic: OwnedFd,
}

/// Everything a QEMU needs to start.
#[derive(Debug)]
pub struct QemuConfig {
    /// The program, an absolute path.
    pub binary: PathBuf,
    /// How instructions are run.
    pub accelerator: Accelerator,
    /// CPUs and memory.
    pub size: Size,
    /// The rate of the time stamp counter that the guest was or is told, in kHz.
    pub tsc_khz: Option<u32>,
    /// Where the VM comes from.
    pub start: Start,
    /// The template's root image, raw; `/dev/vda`, read-only.
    pub root: PathBuf,
    /// The layers of the writable disk, qcow2, the lowest first; `/dev/vdb`.
    /// Only the last is written. What each lies on is taken from here alone.
    pub disk: Vec<PathBuf>,
    /// The sockets.
    pub channels: Channels,
    /// QEMU's working directory, in which it can read everything. It can write a
    /// cold start's memory and the last disk layer by name, later files only as
    /// descriptors that it is given, and create none.
    pub slot: PathBuf,
    /// Log of the guest's console, written by this process and bounded.
    pub console: PathBuf,
    /// What confines QEMU beside its own sandbox; its account is this process's.
    pub jail: Layers,
    /// The library of `crates/preload`, by an absolute path: with it the kernel tracks what
    /// the VM writes. A path that the loader would take apart is not used.
    pub preload: Option<PathBuf>,
    /// Code cache of the translator, in MiB; without meaning for KVM.
    /// [`super::TB_SIZE_MIB`] is the measured choice.
    pub tb_size_mib: u32,
}

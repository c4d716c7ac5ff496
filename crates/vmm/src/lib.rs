//! Driving one virtual machine.
//!
//! A [`Vmm`] is a running VMM process that holds one VM. What a VM may do and
//! when it is saved is decided elsewhere: a driver holds no policy.
//!
//! ```text
//!   launch(Cold) ──> cont ──> stop ──> save_device_state ──> quit
//!                                      the memory file is the memory
//!
//!   launch(Unbound) ──> bind ─┐
//!                             v
//!   launch(Load) ──────────> load ──> cont ──> stop ──> capture memory, save_device_state,
//!                               ^               switch_disk_overlay
//!                               └────── cont ─────┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`qemu`] | the driver of QEMU |
//! | [`detect`] | which QEMU is there, and whether KVM works |
//! | [`memory_image`] | memory files of snapshots |
//! | [`capture`] | what changed in a running VM's memory |
//! | [`qcow2`] | empty disk layers |
//! | [`identity`] | what a snapshot is tied to |

pub mod capture;
pub mod detect;
mod error;
mod event;
pub mod identity;
pub mod memory_image;
pub mod qcow2;
pub mod qemu;
mod vmm;

pub use capture::{Arena, CaptureError, Captured, ChangeTracker};
pub use error::{LaunchError, VmmError};
pub use event::{ShutdownReason, VmEvent, VmExit};
pub use identity::MachineIdentity;
pub use memory_image::MemoryImageError;
pub use qemu::{Binding, Channels, Qemu, QemuConfig, Start};
pub use vmm::{PreparedOverlay, RunState, Vmm};

//! Makes what a sandbox boots from: root file system, empty disk, kernel, initrd.
//!
//! ```text
//!   images/base ──┐                       ┌─ root.erofs   /dev/vda, read-only, shared by all
//!   Debian mirror ┼─ mmdebstrap + setup ──┼─ disk.qcow2   /dev/vdb, empty, the layer under every sandbox's own
//!   host's CAs ───┘                       ├─ vmlinuz
//!                                         └─ modules/ ──┐
//!   the guest agent ────────────────────────────────────┴─ initrd.cpio
//! ```
//!
//! Nothing here needs root, Docker or a VM, and nothing here starts one. Every
//! result lies in a cache under the hash of all that went into it, is renamed
//! into place whole and never changes afterwards. The agent is in the initrd
//! only: a new agent makes a new initrd in milliseconds and leaves the root file
//! system, which takes half a minute and the network, as it is.

pub mod base;
mod cpio;
mod disk;
mod error;
mod host_ca;
pub mod initrd;
pub mod kvm_host;
mod mirror;
mod progress;
mod root;
mod scratch;
mod source;
mod tools;

pub use base::{BaseImage, BaseOptions};
pub use error::BuildError;
pub use initrd::Initrd;
pub use kvm_host::KvmHost;
pub use mirror::{host_archive, host_has_suite};
pub use progress::{Progress, ProgressFn};
pub use scratch::scratch_folder;
pub use tools::{REQUIRED_TOOLS, Tool, missing_tools};

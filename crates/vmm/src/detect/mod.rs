//! Which QEMU is there, and whether KVM works on this host.

mod kvm;
mod version;

pub use kvm::{AcceleratorWish, DetectError, Detection, accelerator};
pub use version::{MINIMUM_VERSION, QemuVersion, VersionError};

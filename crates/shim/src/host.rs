//! What the daemon must know of this host's VMM, without knowing the VMM.

use pando_types::{Accelerator, Size};
pub use pando_vmm::MachineIdentity;
pub use pando_vmm::detect::{
    AcceleratorWish, DetectError, Detection, QemuVersion, VersionError, accelerator,
};

/// What a snapshot made now, on this host, would be tied to.
pub fn machine_identity(
    version: &QemuVersion,
    how: Accelerator,
    tsc_khz: Option<u32>,
    size: Size,
) -> MachineIdentity {
    MachineIdentity::current(&version.full(), how, tsc_khz, size)
}

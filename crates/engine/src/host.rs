//! What the engine must know of the host: VMM, accelerator, clock rate, boot.

use crate::{EngineConfig, OpenError};
use pando_shim::host::{self, QemuVersion};
use pando_types::Accelerator;
use std::fs;

/// Facts that hold as long as the daemon runs.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// QEMU's version.
    pub(crate) qemu: QemuVersion,
    /// How guests are run.
    pub(crate) accelerator: Accelerator,
    /// Why, for a person.
    pub(crate) reason: String,
    /// The TSC rate that a guest without KVM is told, in kHz.
    pub(crate) tsc_khz: Option<u32>,
    /// Changes with each start of the host.
    pub(crate) boot_id: String,
}

impl Host {
    /// Finds out; may start a small guest to do so (at most 10 s, then cached).
    ///
    /// # Errors
    /// QEMU is missing or too old, or the wished accelerator does not work.
    pub(crate) fn probe(config: &EngineConfig) -> Result<Self, OpenError> {
        let qemu = QemuVersion::probe(&config.qemu)?;
        let cache = config.cache_dir.join("accelerator");
        let detection = host::accelerator(&config.qemu, &qemu, config.accelerator, Some(&cache))?;
        let tsc_khz = match detection.accelerator {
            Accelerator::Tcg => pando_sys::clock::measure_tsc_khz(),
            Accelerator::Kvm => None,
        };
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_default()
            .trim()
            .to_owned();
        Ok(Self {
            qemu,
            accelerator: detection.accelerator,
            reason: detection.reason,
            tsc_khz,
            boot_id,
        })
    }

    /// The VMM and its version, for a person.
    pub(crate) fn vmm(&self) -> String {
        format!("qemu {}", self.qemu)
    }
}

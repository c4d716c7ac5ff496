//! What a snapshot is tied to.

use std::fmt;

use pando_types::{Accelerator, Size};

use crate::qemu::{CPU_MODEL_KVM, CPU_MODEL_TCG, DEVICE_SET, machine_properties};

/// How far two measurements of one machine's time stamp counter may differ, in
/// parts per million: the measurement's own error and what NTP corrects.
const TSC_TOLERANCE_PPM: u64 = 1000;

/// Everything about a VM that its device state and memory depend on. A snapshot
/// can only be loaded into a VM with the same; elsewhere its disk alone is of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineIdentity {
    /// The VMM and the version of its package, such as `QEMU 10.0.2 (Debian 1:10.0.2+ds-2)`.
    pub vmm: String,
    /// The machine type with its properties.
    pub machine: String,
    /// How instructions are run.
    pub accelerator: Accelerator,
    /// The guest's CPU.
    pub cpu_model: String,
    /// The rate of the time stamp counter in kHz, where the guest was told it.
    pub tsc_khz: Option<u32>,
    /// CPUs and memory.
    pub size: Size,
    /// Name of the set of devices; changed whenever a device is.
    pub devices: String,
}

impl MachineIdentity {
    /// The identity of a VM that this build would start. `vmm` is the VMM with
    /// its package's version; `tsc_khz` the host's rate, which only matters without KVM.
    pub fn current(vmm: &str, accelerator: Accelerator, tsc_khz: Option<u32>, size: Size) -> Self {
        let (cpu_model, tsc_khz) = match accelerator {
            Accelerator::Kvm => (CPU_MODEL_KVM, None),
            Accelerator::Tcg => (CPU_MODEL_TCG, tsc_khz),
        };
        Self {
            vmm: vmm.to_owned(),
            machine: machine_properties(accelerator, tsc_khz),
            accelerator,
            cpu_model: cpu_model.to_owned(),
            tsc_khz,
            size,
            devices: DEVICE_SET.to_owned(),
        }
    }

    /// The first difference that keeps a snapshot of `self` from being loaded
    /// where `host` is the identity, naming both sides; `None` when it can be.
    pub fn mismatch(&self, host: &Self) -> Option<String> {
        let differ = |what: &str, theirs: &dyn fmt::Display, ours: &dyn fmt::Display| {
            let (theirs, ours) = (theirs.to_string(), ours.to_string());
            (theirs != ours).then(|| format!("the {what} was {theirs} and is {ours} here"))
        };
        differ("VMM", &self.vmm, &host.vmm)
            .or_else(|| differ("accelerator", &self.accelerator, &host.accelerator))
            .or_else(|| differ("machine", &self.machine, &host.machine))
            .or_else(|| differ("CPU model", &self.cpu_model, &host.cpu_model))
            .or_else(|| differ("set of devices", &self.devices, &host.devices))
            .or_else(|| differ("size", &self.size, &host.size))
            .or_else(|| tsc_mismatch(self.tsc_khz, host.tsc_khz))
    }
}

fn tsc_mismatch(theirs: Option<u32>, ours: Option<u32>) -> Option<String> {
    let near = |a: u32, b: u32| {
        u64::from(a.abs_diff(b)) * 1_000_000 <= u64::from(a.max(b)) * TSC_TOLERANCE_PPM
    };
    let show = |rate: Option<u32>| rate.map_or("unknown".to_owned(), |khz| format!("{khz} kHz"));
    match (theirs, ours) {
        (None, None) => None,
        (Some(a), Some(b)) if near(a, b) => None,
        _ => Some(format!(
            "the time stamp counter's rate was {} and is {} here",
            show(theirs),
            show(ours)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(accelerator: Accelerator, khz: u32) -> MachineIdentity {
        MachineIdentity::current("QEMU 10.0.2", accelerator, Some(khz), Size::DEFAULT)
    }

    #[test]
    fn one_machine_measured_twice_is_the_same() {
        let first = identity(Accelerator::Tcg, 2_596_144);
        assert_eq!(first.mismatch(&identity(Accelerator::Tcg, 2_596_900)), None);
        let other = first
            .mismatch(&identity(Accelerator::Tcg, 2_700_000))
            .unwrap();
        assert!(other.contains("2596144 kHz and is 2700000 kHz"), "{other}");
    }

    #[test]
    fn with_kvm_the_rate_does_not_matter() {
        let first = identity(Accelerator::Kvm, 1_000_000);
        assert_eq!(first.mismatch(&identity(Accelerator::Kvm, 2_000_000)), None);
    }

    #[test]
    fn a_difference_names_both_sides() {
        let first = identity(Accelerator::Tcg, 2_000_000);
        let mut other = first.clone();
        other.vmm = "QEMU 9.2.0".to_owned();
        let text = first.mismatch(&other).unwrap();
        assert_eq!(text, "the VMM was QEMU 10.0.2 and is QEMU 9.2.0 here");
        let kvm = identity(Accelerator::Kvm, 2_000_000);
        assert!(first.mismatch(&kvm).unwrap().contains("was tcg and is kvm"));
    }
}

//! What the sandbox may use of its host: put on before the VM runs for it.

use crate::machine::{Machine, StartError};
use crate::spec::Limits;
use pando_net::GatewayHandle;
use pando_sys::process::MAX_NICE;
use pando_vmm::Qemu;
use pando_vmm::qemu::DiskRates;
use pando_wire::guest::Resume;
use pando_wire::shim;

/// What a layer of the disk may be larger than what it may hold: its own tables, and
/// clusters of 64 KiB of which the guest uses a part. The guest has been told of a full
/// disk long before; this is for one that does not listen.
const DISK_SLACK_PART: u64 = 4;
const DISK_SLACK_BYTES: u64 = 128 << 20;

/// What each step of a priority changes: the kernel gives a process a quarter more time than
/// one that is one step nicer (`sched_prio_to_weight` in Linux's kernel/sched/core.c).
const NICE_STEP: f64 = 1.25;

impl Limits {
    /// What the daemon says in a claim.
    pub(crate) fn of(message: shim::Limits) -> Self {
        Self {
            cpu_percent: message.cpu_percent,
            processes: message.processes,
            disk_mib: message.disk_mib,
            disk_mib_s: message.disk_mib_s,
            disk_iops: message.disk_iops,
            net_mib_s: message.net_mib_s,
            open_files: message.open_files,
        }
    }

    /// What the agent is told.
    pub(crate) fn tell(&self, resume: &mut Resume) {
        resume.processes_max = self.processes.unwrap_or(0);
        resume.open_files_max = self.open_files.unwrap_or(0);
        resume.disk_bytes_max = self.disk_mib.map_or(0, mib);
    }

    /// The most that a file of the disk may be, in bytes.
    fn file_bytes(&self) -> Option<u64> {
        let bytes = mib(self.disk_mib?);
        Some(bytes + bytes / DISK_SLACK_PART + DISK_SLACK_BYTES)
    }

    fn disk_rates(&self) -> Option<DiskRates> {
        if self.disk_mib_s.or(self.disk_iops).is_none() {
            return None;
        }
        Some(DiskRates {
            bytes_per_second: self.disk_mib_s.map(mib),
            requests_per_second: self.disk_iops.map(u64::from),
        })
    }
}

fn mib(count: u32) -> u64 {
    u64::from(count) << 20
}

/// The priority that gives a VM of so many CPUs about this share beside another that wants
/// all of its own.
fn nice_of(cpu_percent: u32, cpus: u32) -> i32 {
    let share = f64::from(cpu_percent) / (f64::from(cpus.max(1)) * 100.0);
    let steps = (1.0 / share.max(0.01)).ln() / NICE_STEP.ln();
    #[expect(clippy::cast_possible_truncation, reason = "it is between 0 and 21")]
    let steps = steps.ceil() as i32;
    steps.clamp(0, MAX_NICE)
}

impl Machine {
    /// Puts on all that is outside the guest. The VM has its devices, and no program of the
    /// sandbox has run yet.
    pub(crate) async fn limit(
        &self,
        qemu: &Qemu,
        gateway: &GatewayHandle,
        limits: &Limits,
    ) -> Result<(), StartError> {
        if let Some(percent) = limits.cpu_percent {
            let nice = nice_of(percent, self.spec.cpus);
            qemu.be_nice(nice).map_err(StartError::Limit)?;
        }
        if let Some(bytes) = limits.file_bytes() {
            qemu.limit_file_bytes(bytes).map_err(StartError::Limit)?;
        }
        if let Some(rates) = limits.disk_rates() {
            qemu.limit_disk_rates(&rates).await?;
        }
        let own = limits.net_mib_s.map(mib);
        if let Some(rate) = own.or(self.spec.bandwidth_bytes_per_second) {
            gateway.limit_bandwidth(rate);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_share_is_a_lower_priority() {
        assert_eq!(nice_of(100, 1), 0);
        assert_eq!(nice_of(800, 8), 0);
        assert_eq!(nice_of(80, 1), 1);
        assert_eq!(nice_of(50, 1), 4);
        assert_eq!(nice_of(100, 2), 4);
        assert_eq!(nice_of(5, 1), 14);
        assert_eq!(nice_of(5, 8), MAX_NICE);
        assert_eq!(nice_of(0, 0), MAX_NICE);
    }

    #[test]
    fn a_layer_may_be_larger_than_what_it_holds_and_no_more_than_half() {
        let limits = Limits {
            disk_mib: Some(1024),
            ..Limits::default()
        };
        let bytes = limits.file_bytes();
        assert_eq!(bytes, Some((1024 + 256 + 128) << 20));
        assert_eq!(Limits::default().file_bytes(), None);
        assert_eq!(Limits::default().disk_rates(), None);
    }
}

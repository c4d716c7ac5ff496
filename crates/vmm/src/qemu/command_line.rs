//! The kernel's arguments at a cold start.

use std::fmt;

use pando_types::Accelerator;

/// Timer ticks per second of Debian's kernels (`CONFIG_HZ`), which the
/// calibration value below is counted in.
const KERNEL_HZ: u64 = 250;

/// How far the agent goes at a cold start before it waits for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BakePoint {
    /// The root is mounted and services are up.
    Ready,
    /// The agent is up and the writable disk not yet opened.
    PreMount,
}

impl BakePoint {
    /// Its word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::PreMount => "pre-mount",
        }
    }
}

/// The kernel's arguments; `Display` writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// How instructions are run.
    pub accelerator: Accelerator,
    /// The host's time stamp counter in kHz; needed without KVM, else ignored.
    pub tsc_khz: Option<u32>,
    /// How far the agent goes.
    pub bake: BakePoint,
}

impl fmt::Display for CommandLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A panic or restart of the guest must end the VM, which has no other
        // way to say so: at once (-1), by a triple fault (t).
        formatter.write_str("console=ttyS0 quiet panic=-1 reboot=t")?;
        // A VM that was stopped for a while has not locked up.
        formatter.write_str(" nowatchdog rcupdate.rcu_cpu_stall_suppress=1")?;
        if self.accelerator == Accelerator::Tcg {
            self.write_tcg(formatter)?;
        }
        write!(formatter, " pando.bake={}", self.bake.as_str())
    }
}

impl CommandLine {
    /// The translator's timers are too coarse for the kernel's calibration,
    /// which hangs or finds a wrong rate.
    fn write_tcg(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(" tsc=reliable no_timer_check")?;
        if let Some(khz) = self.tsc_khz {
            let loops_per_jiffy = u64::from(khz) * 1000 / KERNEL_HZ;
            write!(formatter, " tsc_early_khz={khz} lpj={loops_per_jiffy}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_kvm_the_kernel_is_told_the_rate() {
        let tcg = CommandLine {
            accelerator: Accelerator::Tcg,
            tsc_khz: Some(2_596_144),
            bake: BakePoint::PreMount,
        };
        assert_eq!(
            tcg.to_string(),
            "console=ttyS0 quiet panic=-1 reboot=t nowatchdog rcupdate.rcu_cpu_stall_suppress=1 \
             tsc=reliable no_timer_check tsc_early_khz=2596144 lpj=10384576 pando.bake=pre-mount"
        );
        let kvm = CommandLine {
            accelerator: Accelerator::Kvm,
            ..tcg
        };
        assert!(!kvm.to_string().contains("tsc"));
    }
}

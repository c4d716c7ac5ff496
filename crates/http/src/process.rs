//! What this process costs, as proc(5) says it.

use std::fs;
use std::time::Duration;

/// Ticks of `/proc/PID/stat` in a second: 100 on every x86-64 Linux, whatever the kernel's own.
const TICKS_PER_SECOND: u64 = 100;

/// What it costs; what cannot be found out is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// Resident memory.
    pub(crate) resident_bytes: u64,
    /// Open descriptors.
    pub(crate) open_fds: u64,
    /// How many it may have open.
    pub(crate) max_fds: u64,
    /// Processor time since its start.
    pub(crate) cpu: Duration,
}

impl Process {
    /// Of this one, now.
    pub(crate) fn of_this() -> Self {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        Self {
            resident_bytes: resident_bytes(&read("status")).unwrap_or(0),
            // One of them is this look's own.
            open_fds: fs::read_dir("/proc/self/fd")
                .map_or(0, |fds| fds.count().saturating_sub(1) as u64),
            max_fds: max_fds(&read("limits")).unwrap_or(0),
            cpu: cpu(&read("stat")).unwrap_or_default(),
        }
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn max_fds(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Fields 14 and 15: in user mode and in the kernel.
fn cpu(stat: &str) -> Option<Duration> {
    // The second field is the program's name in parentheses and may hold spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis(
        (user + system) * 1000 / TICKS_PER_SECOND,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        assert_eq!(
            resident_bytes("VmSize:\t 9 kB\nVmRSS:\t   12 kB\n"),
            Some(12 << 10)
        );
        assert_eq!(
            max_fds(
                "Limit  Soft\nMax open files            1024                 4096                 files\n"
            ),
            Some(1024)
        );
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 150 51 0 0 20 0 1 0 5";
        assert_eq!(cpu(stat), Some(Duration::from_millis(2010)));
        for nothing in ["", "garbage", "VmRSS: x kB", "Max open files unlimited"] {
            assert_eq!(
                (resident_bytes(nothing), max_fds(nothing), cpu(nothing)),
                (None, None, None)
            );
        }
        let own = Process::of_this();
        assert!(
            own.resident_bytes > 0 && own.open_fds > 2 && own.max_fds >= own.open_fds,
            "{own:?}"
        );
    }
}

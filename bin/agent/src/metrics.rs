//! Numbers about the guest.

use std::fs;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::sandbox::Sandbox;

/// Memory, as the kernel counts it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All that the kernel manages.
    pub total_bytes: u64,
    /// What could be had without swapping.
    pub available_bytes: u64,
    /// Page cache.
    pub cached_bytes: u64,
}

/// Space on the writable disk.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Disk {
    /// Its size.
    pub total_bytes: u64,
    /// What is left.
    pub free_bytes: u64,
}

/// The memory's state; zero where `/proc` can't be read.
pub(crate) fn memory() -> Memory {
    memory_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn memory_of(meminfo: &str) -> Memory {
    let bytes = |name| pando_sys::host::meminfo_bytes(meminfo, name).unwrap_or(0);
    Memory {
        total_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemAvailable"),
        cached_bytes: bytes("Cached"),
    }
}

/// `mult` of the first CPU's clock event device; zero where the kernel does not say.
pub(crate) fn timer_mult() -> u64 {
    mult_of(&fs::read_to_string("/proc/timer_list").unwrap_or_default())
}

fn mult_of(timer_list: &str) -> u64 {
    let mut lines = timer_list.lines();
    // Other devices come before those of the CPUs.
    lines.find(|line| line.starts_with("Per CPU device:") && !line.contains("-1"));
    let mult = lines.find_map(|line| line.trim().strip_prefix("mult:"));
    mult.and_then(|mult| mult.trim().parse().ok()).unwrap_or(0)
}

/// The writable disk's state; zero while it is not mounted.
pub(crate) fn disk(sandbox: &Sandbox) -> Disk {
    let Some(root) = sandbox.root() else {
        return Disk::default();
    };
    let Ok(disk) = rustix::fs::fstatvfs(&root.disk) else {
        return Disk::default();
    };
    Disk {
        total_bytes: disk.f_blocks * disk.f_frsize,
        free_bytes: disk.f_bavail * disk.f_frsize,
    }
}

/// Milliseconds since the kernel started.
pub(crate) fn uptime_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1000 + nanoseconds / 1_000_000
}

/// Busy and total time of all CPUs at the last call, for a rate since then.
static LAST_CPU: Mutex<(u64, u64)> = Mutex::new((0, 0));

fn cpu_used_percent() -> f64 {
    let (busy, total) = cpu_times(&fs::read_to_string("/proc/stat").unwrap_or_default());
    let mut last = LAST_CPU
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (busy_before, total_before) = std::mem::replace(&mut *last, (busy, total));
    let elapsed = total.saturating_sub(total_before).max(1) as f64;
    let used = busy.saturating_sub(busy_before) as f64;
    (used / elapsed * 10_000.0).round() / 100.0
}

/// Busy and total time in ticks.
fn cpu_times(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .flat_map(str::parse)
        .collect();
    let total: u64 = ticks.iter().sum();
    // The fourth and fifth are idle and waiting for a disk.
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (total - idle, total)
}

/// The document that E2B's clients read.
pub(crate) fn document(sandbox: &Sandbox) -> Value {
    let (memory, disk) = (memory(), disk(sandbox));
    let used_bytes = memory.total_bytes.saturating_sub(memory.available_bytes);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    json!({
        "ts": now.as_secs(),
        "cpu_count": cpus,
        "cpu_used_pct": cpu_used_percent(),
        "mem_total": memory.total_bytes,
        "mem_used": used_bytes,
        "mem_cache": memory.cached_bytes,
        "mem_total_mib": memory.total_bytes >> 20,
        "mem_used_mib": used_bytes >> 20,
        "disk_used": disk.total_bytes.saturating_sub(disk.free_bytes),
        "disk_total": disk.total_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_of_the_first_cpu_is_found() {
        let list = "Timer List Version: v0.10\n\nTick Device: mode:     1\nBroadcast device\n\
                    Clock Event Device: <NULL>\n\nTick Device: mode:     1\nPer CPU device: 0\n\
                    Clock Event Device: lapic\n max_delta_ns:   34\n mult:           268435456\n shift: 32\n";
        assert_eq!(mult_of(list), 268_435_456);
        assert_eq!(mult_of("mult: 7\n"), 0);
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable: 60 kB\nCached:  7 kB\n";
        let expected = Memory {
            total_bytes: 102_400,
            available_bytes: 61_440,
            cached_bytes: 7168,
        };
        assert_eq!(memory_of(meminfo), expected);
        assert_eq!(memory_of(""), Memory::default());
        assert_eq!(cpu_times("cpu  10 0 5 80 5 0 0 0 9 9\ncpu0 1"), (15, 100));
        assert_eq!(cpu_times(""), (0, 0));
    }
}

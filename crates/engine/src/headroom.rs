//! What the host has left.

use crate::engine::Inner;
use crate::request::Headroom;

/// The kernel's averages of tasks that run or wait; see proc(5).
const LOAD: &str = "/proc/loadavg";

/// Looks; what cannot be found out is 0.
pub(crate) fn headroom(inner: &Inner) -> Headroom {
    let memory = pando_sys::host::memory().ok();
    let disk = rustix::fs::statvfs(&inner.config.state_dir).ok();
    let load = std::fs::read_to_string(LOAD).unwrap_or_default();
    let load = load.split(' ').next().and_then(|word| word.parse().ok());
    Headroom {
        memory_available_bytes: memory.as_ref().map_or(0, |memory| memory.available_bytes),
        memory_total_bytes: memory.as_ref().map_or(0, |memory| memory.total_bytes),
        disk_available_bytes: disk
            .as_ref()
            .map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
        disk_size_bytes: disk
            .as_ref()
            .map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
        cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        load_1m: load.unwrap_or(0.0),
    }
}

//! Control groups of sandboxes, where the host lets the daemon have some
//! ([`pando_sys::cgroup`]): each sandbox's shim and VMM are in one that is named like the
//! sandbox's directory. Elsewhere nothing here does anything.

use pando_store::SandboxDir;
use pando_sys::cgroup::{self, GroupLimits};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Memory of a sandbox beyond its guest's, in MiB: QEMU itself and its cache of translated
/// code (128), the shim with its buffers (64 MiB of output and connections at the most), the
/// kernel's own for both, and page cache of its disk, which the kernel takes back first.
/// A sound sandbox stays far below; it is for those that were taken over.
const MEMORY_OVERHEAD_MIB: u64 = 512;

/// Processes and threads of a sandbox. QEMU has one for each of 8 CPUs and up to 64 that
/// do I/O, the shim one for each of the host's CPUs and those that wait on files.
const PROCESSES: u64 = 1024;

/// How long the threads of a killed VM may take to end: they give back its memory.
const REMOVAL_WAIT: Duration = Duration::from_secs(5);

/// How often we look.
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// The group that the shim of a sandbox of this size is to be born in.
pub(crate) fn create(dir: &SandboxDir, memory_mib: u32) -> Option<OwnedFd> {
    let groups = cgroup::ours()?;
    let guest = u64::from(memory_mib) << 20;
    let limits = GroupLimits {
        memory_bytes: Some(guest + (MEMORY_OVERHEAD_MIB << 20)),
        // All of its guest may be swapped out, and no more than that.
        swap_bytes: Some(guest),
        processes: Some(PROCESSES),
    };
    match groups.create(&name(dir), &limits) {
        Ok(group) => Some(group),
        Err(error) => {
            tracing::warn!(sandbox = %name(dir), "it gets no control group: {error}");
            None
        }
    }
}

/// Says what CPU time it may have, in percent of one CPU. Once it is up: to come up is
/// the daemon's work, which others wait for.
pub(crate) fn limit_cpu(dir: &SandboxDir, percent: Option<u32>) {
    let Some(groups) = cgroup::ours() else { return };
    if let Err(error) = groups.limit_cpu(&name(dir), percent) {
        tracing::warn!(sandbox = %name(dir), "its CPU time is not limited: {error}");
    }
}

/// Why it ended, where its control group knows better than who saw it die.
pub(crate) fn explain(dir: &SandboxDir, cause: String) -> String {
    match cgroup::ours().map_or(0, |groups| groups.oom_kills(&name(dir))) {
        0 => cause,
        _ => format!("out of memory: the host's kernel ended it at its limit; {cause}"),
    }
}

/// Removes the group of a sandbox whose processes were killed. A process that is waited
/// for no more may have threads that still end; what takes longer is left to the next daemon.
pub(crate) async fn remove(dir: &SandboxDir) {
    let Some(groups) = cgroup::ours() else { return };
    let deadline = tokio::time::Instant::now() + REMOVAL_WAIT;
    while !groups.remove(&name(dir)) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(REMOVAL_PAUSE).await;
    }
}

fn name(dir: &SandboxDir) -> String {
    let name = dir.path().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

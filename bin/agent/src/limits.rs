//! What user processes may use, as the host says it at every resume.
//!
//! These give programs errors that they understand: a full disk, no more processes. Root
//! in the guest can undo them; what protects the host from it is around the VM.

use anyhow::{Context, Result};
use pando_wire::guest::Resume;

use crate::sandbox::Sandbox;

/// Clusters of the writable disk that ext4 gives to nobody, not even to root, until it is
/// told another number (Linux, Documentation/ABI/testing/sysfs-fs-ext4).
const RESERVED_CLUSTERS: &str = "/sys/fs/ext4/vdb/reserved_clusters";

/// What ext4 keeps back by itself: a 50th, and no more than this (`ext4_calculate_resv_clusters`
/// in Linux's fs/ext4/super.c).
const USUAL_PART: u64 = 50;
const USUAL_MOST: u64 = 4096;

/// Applies all of them; the root is assembled.
///
/// # Errors
/// Names what could not be applied; the others are.
pub(crate) fn apply(sandbox: &Sandbox, resume: &Resume) -> Result<()> {
    let all = [
        resume.processes_max.into(),
        resume.open_files_max.into(),
        resume.disk_bytes_max,
    ];
    let limited = all.iter().any(|most: &u64| *most > 0);
    // Nothing is limited, as in the snapshot: what is not done takes no time of a spawn.
    if !sandbox.limit(limited) && !limited {
        return Ok(());
    }
    sandbox.limit_open_files(resume.open_files_max.into());
    let processes = sandbox.cgroup.limit_processes(resume.processes_max.into());
    let disk = limit_disk(sandbox, resume.disk_bytes_max);
    processes.context("processes")?;
    disk.context("the disk")
}

fn limit_disk(sandbox: &Sandbox, most_bytes: u64) -> Result<()> {
    let Some(root) = sandbox.root() else {
        return Ok(());
    };
    let disk = rustix::fs::fstatvfs(&root.disk)?;
    let wanted = reserved(disk.f_blocks, disk.f_frsize, most_bytes);
    Ok(std::fs::write(RESERVED_CLUSTERS, wanted.to_string())?)
}

/// How many of its clusters a file system of so many keeps back, so that it holds no more
/// than `most_bytes`; 0 is as much as it can.
fn reserved(clusters: u64, cluster_bytes: u64, most_bytes: u64) -> u64 {
    let usual = (clusters / USUAL_PART).min(USUAL_MOST);
    if most_bytes == 0 {
        return usual;
    }
    let most = most_bytes / cluster_bytes.max(1);
    // ext4 refuses to keep back everything.
    let kept = clusters.saturating_sub(most);
    kept.max(usual).min(clusters.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_keeps_back_what_is_beyond_its_limit() {
        let gib = (1 << 30) / 4096;
        assert_eq!(reserved(8 * gib, 4096, 0), USUAL_MOST);
        assert_eq!(reserved(8 * gib, 4096, 1 << 30), 7 * gib);
        // What ext4 needs for itself stays.
        assert_eq!(reserved(8 * gib, 4096, 8 << 30), USUAL_MOST);
        assert_eq!(reserved(1000, 4096, 0), 20);
        assert_eq!(reserved(1000, 4096, 1), 999);
        assert_eq!(reserved(0, 0, 1), 0);
    }
}

//! What the host has left: memory and disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The host's memory, or this process's share of it where a cgroup limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// What new processes could be given without swapping, in bytes.
    pub available_bytes: u64,
}

/// Where the hierarchies of cgroups are mounted on every distribution.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Reads what the kernel says of the host's memory, and of the limit of the cgroup this
/// process is in (version 2, or the memory controller of version 1).
///
/// # Errors
/// `/proc/meminfo` cannot be read or lacks what kernels since 3.14 say.
pub fn memory() -> io::Result<Memory> {
    let host = of_meminfo(&fs::read_to_string("/proc/meminfo")?).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "`/proc/meminfo` lacks MemAvailable",
        )
    })?;
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = cgroup_dirs(&membership)
        .into_iter()
        .filter_map(|dir| limit_in(&dir));
    Ok(limits.fold(host, within))
}

/// Bytes that can still be written to the file system that `path` is on.
///
/// # Errors
/// The path is not there.
pub fn disk_free_bytes(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn of_meminfo(text: &str) -> Option<Memory> {
    Some(Memory {
        total_bytes: meminfo_bytes(text, "MemTotal")?,
        available_bytes: meminfo_bytes(text, "MemAvailable")?,
    })
}

/// A field of `/proc/meminfo`, in bytes; `None` where the kernel does not say it.
pub fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let fields = text.lines().filter_map(|line| line.strip_prefix(name));
    let value = fields.filter_map(|rest| rest.strip_prefix(':')).next()?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Every directory whose limit counts: this process's cgroup and those above it.
fn cgroup_dirs(membership: &str) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let root = match controllers {
            "" => PathBuf::from(CGROUPS),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Path::new(CGROUPS).join("memory")
            }
            _ => continue,
        };
        let relative = path.trim_start_matches('/');
        let below = Path::new(relative).ancestors().map(|path| root.join(path));
        dirs.extend(below);
    }
    dirs
}

/// A cgroup's limit and what of it is used, file caches that can be dropped left out.
fn limit_in(dir: &Path) -> Option<(u64, u64)> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let cache = read("memory.stat").and_then(|stat| {
        let field = |name: &str| {
            stat.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        field("total_inactive_file ").or_else(|| field("inactive_file "))
    });
    Some((limit, used.saturating_sub(cache.unwrap_or(0))))
}

fn within(memory: Memory, (limit, used): (u64, u64)) -> Memory {
    Memory {
        total_bytes: memory.total_bytes.min(limit),
        available_bytes: memory.available_bytes.min(limit.saturating_sub(used)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let text = "MemTotal:       24614124 kB\nMemFree: 5 kB\nMemAvailable:   1024 kB\n";
        let memory = Memory {
            total_bytes: 24_614_124 << 10,
            available_bytes: 1 << 20,
        };
        assert_eq!(of_meminfo(text), Some(memory));
        assert_eq!(of_meminfo("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn a_cgroups_limit_and_those_above_it_count() {
        let v2 = cgroup_dirs("0::/system.slice/pando.service\n");
        let expected = ["system.slice/pando.service", "system.slice", ""];
        assert_eq!(v2, expected.map(|path| Path::new(CGROUPS).join(path)));
        let v1 = cgroup_dirs("4:cpu,cpuacct:/a\n3:memory:/b\n");
        assert_eq!(v1[0], Path::new("/sys/fs/cgroup/memory/b"));
        assert!(
            v1.iter()
                .all(|path| path.starts_with("/sys/fs/cgroup/memory"))
        );
        let host = Memory {
            total_bytes: 100,
            available_bytes: 50,
        };
        let small = within(host, (40, 30));
        assert_eq!((small.total_bytes, small.available_bytes), (40, 10));
        assert_eq!(within(host, (u64::MAX, 7)), host);
    }

    #[test]
    fn files_of_both_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        assert_eq!(limit_in(dir.path()), None);
        write("memory.max", "1000\n");
        write("memory.current", "600\n");
        write("memory.stat", "anon 1\ninactive_file 500\n");
        assert_eq!(limit_in(dir.path()), Some((1000, 100)));
    }

    #[test]
    fn this_host_has_some_of_both() {
        let memory = memory().unwrap();
        assert!(memory.available_bytes > 0 && memory.available_bytes <= memory.total_bytes);
        assert!(disk_free_bytes(Path::new("/")).unwrap() > 0);
    }
}

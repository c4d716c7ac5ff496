//! The kernel's own file systems.

use std::fs::{create_dir_all, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

struct Mount {
    source: &'static str,
    target: &'static str,
    kind: &'static str,
    flags: MountFlags,
    data: &'static std::ffi::CStr,
}

const NOTHING_SPECIAL: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// In this order; each below a parent that comes before it.
const EARLY: [Mount; 7] = [
    Mount {
        source: "devtmpfs",
        target: "/dev",
        kind: "devtmpfs",
        flags: MountFlags::NOSUID,
        data: c"mode=755",
    },
    Mount {
        source: "proc",
        target: "/proc",
        kind: "proc",
        flags: NOTHING_SPECIAL,
        data: c"",
    },
    Mount {
        source: "sysfs",
        target: "/sys",
        kind: "sysfs",
        flags: NOTHING_SPECIAL,
        data: c"",
    },
    Mount {
        source: "tmpfs",
        target: "/run",
        kind: "tmpfs",
        flags: MountFlags::NOSUID.union(MountFlags::NODEV),
        data: c"mode=755",
    },
    Mount {
        source: "devpts",
        target: "/dev/pts",
        kind: "devpts",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        data: c"gid=5,mode=620,ptmxmode=666",
    },
    Mount {
        source: "tmpfs",
        target: "/dev/shm",
        kind: "tmpfs",
        flags: MountFlags::NOSUID.union(MountFlags::NODEV),
        data: c"mode=1777",
    },
    Mount {
        source: "cgroup2",
        target: "/sys/fs/cgroup",
        kind: "cgroup2",
        flags: NOTHING_SPECIAL,
        data: c"nsdelegate",
    },
];

/// Those that move into the assembled root, with what is mounted below them.
pub(super) const MOVED: [&str; 4] = ["/dev", "/proc", "/sys", "/run"];

pub(super) fn mount_early() -> Result<()> {
    for entry in &EARLY {
        // sysfs has its own mount points and allows no others.
        let _ = create_dir_all(entry.target);
        match mount(
            entry.source,
            entry.target,
            entry.kind,
            entry.flags,
            entry.data,
        ) {
            // The kernel mounts devtmpfs by itself where it is built to.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(error).with_context(|| entry.target.to_owned()),
        }
    }
    let links = [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
        ("pts/ptmx", "/dev/ptmx"),
    ];
    for (target, link) in links {
        let _ = std::fs::remove_file(link);
        std::os::unix::fs::symlink(target, link).with_context(|| link.to_owned())?;
    }
    create_dir_all("/run/lock").context("/run/lock")?;
    set_permissions(Path::new("/run/lock"), PermissionsExt::from_mode(0o1777))?;
    Ok(())
}

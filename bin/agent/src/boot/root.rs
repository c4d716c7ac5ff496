//! The root: an overlay of the writable disk over the base image.
//!
//! ```text
//!   /            overlay          what everybody sees
//!   ├─ lower     /dev/vda         base image, read-only, shared by all sandboxes
//!   └─ upper     /dev/vdb         ext4, the sandbox's own
//! ```
//!
//! Both file systems stay mounted in the initrd's root, out of reach below `/`.

use std::fs::{File, create_dir_all, set_permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_move};

use super::mounts::MOVED;
use super::network::GATEWAY;
use super::wait_for;

const BASE: &str = "/mnt/base";
const DISK: &str = "/mnt/disk";
const ROOT: &str = "/mnt/root";

/// What a base image may be.
const BASE_KINDS: [&str; 3] = ["erofs", "ext4", "squashfs"];

/// The assembled root's writable disk, kept open for sizes and the last sync.
pub(crate) struct Root {
    /// The folder that `/dev/vdb` is mounted on.
    pub disk: OwnedFd,
}

/// Mounts the base image. Done early also where the writable disk is not opened
/// yet, so that a clone does not have to.
pub(super) fn mount_base() -> Result<()> {
    let device = wait_for("/dev/vda", || {
        Path::new("/dev/vda").exists().then_some("/dev/vda")
    })?;
    create_dir_all(BASE)?;
    let flags = MountFlags::RDONLY | MountFlags::NOATIME;
    for kind in BASE_KINDS {
        match mount(device, BASE, kind, flags, c"") {
            Ok(()) => return Ok(()),
            Err(Errno::INVAL | Errno::NODEV) => {}
            Err(error) => return Err(error).context("cannot mount the base image"),
        }
    }
    anyhow::bail!("the base image is none of {BASE_KINDS:?}")
}

/// Mounts the writable disk, builds the overlay and makes it `/`.
///
/// # Errors
/// No sandbox can run then.
pub(crate) fn assemble() -> Result<Root> {
    wait_for("/dev/vdb", || Path::new("/dev/vdb").exists().then_some(()))?;
    for folder in [DISK, ROOT] {
        create_dir_all(folder)?;
    }
    // A lazy initialisation of the inode tables would go on in every clone, and write to
    // its disk, for nothing: checksums tell what was never used. So would the reading of
    // all block bitmaps, by a thread that ends some time later in each of them.
    let options = c"discard,noinit_itable,no_prefetch_block_bitmaps";
    mount("/dev/vdb", DISK, "ext4", MountFlags::NOATIME, options)
        .context("cannot mount the writable disk")?;
    for folder in ["upper", "work"] {
        create_dir_all(Path::new(DISK).join(folder)).context("the writable disk")?;
    }
    let layers = c"lowerdir=/mnt/base,upperdir=/mnt/disk/upper,workdir=/mnt/disk/work";
    mount("overlay", ROOT, "overlay", MountFlags::NOATIME, layers)
        .context("cannot mount the overlay")?;
    let folder = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let disk = rustix::fs::open(DISK, folder, Mode::empty())?;
    enter().context("cannot enter the root")?;
    prepare().context("cannot prepare the root")?;
    Ok(Root { disk })
}

/// Moves the kernel's file systems into the new root and makes it `/`.
fn enter() -> Result<()> {
    for target in MOVED {
        let inside = format!("{ROOT}{target}");
        create_dir_all(&inside)?;
        mount_move(target, &inside).with_context(|| target.to_owned())?;
    }
    rustix::process::chdir(ROOT)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// What every root needs, whatever its image brought.
fn prepare() -> Result<()> {
    for (folder, mode) in [
        ("/tmp", 0o1777),
        ("/etc", 0o755),
        ("/etc/pando/resume.d", 0o755),
        ("/run/pando", 0o755),
        ("/run/pando/notify", 0o1777),
    ] {
        let path = Path::new(folder);
        if !path.exists() {
            create_dir_all(path)?;
            set_permissions(path, PermissionsExt::from_mode(mode))?;
        }
    }
    // Twice: each later epoch finds both of its files.
    for _ in 0..2 {
        crate::epoch::renew(Path::new(crate::resume::RUN))?;
    }
    write_if_changed("/etc/resolv.conf", &format!("nameserver {GATEWAY}\n"))
}

/// Writes a file only where its content differs: a write copies it to the upper layer.
///
/// In place: to cut the old content off first sends ext4 down long paths, which in a
/// fresh clone without KVM are still to be translated, between HELLO and its answer.
pub(crate) fn write_if_changed(path: &str, content: &str) -> Result<()> {
    let old = std::fs::read(path).ok();
    if old.as_deref() == Some(content.as_bytes()) {
        return Ok(());
    }
    // Not through a link: it may point to what nobody provides here.
    if Path::new(path).is_symlink() {
        std::fs::remove_file(path).with_context(|| path.to_owned())?;
    }
    let is_longer = old.is_none_or(|old| old.len() > content.len());
    write_in_place(path, content, is_longer).with_context(|| path.to_owned())
}

fn write_in_place(path: &str, content: &str, is_longer: bool) -> std::io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.write_all(content.as_bytes())?;
    if is_longer {
        file.set_len(content.len() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_new_content_and_nothing_of_the_old() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("hostname");
        let path = path.to_str().expect("text");
        for content in ["longer\n", "long\n", "long\n", "the longest\n"] {
            write_if_changed(path, content).expect("written");
            assert_eq!(std::fs::read_to_string(path).expect("read"), content);
        }
        std::fs::remove_file(path).expect("removed");
        std::os::unix::fs::symlink("/nowhere/at/all", path).expect("link");
        write_if_changed(path, "own\n").expect("written");
        assert_eq!(std::fs::read_to_string(path).expect("read"), "own\n");
    }
}

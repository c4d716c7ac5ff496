//! The folder that `mmdebstrap` works in: one build of a user at a time.
//!
//! A build that ends takes its folder away. One that is killed cannot: what it
//! left belongs to ids of a user namespace, and a mount may stand in it. So
//! builds as root mount in a name space of their own, which goes with them, and
//! the next build clears up before it begins.

use crate::error::BuildError;
use crate::progress::{Progress, ProgressFn};
use crate::tools;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time that the rest of a killed build gets to end: it is waiting for apt or dpkg.
const ORPHANS_TIMEOUT: Duration = Duration::from_secs(30);

/// A locked, empty folder. `/tmp` is memory on some hosts, and the caches of
/// users are closed to the root of a namespace; `/var/tmp` is neither.
pub(crate) struct Scratch {
    folder: PathBuf,
    // Released by the kernel also where this process is killed.
    _lock: File,
}

/// Where this user's builds work: `$TMPDIR` or `/var/tmp`, in a folder that stays,
/// empty but for its lock, until Pando is uninstalled.
pub fn scratch_folder() -> PathBuf {
    let parent = std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from);
    let user = rustix::process::geteuid().as_raw();
    parent.join(format!("pando-build-{user}"))
}

impl Scratch {
    /// Waits for other builds of this user, then clears what killed ones left.
    pub(crate) fn open(progress: ProgressFn<'_>) -> Result<Self, BuildError> {
        let folder = scratch_folder();
        own_folder(&folder, rustix::process::geteuid().as_raw())?;
        let lock = lock(&folder.join("lock"), progress)?;
        let scratch = Self {
            folder,
            _lock: lock,
        };
        scratch.clear(progress)?;
        Ok(scratch)
    }

    /// The command with what ends it when this thread is no more.
    pub(crate) fn command(&self, program: &'static str) -> Result<Command, BuildError> {
        let path = tools::command(program)?.get_program().to_owned();
        let mut command = tools::command("setpriv")?;
        if tools::is_root() {
            let unshare = tools::command("unshare")?.get_program().to_owned();
            command.args(["--pdeathsig", "KILL"]).arg(unshare);
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        } else {
            // It makes its own namespaces.
            command.args(["--pdeathsig", "TERM"]);
        }
        command.arg(path).env("TMPDIR", &self.folder);
        Ok(command)
    }

    fn clear(&self, progress: ProgressFn<'_>) -> Result<(), BuildError> {
        let entries =
            std::fs::read_dir(&self.folder).map_err(BuildError::file("list", &self.folder))?;
        let left: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().is_some_and(|name| name != "lock"))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        // To remove a file below a mount is to remove it from somewhere else.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")
            .map_err(BuildError::file("read", "/proc/self/mountinfo"))?;
        if let Some(path) = mount_below(&mounts, &self.folder) {
            return Err(BuildError::MountedBelow { path });
        }
        // The processes of a killed build may take a moment to notice.
        let deadline = Instant::now() + ORPHANS_TIMEOUT;
        for path in left {
            while let Err(error) = remove(&path, progress) {
                if Instant::now() > deadline {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        Ok(())
    }
}

/// Removes a file or folder of this user's, or of root's in a namespace of this
/// user's, for whom nothing but the (then empty) folder itself is out of reach.
fn remove(path: &Path, progress: ProgressFn<'_>) -> Result<(), BuildError> {
    let gone = |result: std::io::Result<()>| match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    if gone(std::fs::remove_dir_all(path)).is_ok() || tools::is_root() {
        return gone(std::fs::remove_dir_all(path)).map_err(BuildError::file("remove", path));
    }
    let mut helper = tools::command("mmdebstrap")?;
    helper.args(["--unshare-helper", "find"]).arg(path).args([
        "-xdev",
        "-mindepth",
        "1",
        "-delete",
    ]);
    tools::run("find", &mut helper, "", progress)?;
    gone(std::fs::remove_dir(path)).map_err(BuildError::file("remove", path))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever is left for a reason is reported by the next build.
        self.clear(&|_| {}).ok();
    }
}

/// The folder is in a place where everybody may put one of that name first.
fn own_folder(folder: &Path, user: u32) -> Result<(), BuildError> {
    match DirBuilder::new().mode(0o711).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(BuildError::file("create", folder)(error));
        }
        _ => {}
    }
    let found = folder
        .symlink_metadata()
        .map_err(BuildError::file("look at", folder))?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(BuildError::NotOurs {
        path: folder.into(),
    })
}

/// The first place below `folder` where something is mounted.
fn mount_below(mountinfo: &str, folder: &Path) -> Option<PathBuf> {
    let places = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .map(PathBuf::from)
        .find(|place| place.starts_with(folder))
}

/// Held until dropped, also by a process that is killed.
pub(crate) fn lock(path: &Path, progress: ProgressFn<'_>) -> Result<File, BuildError> {
    let file = File::create(path).map_err(BuildError::file("create", path))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            progress(Progress::Step(
                "waiting for another build of the base image",
            ));
        }
        Err(std::fs::TryLockError::Error(source)) => {
            return Err(BuildError::file("lock", path)(source));
        }
    }
    file.lock().map_err(BuildError::file("lock", path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_mount_below_is_seen() {
        let mountinfo = "21 1 254:0 / / rw - ext4 /dev/vda rw\n\
                         22 21 0:5 / /var/tmp/pando-build-0/x/sys ro - sysfs sys ro\n";
        let folder = Path::new("/var/tmp/pando-build-0");
        let found = mount_below(mountinfo, folder);
        assert_eq!(
            found.as_deref(),
            Some(Path::new("/var/tmp/pando-build-0/x/sys"))
        );
        assert_eq!(
            mount_below(mountinfo, Path::new("/var/tmp/pando-build-00")),
            None
        );
    }

    #[test]
    fn a_folder_that_others_may_write_or_own_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let parent = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let folder = parent.path().join("f");
        own_folder(&folder, user).unwrap();
        own_folder(&folder, user).unwrap();
        assert!(own_folder(&folder, user + 1).is_err());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(own_folder(&folder, user).is_err());
        let link = parent.path().join("l");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        assert!(own_folder(&link, user).is_err());
    }

    #[test]
    fn one_build_waits_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = lock(&path, &|_| panic!("nobody else builds")).unwrap();
        let waits = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| lock(&path, &|_| waits.store(true, Ordering::SeqCst)));
            while !waits.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            drop(first);
            assert!(second.join().unwrap().is_ok());
        });
    }
}

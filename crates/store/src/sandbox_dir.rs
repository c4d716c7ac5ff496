//! One directory per sandbox, which the daemon owns, and in it two that the sandbox's
//! account owns: the slot, all that its VMM may see, and `shim`, for what its shim writes.
//!
//! ```text
//! <id>/            the daemon's: no jailed process can rename or replace what is in it
//!   spec.json shim.pid shim.log shim.sock
//!   slot/          hard links to layers, the sandbox's own disk, what a snapshot writes
//!   shim/          console.log, ended
//!   parent/        a snapshot by links: what a snapshot of this sandbox is compared with
//! ```

use crate::fault;
use crate::snapshots::{Snapshot, StoreError, link_or_copy};
use pando_types::SandboxId;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

/// Name of the slot directory in a sandbox's directory.
pub const SLOT: &str = "slot";

/// Name of the shim's own directory in a sandbox's directory.
pub const SHIM: &str = "shim";

/// What the present state differs from; see [`SandboxDir::parent`].
const PARENT: &str = "parent";
const PARENT_FRESH: &str = "parent.new";

/// The directory that holds one directory per sandbox.
#[derive(Clone, Debug)]
pub struct SandboxDirs {
    dir: PathBuf,
}

/// One sandbox's directory.
#[derive(Clone, Debug)]
pub struct SandboxDir {
    dir: PathBuf,
}

impl SandboxDirs {
    /// Opens the directory, makes it if it is missing. Others may pass through it
    /// (a sandbox's own account must reach its own directory) but not list it.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn open(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o711).create(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
        })
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of `id`, whether or not it is there.
    pub fn get(&self, id: &SandboxId) -> SandboxDir {
        SandboxDir {
            dir: self.dir.join(id.as_str()),
        }
    }

    /// Makes the directory of a new sandbox, with an empty slot.
    ///
    /// # Errors
    /// It exists or cannot be made; nothing of it is left then.
    pub fn create(&self, id: &SandboxId) -> io::Result<SandboxDir> {
        let made = self.get(id);
        let make = |path: &Path, mode| DirBuilder::new().mode(mode).create(path);
        make(&made.dir, 0o711)?;
        let inner = make(&made.slot(), 0o700).and_then(|()| make(&made.shim(), 0o700));
        if let Err(error) = inner {
            // A disk may have had room for the first alone.
            let _ = made.remove();
            return Err(error);
        }
        fault::point("sandbox.dir_made");
        Ok(made)
    }

    /// Ids of all directories that are there; other files are passed over.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<SandboxId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            if let Ok(id) = entry?.file_name().to_string_lossy().parse() {
                ids.push(id);
            }
        }
        Ok(ids)
    }
}

impl SandboxDir {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Where the VMM's files are.
    pub fn slot(&self) -> PathBuf {
        self.dir.join(SLOT)
    }

    /// Where the shim's own files are.
    pub fn shim(&self) -> PathBuf {
        self.dir.join(SHIM)
    }

    /// The shim's process, as the daemon noted it.
    pub fn process(&self) -> PathBuf {
        self.dir.join("shim.pid")
    }

    /// How the VM ended, in the shim's words.
    pub fn ended(&self) -> PathBuf {
        self.shim().join("ended")
    }

    /// The shim's description of what to run.
    pub fn spec(&self) -> PathBuf {
        self.dir.join("spec.json")
    }

    /// The shim's listening socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("shim.sock")
    }

    /// The shim's log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("shim.log")
    }

    /// The guest's serial console, the last part of it.
    pub fn console(&self) -> PathBuf {
        self.shim().join("console.log")
    }

    /// Puts a published layer into the slot under `name`: a hard link, so that the inode
    /// stays the daemon's and read-only; a copy where the cache is on another file system.
    ///
    /// # Errors
    /// Neither can be made.
    pub fn link(&self, layer: &Path, name: &str) -> io::Result<()> {
        link_or_copy(layer, &self.slot().join(name))
    }

    /// The same over whatever has that name in the slot.
    ///
    /// # Errors
    /// It cannot be made; what was there stays.
    pub fn relink(&self, layer: &Path, name: &str) -> io::Result<()> {
        let fresh = format!("{name}.new");
        self.unlink(&fresh)?;
        self.link(layer, &fresh)?;
        fs::rename(self.slot().join(fresh), self.slot().join(name))
    }

    /// Makes what a VM wrote onto its disk survive power loss. The VM has ended; while it ran,
    /// nothing was synced.
    ///
    /// # Errors
    /// Something cannot be synced.
    pub fn sync(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.slot())? {
            let path = entry?.path();
            // What a jail put there beside its disk is no business of ours.
            if let Ok(file) = pando_sys::file::open_untrusted(&path) {
                file.sync_all()?;
            }
        }
        [self.slot(), self.dir.clone()]
            .iter()
            .try_for_each(|dir| pando_sys::file::sync_directory(dir))
    }

    /// Removes all that only a VM needs: slot and parent. Logs stay.
    ///
    /// # Errors
    /// Something stays.
    pub fn empty(&self) -> io::Result<()> {
        for dir in [
            self.slot(),
            self.dir.join(PARENT),
            self.dir.join(PARENT_FRESH),
        ] {
            remove_dir(&dir)?;
        }
        Ok(())
    }

    /// Removes a file of the slot; that it is not there is fine.
    ///
    /// # Errors
    /// It is there and stays.
    pub fn unlink(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.slot().join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// What the sandbox's present state differs from, by links of its own: the snapshot or
    /// bake it was spawned from, or the last snapshot that was taken of it.
    ///
    /// # Errors
    /// It is there but cannot be used.
    pub fn parent(&self) -> Result<Option<Snapshot>, StoreError> {
        let name = self.dir.file_name().unwrap_or_default();
        Snapshot::load(&self.dir.join(PARENT), &name.to_string_lossy())
    }

    /// Makes `snapshot` the sandbox's parent, whatever it was before.
    ///
    /// # Errors
    /// The links cannot be made; the parent is as it was.
    pub fn set_parent(&self, snapshot: &Snapshot) -> Result<(), StoreError> {
        self.replace_parent(|fresh| snapshot.link_to(fresh))
    }

    /// Makes what `make` puts into a new directory the sandbox's parent.
    ///
    /// # Errors
    /// It cannot be made; the parent is as it was.
    pub fn replace_parent(
        &self,
        make: impl FnOnce(&Path) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (parent, fresh) = (self.dir.join(PARENT), self.dir.join(PARENT_FRESH));
        let failed = |action, source| StoreError::Io {
            action,
            path: parent.clone(),
            source,
        };
        remove_dir(&fresh).map_err(|error| failed("remove", error))?;
        make(&fresh)?;
        if parent.exists() {
            pando_sys::file::exchange(&parent, &fresh).map_err(|error| failed("replace", error))?;
            remove_dir(&fresh).map_err(|error| failed("remove", error))
        } else {
            fs::rename(&fresh, &parent).map_err(|error| failed("replace", error))
        }
    }

    /// Removes everything; that it is not there is fine.
    ///
    /// # Errors
    /// Something stays.
    pub fn remove(&self) -> io::Result<()> {
        remove_dir(&self.dir)
    }
}

fn remove_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads at most the last `limit` bytes of a file that a jailed process wrote; what is
/// not a plain file (a link, a pipe) is an error, and nothing waits for it.
///
/// # Errors
/// It is not there, not a plain file, or cannot be read.
pub fn read_untrusted(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = pando_sys::file::open_untrusted(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(limit);
    let mut bytes = vec![0; usize::try_from(length - start).unwrap_or(0)];
    let read = file.read_at(&mut bytes, start)?;
    bytes.truncate(read);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_linked_layer_is_the_same_inode() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer");
        fs::write(&layer, "x").unwrap();
        let dirs = SandboxDirs::open(&dir.path().join("sandboxes")).unwrap();
        let id = SandboxId::from_random([1; 19]);
        let made = dirs.create(&id).unwrap();
        made.link(&layer, "disk.0").unwrap();
        assert_eq!(
            fs::metadata(made.slot().join("disk.0")).unwrap().ino(),
            fs::metadata(&layer).unwrap().ino()
        );
        assert_eq!(dirs.list().unwrap(), [id]);
        made.remove().unwrap();
        made.remove().unwrap();
        assert!(dirs.list().unwrap().is_empty());
    }

    #[test]
    fn what_a_jail_wrote_is_read_in_part_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_untrusted(&file, 4).unwrap(), b"6789");
        assert_eq!(read_untrusted(&file, 40).unwrap(), b"0123456789");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(read_untrusted(&link, 4).is_err());
        assert!(read_untrusted(dir.path(), 4).is_err());
    }
}

//! Directories of snapshots: staged under a temporary name, published whole.

use crate::fault;
use crate::layer::{Layer, LayerError, Verified, allocated_bytes};
use crate::lease::{Lease, Leases};
use crate::manifest::{self, Manifest, ManifestError};
use crate::merged::{Merged, Merges};
use crate::pages::PagesError;
use crate::qcow2::Qcow2Error;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const MANIFEST: &str = "manifest";

/// Prefix of directories that are not published; a key never begins with a dot.
const STAGING: &str = ".staging-";

/// Mode of a file that never changes.
const SEALED: u32 = 0o444;

/// Why a snapshot cannot be kept or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The manifest is not usable.
    #[error("snapshot `{0}` cannot be used")]
    Manifest(String, #[source] ManifestError),
    /// A layer is not usable.
    #[error("snapshot `{0}` cannot be used")]
    Layer(String, #[source] LayerError),
    /// Layers of pages cannot be merged.
    #[error("the pages of snapshot `{0}` cannot be merged")]
    Pages(String, #[source] PagesError),
    /// Layers of the disk cannot be merged.
    #[error("the disk of snapshot `{0}` cannot be merged")]
    Disk(String, #[source] Qcow2Error),
    /// It is spawned from all the time.
    #[error("snapshot `{0}` is in use")]
    InUse(String),
    /// A key that is not a plain file name.
    #[error("`{0}` cannot name a snapshot")]
    Key(String),
}

impl StoreError {
    /// Whether the file system is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_path_buf();
    move |source| StoreError::Io {
        action,
        path,
        source,
    }
}

/// A directory of published snapshots.
#[derive(Clone, Debug)]
pub struct Snapshots {
    dir: PathBuf,
    verified: Verified,
    leases: Leases,
    merged: Arc<Merged>,
}

/// A published snapshot: its files never change. One that was got from [`Snapshots`] is not
/// replaced as long as this, or a clone of it, is there.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Where its layers are.
    pub dir: PathBuf,
    /// What it is.
    pub manifest: Manifest,
    _lease: Option<Arc<Lease>>,
}

/// A snapshot being written; dropped unpublished, it leaves nothing.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    published: bool,
}

impl Snapshots {
    /// Opens the directory, makes it if it is missing, and removes what a crash left half-written.
    ///
    /// A staging directory belongs to the process whose id is in its name; those of
    /// living processes stay, since daemons may share a cache.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub fn open(dir: &Path, verified: &Verified) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        for entry in fs::read_dir(dir).map_err(io_error("read", dir))? {
            let entry = entry.map_err(io_error("read", dir))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if abandoned(&name) || !(name.starts_with('.') || path.join(MANIFEST).exists()) {
                fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(Self {
            dir: dir.to_path_buf(),
            verified: verified.clone(),
            leases: Leases::default(),
            merged: Arc::new(Merged::open(dir, verified)?),
        })
    }

    /// The same, for the daemon's eyes only: memories of sandboxes are in them, and no jail
    /// or other account comes here.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_private(dir: &Path, verified: &Verified) -> Result<Self, StoreError> {
        let opened = Self::open(dir, verified)?;
        let private = Permissions::from_mode(0o700);
        fs::set_permissions(dir, private).map_err(io_error("set the mode of", dir))?;
        Ok(opened)
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins a snapshot. `unique` distinguishes those of one process.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn stage(&self, unique: &str) -> Result<Staging, StoreError> {
        let dir = self
            .dir
            .join(format!("{STAGING}{}-{unique}", std::process::id()));
        fs::create_dir(&dir).map_err(io_error("create", &dir))?;
        Ok(Staging {
            dir,
            published: false,
        })
    }

    /// Makes a staged snapshot permanent under `key`; if another got there first, that one stays.
    ///
    /// # Errors
    /// A file cannot be written or synced; nothing is published then.
    pub fn publish(
        &self,
        mut staging: Staging,
        key: &str,
        manifest: &Manifest,
    ) -> Result<Snapshot, StoreError> {
        let target = self.path(key)?;
        self.complete(&staging, manifest)?;
        fault::point("snapshot.before_rename");
        let lease = Arc::new(self.leases.begin(key));
        match fs::rename(&staging.dir, &target) {
            Ok(()) => staging.published = true,
            Err(_) if target.join(MANIFEST).exists() => {
                return self
                    .get(key)?
                    .ok_or_else(|| StoreError::Key(key.to_owned()));
            }
            Err(source) => {
                return Err(StoreError::Io {
                    action: "rename to",
                    path: target,
                    source,
                });
            }
        }
        fault::point("snapshot.after_rename");
        sync_dir(&self.dir)?;
        Ok(Snapshot {
            dir: target,
            manifest: manifest.clone(),
            _lease: Some(lease),
        })
    }

    /// Puts what is staged in the place of the snapshot under `key`, which it must be equal
    /// to in all but its layers; false if that was removed meanwhile. Waits with this
    /// patience until nobody has the old one: nobody may have it who waits for this.
    ///
    /// # Errors
    /// A file cannot be written or synced, or the old one is in use for too long. There is
    /// the old one then, or the new one.
    pub fn replace(
        &self,
        mut staging: Staging,
        key: &str,
        manifest: &Manifest,
        patience: Duration,
    ) -> Result<bool, StoreError> {
        let target = self.path(key)?;
        self.complete(&staging, manifest)?;
        fault::point("flatten.before_exchange");
        let exchanged = self.leases.alone(key, patience, || {
            // A removal takes the manifest first.
            let there = target.join(MANIFEST).exists();
            there.then(|| pando_sys::file::exchange(&staging.dir, &target))
        });
        match exchanged {
            None => return Err(StoreError::InUse(key.to_owned())),
            Some(None) => return Ok(false),
            Some(Some(exchanged)) => exchanged.map_err(io_error("replace", &target))?,
        }
        fault::point("flatten.after_exchange");
        if let Err(error) = sync_dir(&self.dir) {
            // Which of them has the name after a power cut is not known: both stay whole.
            staging.published = true;
            return Err(error);
        }
        Ok(true)
    }

    /// Puts a snapshot's layers into a directory, with some of them merged to one, and
    /// returns the manifest of that, which is not written yet.
    ///
    /// # Errors
    /// A layer cannot be read, or nothing be written.
    pub fn shorten(
        &self,
        snapshot: &Snapshot,
        target: &Path,
        merges: &Merges,
    ) -> Result<Manifest, StoreError> {
        self.merged.shorten(snapshot, target, merges)
    }

    /// Makes `target`, a directory that must not exist, the same snapshot with some of its
    /// layers merged to one. The rest of it is not made durable.
    ///
    /// # Errors
    /// A layer cannot be read, or nothing be written; it may be there in part.
    pub fn shorten_to(
        &self,
        snapshot: &Snapshot,
        target: &Path,
        merges: &Merges,
    ) -> Result<(), StoreError> {
        private_dir(target)?;
        let manifest = self.shorten(snapshot, target, merges)?;
        Snapshot::write(target, &manifest)
    }

    /// Makes all that is staged durable, the manifest last.
    fn complete(&self, staging: &Staging, manifest: &Manifest) -> Result<(), StoreError> {
        for layer in manifest.layers() {
            let path = staging.dir.join(&layer.file);
            let metadata = fs::metadata(&path).map_err(io_error("examine", &path))?;
            // Taken over from another snapshot, it is sealed already.
            if metadata.permissions().mode() & 0o777 != SEALED {
                seal(&path)?;
            }
            self.verified.note(layer, &staging.dir);
        }
        fault::point("snapshot.layers_written");
        let path = staging.dir.join(MANIFEST);
        let mut file = File::create_new(&path).map_err(io_error("create", &path))?;
        file.write_all(&manifest.encode())
            .map_err(io_error("write", &path))?;
        drop(file);
        seal(&path)?;
        fault::point("snapshot.manifest_written");
        sync_dir(&staging.dir)
    }

    /// The snapshot under `key`, if there is one; its layers' lengths are checked.
    ///
    /// # Errors
    /// It is there but cannot be used.
    pub fn get(&self, key: &str) -> Result<Option<Snapshot>, StoreError> {
        let path = self.path(key)?;
        // Before the manifest is read: what it names stays.
        let lease = Arc::new(self.leases.begin(key));
        let found = Snapshot::load(&path, key)?;
        Ok(found.map(|snapshot| Snapshot {
            _lease: Some(lease),
            ..snapshot
        }))
    }

    /// Reads every layer and compares checksums, but for those that were read before.
    ///
    /// # Errors
    /// Names the first layer that differs.
    pub fn verify(&self, snapshot: &Snapshot) -> Result<(), LayerError> {
        let mut layers = snapshot.manifest.layers();
        layers.try_for_each(|layer| self.verified.check(layer, &snapshot.dir))
    }

    /// The keys of all published snapshots.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn keys(&self) -> Result<Vec<String>, StoreError> {
        let entries = fs::read_dir(&self.dir).map_err(io_error("read", &self.dir))?;
        let mut keys = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(io_error("read", &self.dir))?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if !name.starts_with('.') {
                keys.push(name);
            }
        }
        keys.sort();
        Ok(keys)
    }

    /// Notes that a snapshot is of use; see [`Self::evict`].
    pub fn mark_used(&self, key: &str) {
        let manifest = self.path(key).and_then(|dir| {
            let path = dir.join(MANIFEST);
            File::open(&path).map_err(io_error("open", &path))
        });
        if let Ok(manifest) = manifest {
            // Only an order: that it cannot be written changes nothing else.
            drop(manifest.set_modified(std::time::SystemTime::now()));
        }
    }

    /// Keeps the `keep` snapshots that were of use last, and removes the others.
    ///
    /// # Errors
    /// The directory cannot be read, or one cannot be removed.
    pub fn evict(&self, keep: usize) -> Result<(), StoreError> {
        let mut by_use: Vec<_> = self
            .keys()?
            .into_iter()
            .filter_map(|key| {
                let manifest = self.dir.join(&key).join(MANIFEST);
                let used = fs::metadata(manifest).and_then(|metadata| metadata.modified());
                Some((used.ok()?, key))
            })
            .collect();
        by_use.sort();
        let surplus = by_use.len().saturating_sub(keep);
        by_use[..surplus]
            .iter()
            .try_for_each(|(_, key)| self.remove(key))
    }

    /// Removes a snapshot. What sandboxes linked from it stays theirs.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn remove(&self, key: &str) -> Result<(), StoreError> {
        let dir = self.path(key)?;
        // The manifest goes first: a crash in between leaves what `open` sweeps, and nothing
        // is put in the place of what has none.
        let path = dir.join(MANIFEST);
        match self.leases.unreplaced(|| fs::remove_file(&path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &path)(error));
            }
            _ => {}
        }
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &dir)(error));
            }
            _ => self.merged.forget_unused(),
        }
        Ok(())
    }

    fn path(&self, key: &str) -> Result<PathBuf, StoreError> {
        let plain = !key.is_empty()
            && key.len() <= 128
            && key
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if plain {
            Ok(self.dir.join(key))
        } else {
            Err(StoreError::Key(key.to_owned()))
        }
    }
}

impl Snapshot {
    /// The snapshot in a directory, if there is one; its layers' lengths are checked.
    ///
    /// # Errors
    /// It is there but cannot be used; `key` is what it is called then.
    pub fn load(dir: &Path, key: &str) -> Result<Option<Self>, StoreError> {
        let path = dir.join(MANIFEST);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(StoreError::Io {
                    action: "open",
                    path,
                    source,
                });
            }
        };
        let mut bytes = Vec::new();
        file.take(manifest::MAX_BYTES)
            .read_to_end(&mut bytes)
            .map_err(io_error("read", &path))?;
        let manifest = Manifest::decode(&bytes)
            .map_err(|error| StoreError::Manifest(key.to_owned(), error))?;
        for layer in manifest.layers() {
            layer
                .check_length(dir)
                .map_err(|error| StoreError::Layer(key.to_owned(), error))?;
        }
        Ok(Some(Self {
            dir: dir.to_path_buf(),
            manifest,
            _lease: None,
        }))
    }

    /// A snapshot that is nobody's but the directory's.
    #[cfg(test)]
    pub(crate) fn unpublished(dir: &Path, manifest: Manifest) -> Self {
        Self {
            dir: dir.to_path_buf(),
            manifest,
            _lease: None,
        }
    }

    /// Where a layer of it is.
    pub fn path(&self, layer: &Layer) -> PathBuf {
        self.dir.join(&layer.file)
    }

    /// Makes `target`, a directory that must not exist, the same snapshot by hard links.
    /// Not made durable.
    ///
    /// # Errors
    /// It cannot be made; it may be there in part.
    pub fn link_to(&self, target: &Path) -> Result<(), StoreError> {
        private_dir(target)?;
        let layers = self.manifest.layers().map(|layer| layer.file.as_str());
        for file in layers.chain([MANIFEST]) {
            let to = target.join(file);
            link_or_copy(&self.dir.join(file), &to).map_err(io_error("link", &to))?;
        }
        Ok(())
    }

    /// Makes `target` a snapshot of another manifest, by links to this one's layers, and to
    /// those of `other` where this one has none of that name.
    ///
    /// # Errors
    /// It cannot be made; it may be there in part.
    pub fn link_with(
        &self,
        target: &Path,
        manifest: &Manifest,
        other: &Self,
    ) -> Result<(), StoreError> {
        private_dir(target)?;
        for layer in manifest.layers() {
            let ours = self.manifest.layers().any(|own| own == layer);
            let from = if ours { self } else { other };
            let to = target.join(&layer.file);
            link_or_copy(&from.path(layer), &to).map_err(io_error("link", &to))?;
        }
        Self::write(target, manifest)
    }

    /// Bytes that its manifest takes on disk.
    pub fn manifest_bytes(&self) -> u64 {
        pando_sys::file::allocated_bytes(&self.dir.join(MANIFEST)).unwrap_or(0)
    }

    /// Writes a snapshot that is nobody's but the directory's: its layers are there.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn write(dir: &Path, manifest: &Manifest) -> Result<(), StoreError> {
        let path = dir.join(MANIFEST);
        fs::write(&path, manifest.encode()).map_err(io_error("write", &path))
    }

    /// Bytes its files take on disk.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        allocated_bytes(&self.dir)
    }
}

/// A new directory for the daemon's eyes only: a memory is in it.
pub(crate) fn private_dir(path: &Path) -> Result<(), StoreError> {
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    made.map_err(io_error("create", path))
}

/// Gives a published layer a second name: a hard link, so that the inode stays the daemon's
/// and read-only; a copy where that cannot be.
///
/// # Errors
/// Neither can be made.
pub fn link_or_copy(layer: &Path, target: &Path) -> io::Result<()> {
    match fs::hard_link(layer, target) {
        // Another file system; a cache that another account made, on a host that protects
        // its files from being linked; a file that has all the links it can have.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::CrossesDevices
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::TooManyLinks
            ) =>
        {
            let (from, to) = (File::open(layer)?, File::create_new(target)?);
            pando_sys::file::share_or_copy(&from, &to)?;
            to.set_permissions(Permissions::from_mode(SEALED))?;
            // Whoever takes it over, sealed as it is, takes it for durable.
            to.sync_all()
        }
        other => other,
    }
}

impl Staging {
    /// Takes a layer over from a published snapshot.
    ///
    /// # Errors
    /// It cannot be linked.
    pub fn link(&self, from: &Path, layer: &Layer) -> Result<Layer, StoreError> {
        let target = self.dir.join(&layer.file);
        link_or_copy(from, &target).map_err(io_error("link", &target))?;
        Ok(layer.clone())
    }

    /// Takes a file that never changes by a link of its own, and describes it.
    ///
    /// # Errors
    /// It cannot be linked or hashed.
    pub fn share(&self, from: &Path, name: &str) -> Result<Layer, StoreError> {
        let target = self.dir.join(name);
        link_or_copy(from, &target).map_err(io_error("link", &target))?;
        Layer::describe(&self.dir, name).map_err(|error| StoreError::Layer(name.to_owned(), error))
    }

    /// Where to write the layers.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes an inode of our own from a file that a jail could write (a reflink where the
    /// file system has them, else a copy), and describes what is in that inode.
    ///
    /// # Errors
    /// It cannot be read, written or hashed.
    pub fn adopt(&self, source: &Path, name: &str) -> Result<Layer, StoreError> {
        let target = self.dir.join(name);
        let from = pando_sys::file::open_untrusted(source).map_err(io_error("open", source))?;
        let to = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&target)
            .map_err(io_error("create", &target))?;
        pando_sys::file::share_or_copy(&from, &to).map_err(io_error("write", &target))?;
        Layer::describe(&self.dir, name).map_err(|error| StoreError::Layer(name.to_owned(), error))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // What stays behind is swept at the next start.
            drop(fs::remove_dir_all(&self.dir));
        }
    }
}

/// Whether `name` is a staging directory whose process is gone.
fn abandoned(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(STAGING) else {
        return false;
    };
    let process = rest.split('-').next().unwrap_or_default();
    process.parse::<u32>().map_or(true, |process| {
        process == std::process::id() || !Path::new("/proc").join(process.to_string()).exists()
    })
}

/// Makes a file's content durable and its inode read-only.
pub(crate) fn seal(path: &Path) -> Result<(), StoreError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    file.set_permissions(Permissions::from_mode(SEALED))
        .map_err(io_error("seal", path))?;
    file.sync_all().map_err(io_error("sync", path))
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    pando_sys::file::sync_directory(dir).map_err(io_error("sync", dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn staged(snapshots: &Snapshots, unique: &str) -> (Staging, Manifest) {
        let staging = snapshots.stage(unique).unwrap();
        let mut manifest = manifest::tests::sample();
        for file in ["disk.0", "disk.1", "memory", "pages.0", "device-state"] {
            fs::write(staging.dir().join(file), file).unwrap();
        }
        let describe = |file: &str| Layer::describe(staging.dir(), file).unwrap();
        manifest.disks = vec![describe("disk.0"), describe("disk.1")];
        manifest.memory = Some(describe("memory"));
        manifest.pages = vec![describe("pages.0")];
        manifest.device_state = Some(describe("device-state"));
        (staging, manifest)
    }

    #[test]
    fn a_published_snapshot_is_found_and_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).unwrap();
        let (staging, manifest) = staged(&snapshots, "a");
        snapshots.publish(staging, "key", &manifest).unwrap();
        let found = Snapshots::open(dir.path(), &Verified::default())
            .unwrap()
            .get("key")
            .unwrap()
            .unwrap();
        snapshots.verify(&found).unwrap();
        assert_eq!(found.manifest, manifest);
        assert_eq!(
            fs::metadata(found.dir.join("memory"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o444
        );
        assert_eq!(snapshots.keys().unwrap(), ["key"]);
    }

    #[test]
    fn what_was_not_published_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).unwrap();
        let (staging, _) = staged(&snapshots, "a");
        std::mem::forget(staging);
        fs::create_dir(dir.path().join("no-manifest")).unwrap();
        let living = dir.path().join(format!("{STAGING}1-b"));
        fs::create_dir(&living).unwrap();
        Snapshots::open(dir.path(), &Verified::default()).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(left, [living]);
    }

    #[test]
    fn a_dropped_staging_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).unwrap();
        drop(staged(&snapshots, "a"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_first_publisher_wins() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).unwrap();
        let (first, manifest) = staged(&snapshots, "a");
        let (second, mut other) = staged(&snapshots, "b");
        other.created_at_ms = 99;
        snapshots.publish(first, "key", &manifest).unwrap();
        assert_eq!(
            snapshots.publish(second, "key", &other).unwrap().manifest,
            manifest
        );
    }

    #[test]
    fn a_changed_layer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).unwrap();
        let (staging, manifest) = staged(&snapshots, "a");
        let snapshot = snapshots.publish(staging, "key", &manifest).unwrap();
        snapshots.verify(&snapshot).unwrap();
        let path = snapshot.dir.join("memory");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        fs::write(&path, "Memory").unwrap();
        assert!(
            snapshots
                .verify(&snapshot)
                .unwrap_err()
                .to_string()
                .contains("memory` is corrupt")
        );
        fs::write(&path, "short").unwrap();
        assert!(matches!(
            snapshots.get("key"),
            Err(StoreError::Layer(_, LayerError::Length { .. }))
        ));
    }

    #[test]
    fn a_linked_snapshot_outlives_the_one_it_was_linked_from() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(&dir.path().join("all"), &Verified::default()).unwrap();
        let (staging, manifest) = staged(&snapshots, "a");
        let snapshot = snapshots.publish(staging, "key", &manifest).unwrap();
        let other = dir.path().join("other");
        snapshot.link_to(&other).unwrap();
        snapshots.remove("key").unwrap();
        let found = Snapshot::load(&other, "other").unwrap().unwrap();
        assert_eq!(found.manifest, manifest);
        snapshots.verify(&found).unwrap();
        // A layer of it is taken over by the next one, and is the same inode.
        let staging = snapshots.stage("b").unwrap();
        let memory = found.manifest.memory.clone().unwrap();
        staging.link(&found.path(&memory), &memory).unwrap();
        assert_eq!(fs::metadata(other.join("memory")).unwrap().nlink(), 2);
    }

    #[test]
    fn what_was_of_use_last_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).unwrap();
        for key in ["one", "two", "three"] {
            let (staging, manifest) = staged(&snapshots, key);
            snapshots.publish(staging, key, &manifest).unwrap();
            let old = std::time::SystemTime::UNIX_EPOCH;
            File::open(dir.path().join(key).join(MANIFEST))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
        snapshots.mark_used("two");
        snapshots.evict(1).unwrap();
        assert_eq!(snapshots.keys().unwrap(), ["two"]);
    }

    #[test]
    fn a_key_is_never_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).unwrap();
        for key in ["", "..", "a/b", "."] {
            assert!(
                matches!(snapshots.get(key), Err(StoreError::Key(_))),
                "{key}"
            );
        }
    }
}

//! Whole memory files, put together from layers to be mapped: a bounded cache.
//!
//! A memory is a file and layers of pages over it. Mapping wants one file. Where files share
//! blocks (XFS, btrfs) that file costs nothing and is made at once; elsewhere it costs a copy
//! of the memory, so it is made in the background when a snapshot was spawned from once, and
//! what was of use last is kept within a limit.
//!
//! Nothing here is needed: each file can be made again from the layers. So none is synced,
//! and all are forgotten when the host was started anew.

use crate::layer::Layer;
use crate::manifest::Manifest;
use crate::pages::{Pages, PagesError};
use crate::snapshots::Snapshot;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Who has the files of this directory: the boot of the host that they were made in.
const BOOT: &str = "boot-id";

/// Prefix of what is being made.
const UNFINISHED: &str = ".new-";

/// The cache.
#[derive(Debug)]
pub struct Materialized {
    dir: PathBuf,
    limit_bytes: u64,
    shares: bool,
    /// One lock for each file that is being made.
    under_way: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

/// What is to be mapped for a snapshot's memory, and what is to be written over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySource {
    /// A file of the memory's length; `None` is all zeros.
    pub file: Option<PathBuf>,
    /// The layers of pages that are not in it, the oldest first.
    pub pages: Vec<PathBuf>,
    /// How many bytes those layers have.
    pub pages_bytes: u64,
}

impl Materialized {
    /// Opens the directory; what an earlier boot of the host left is removed.
    ///
    /// # Errors
    /// The directory cannot be made or cleared.
    pub fn open(dir: &Path, boot_id: &str, limit_bytes: u64) -> io::Result<Self> {
        let same_boot = fs::read_to_string(dir.join(BOOT)).is_ok_and(|found| found == boot_id);
        if !same_boot && dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        fs::create_dir_all(dir)?;
        // The memories of guests: for the daemon's eyes only.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        fs::write(dir.join(BOOT), boot_id)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self {
            shares: pando_sys::file::can_share(dir),
            dir: dir.to_path_buf(),
            limit_bytes,
            under_way: Mutex::default(),
        })
    }

    /// Whether a file costs nothing, since it shares its blocks with the layers.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// The most that the files may take.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// The best there is for a snapshot's memory now.
    pub fn source(&self, snapshot: &Snapshot) -> MemorySource {
        let manifest = &snapshot.manifest;
        for depth in (1..=manifest.pages.len()).rev() {
            let file = self.dir.join(key(manifest, depth));
            if file.exists() {
                // Only an order for the eviction.
                drop(File::open(&file).and_then(|file| file.set_modified(SystemTime::now())));
                return source(snapshot, Some(file), depth);
            }
        }
        let memory = manifest.memory.as_ref();
        source(snapshot, memory.map(|layer| snapshot.path(layer)), 0)
    }

    /// Makes the whole file for a snapshot, if it is not there.
    ///
    /// # Errors
    /// A layer cannot be read, or the file not be written.
    pub fn make(&self, snapshot: &Snapshot) -> Result<(), PagesError> {
        let manifest = &snapshot.manifest;
        if manifest.pages.is_empty() {
            return Ok(());
        }
        let key = key(manifest, manifest.pages.len());
        let lock = {
            let mut under_way = self
                .under_way
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(under_way.entry(key.clone()).or_default())
        };
        let made = {
            let _turn = lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.make_alone(snapshot, &key)
        };
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&key);
        made
    }

    /// Says that two manifests have the same memory: the file of the one, if it is there, is
    /// the other's too.
    ///
    /// # Errors
    /// It cannot get its second name.
    pub fn alias(&self, one: &Manifest, other: &Manifest) -> io::Result<()> {
        let file = |manifest: &Manifest| self.dir.join(key(manifest, manifest.pages.len()));
        match fs::hard_link(file(one), file(other)) {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
                ) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    fn make_alone(&self, snapshot: &Snapshot, key: &str) -> Result<(), PagesError> {
        let target = self.dir.join(key);
        if target.exists() {
            return Ok(());
        }
        let fresh = self.dir.join(format!("{UNFINISHED}{key}"));
        let made = self.put_together(snapshot, &fresh);
        let made = made.and_then(|()| Ok(fs::rename(&fresh, &target)?));
        if made.is_err() {
            drop(fs::remove_file(&fresh));
        }
        made?;
        Ok(self.evict(key)?)
    }

    fn put_together(&self, snapshot: &Snapshot, fresh: &Path) -> Result<(), PagesError> {
        let from = self.source(snapshot);
        let memory_bytes = snapshot.manifest.machine.memory_bytes();
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(fresh)?;
        match &from.file {
            Some(base) => drop(pando_sys::file::share_or_copy(&File::open(base)?, &file)?),
            None => file.set_len(memory_bytes)?,
        }
        for layer in &from.pages {
            Pages::open(File::open(layer)?, memory_bytes)?.lay_over(&file)?;
        }
        Ok(file.set_permissions(fs::Permissions::from_mode(0o444))?)
    }

    /// Removes what was of use longest ago until the rest is within the limit; `keep` stays.
    fn evict(&self, keep: &str) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == BOOT || name.starts_with(UNFINISHED) {
                continue;
            }
            let bytes = pando_sys::file::unshared_bytes(&File::open(entry.path())?)?;
            files.push((entry.metadata()?.modified()?, name, bytes));
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, name, bytes) in files {
            if total <= self.limit_bytes {
                break;
            }
            if name != keep {
                fs::remove_file(self.dir.join(&name))?;
                total -= bytes;
            }
        }
        Ok(())
    }

    /// Where the files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn source(snapshot: &Snapshot, file: Option<PathBuf>, depth: usize) -> MemorySource {
    let rest = &snapshot.manifest.pages[depth..];
    MemorySource {
        file,
        pages: rest.iter().map(|layer| snapshot.path(layer)).collect(),
        pages_bytes: rest.iter().map(|layer| layer.length).sum(),
    }
}

/// What a memory of the first `depth` layers of pages is called: by their contents.
fn key(manifest: &Manifest, depth: usize) -> String {
    let mut hasher = blake3::Hasher::new();
    let layers: Vec<&Layer> = manifest
        .memory
        .iter()
        .chain(&manifest.pages[..depth])
        .collect();
    // Without a first file the layers lie over zeros.
    hasher.update(&[u8::from(manifest.memory.is_some())]);
    for layer in layers {
        hasher.update(layer.blake3.as_bytes());
    }
    hasher.finalize().to_hex()[..40].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use crate::pages::PagesWriter;
    use std::os::unix::fs::FileExt as _;

    const MEMORY_BYTES: u64 = 1 << 20;
    const PAGE: usize = 4096;

    /// A snapshot of a memory of fives, with a page of each number laid over it.
    fn snapshot(dir: &Path, numbers: &[u8]) -> Snapshot {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("memory"), vec![5; MEMORY_BYTES as usize]).unwrap();
        let mut manifest = manifest::tests::sample();
        manifest.machine.memory_mib = 1;
        let describe = |file: &str| Some(Layer::describe(dir, file).unwrap());
        manifest.memory = describe("memory");
        manifest.pages.clear();
        for number in numbers {
            let name = format!("pages.{number}");
            let file = File::create(dir.join(&name)).unwrap();
            let mut writer = PagesWriter::new(file, MEMORY_BYTES);
            let offset = u64::from(*number) * PAGE as u64;
            writer.add(offset, &[*number; PAGE]).unwrap();
            writer.finish().unwrap();
            manifest.pages.extend(describe(&name));
        }
        Snapshot::unpublished(dir, manifest)
    }

    fn byte(file: &Path, page: usize) -> u8 {
        let mut byte = [0];
        let file = File::open(file).unwrap();
        file.read_exact_at(&mut byte, (page * PAGE) as u64).unwrap();
        byte[0]
    }

    #[test]
    fn a_made_file_is_the_memory_and_a_descendant_starts_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Materialized::open(&dir.path().join("m"), "boot", u64::MAX).unwrap();
        let one = snapshot(&dir.path().join("s"), &[1, 2]);
        let before = cache.source(&one);
        assert_eq!(before.file, Some(one.dir.join("memory")));
        assert_eq!(before.pages.len(), 2);
        cache.make(&one).unwrap();
        let after = cache.source(&one);
        let file = after.file.clone().unwrap();
        assert!(after.pages.is_empty());
        assert_eq!([0, 1, 2, 3].map(|page| byte(&file, page)), [5, 1, 2, 5]);
        let child = snapshot(&dir.path().join("s"), &[1, 2, 3]);
        let of_child = cache.source(&child);
        assert_eq!((of_child.file, of_child.pages.len()), (after.file, 1));
    }

    #[test]
    fn a_memory_in_other_layers_has_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Materialized::open(&dir.path().join("m"), "boot", u64::MAX).unwrap();
        let long = snapshot(&dir.path().join("s"), &[1, 2]);
        let short = snapshot(&dir.path().join("t"), &[3]);
        cache.alias(&long.manifest, &short.manifest).unwrap();
        assert_eq!(cache.source(&short).pages.len(), 1, "there is no file yet");
        cache.make(&long).unwrap();
        cache.alias(&long.manifest, &short.manifest).unwrap();
        let source = cache.source(&short);
        assert!(source.pages.is_empty());
        assert_eq!(
            [1, 2, 3].map(|page| byte(source.file.as_ref().unwrap(), page)),
            [1, 2, 5]
        );
    }

    #[test]
    fn what_is_beyond_the_limit_goes_by_use_and_all_goes_with_the_boot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        let one = snapshot(&dir.path().join("s"), &[1]);
        let two = snapshot(&dir.path().join("s"), &[2]);
        let shares = pando_sys::file::can_share(dir.path());
        let limit = MEMORY_BYTES + MEMORY_BYTES / 2;
        let cache = Materialized::open(&path, "boot", if shares { 0 } else { limit }).unwrap();
        cache.make(&one).unwrap();
        cache.make(&two).unwrap();
        if !shares {
            assert_eq!(cache.source(&one).pages.len(), 1, "it was evicted");
        }
        assert!(cache.source(&two).pages.is_empty());
        drop(cache);
        let again = Materialized::open(&path, "boot", limit).unwrap();
        assert!(again.source(&two).pages.is_empty());
        drop(again);
        let another = Materialized::open(&path, "another boot", limit).unwrap();
        assert_eq!(another.source(&two).pages.len(), 1);
    }
}

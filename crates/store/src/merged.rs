//! Short chains of long ones: some of a snapshot's layers are merged to one.
//!
//! The merged layers that were made last are kept under a name of their own, so that
//! neighbours in a chain, which merge the same ones, share them: each costs nothing as long
//! as a snapshot has it too, and goes when a snapshot is removed and none has it any more.
//!
//! ```text
//! snapshots/.merged/<key>     by what it was made of; gone with the next start
//! ```

use crate::layer::{Layer, Verified};
use crate::manifest::Manifest;
use crate::pages::{self, Pages, PagesError};
use crate::qcow2;
use crate::snapshots::{Snapshot, StoreError, io_error, link_or_copy, private_dir, seal};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Name of the directory among the snapshots.
const MERGED: &str = ".merged";

/// How many are kept: pages and disk of the two sandboxes that were saved last.
const KEPT: usize = 4;

/// Which of a snapshot's layers are to be one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merges {
    /// Of its layers of pages.
    pub pages: Option<Range<usize>>,
    /// Of its disk's layers.
    pub disks: Option<Range<usize>>,
}

impl Merges {
    /// Whether nothing is to be merged.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Merges layers, and keeps the last ones.
#[derive(Debug)]
pub(crate) struct Merged {
    dir: PathBuf,
    verified: Verified,
    /// The oldest first.
    known: Mutex<VecDeque<Layer>>,
}

/// A chain of layers, and where each is now.
type Chain = Vec<(PathBuf, Layer)>;

impl Merged {
    /// Forgets what an earlier process kept.
    pub(crate) fn open(snapshots: &Path, verified: &Verified) -> Result<Self, StoreError> {
        let dir = snapshots.join(MERGED);
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(io_error("remove", &dir))?;
        }
        Ok(Self {
            dir,
            verified: verified.clone(),
            known: Mutex::default(),
        })
    }

    /// Puts a snapshot's layers into a directory, merged where they are to be, and returns
    /// the manifest of that. The merged ones are durable and sealed.
    pub(crate) fn shorten(
        &self,
        snapshot: &Snapshot,
        target: &Path,
        merges: &Merges,
    ) -> Result<Manifest, StoreError> {
        // To the end: what was made and has no other link yet is not to be forgotten.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let old = &snapshot.manifest;
        let memory_bytes = old.machine.memory_bytes();
        let pages = self.chain(
            &mut known,
            snapshot,
            &old.pages,
            merges.pages.as_ref(),
            |files, target| {
                merge_pages(files, memory_bytes, target)
                    .map_err(|error| StoreError::Pages(old.id.clone(), error))
            },
        )?;
        let disks = self.chain(
            &mut known,
            snapshot,
            &old.disks,
            merges.disks.as_ref(),
            |files, target| {
                qcow2::merge(&files, target)
                    .map_err(|error| StoreError::Disk(old.id.clone(), error))
            },
        )?;
        let others = old
            .root_image
            .iter()
            .chain(&old.memory)
            .chain(&old.device_state)
            .chain(&old.network);
        let others = others.map(|layer| (snapshot.path(layer), layer.clone()));
        for (from, layer) in others.chain(pages.iter().chain(&disks).cloned()) {
            let to = target.join(&layer.file);
            link_or_copy(&from, &to).map_err(io_error("link", &to))?;
        }
        let layers = |chain: Chain| chain.into_iter().map(|(_, layer)| layer).collect();
        Ok(Manifest {
            pages: layers(pages),
            disks: layers(disks),
            ..old.clone()
        })
    }

    /// Removes what no snapshot has any more.
    pub(crate) fn forget_unused(&self) {
        // What is being made is about to be used.
        let Ok(mut known) = self.known.try_lock() else {
            return;
        };
        known.retain(|layer| {
            let path = self.dir.join(&layer.file);
            let used = fs::metadata(&path).is_ok_and(|metadata| metadata.nlink() > 1);
            if !used {
                drop(fs::remove_file(&path));
            }
            used
        });
    }

    /// The chain with a stretch of it merged, each layer under the name of its new place.
    fn chain(
        &self,
        known: &mut VecDeque<Layer>,
        snapshot: &Snapshot,
        layers: &[Layer],
        stretch: Option<&Range<usize>>,
        merge: impl FnOnce(Vec<File>, &File) -> Result<(), StoreError>,
    ) -> Result<Chain, StoreError> {
        let stretch = stretch.cloned().unwrap_or(0..0);
        let own = |layer: &Layer| (snapshot.path(layer), layer.clone());
        let mut chain: Chain = layers[..stretch.start].iter().map(own).collect();
        if !stretch.is_empty() {
            let merged = self.merged(known, snapshot, &layers[stretch.clone()], merge)?;
            chain.push((self.dir.join(&merged.file), merged));
        }
        chain.extend(layers[stretch.end..].iter().map(own));
        for ((_, layer), place) in chain.iter_mut().zip(layers) {
            layer.file.clone_from(&place.file);
        }
        Ok(chain)
    }

    /// One layer of these, made now or before.
    fn merged(
        &self,
        known: &mut VecDeque<Layer>,
        snapshot: &Snapshot,
        layers: &[Layer],
        merge: impl FnOnce(Vec<File>, &File) -> Result<(), StoreError>,
    ) -> Result<Layer, StoreError> {
        let key = key(layers);
        if let Some(layer) = known.iter().find(|layer| layer.file == key) {
            return Ok(layer.clone());
        }
        let open = |layer: &Layer| {
            let path = snapshot.path(layer);
            File::open(&path).map_err(io_error("open", &path))
        };
        let files = layers.iter().map(open).collect::<Result<_, _>>()?;
        let path = self.dir.join(&key);
        let made = self.make(files, &path, merge);
        if made.is_err() {
            drop(fs::remove_file(&path));
        }
        let layer = made?;
        known.push_back(layer.clone());
        while known.len() > KEPT {
            let oldest = known.pop_front();
            drop(oldest.map(|layer| fs::remove_file(self.dir.join(layer.file))));
        }
        Ok(layer)
    }

    fn make(
        &self,
        files: Vec<File>,
        path: &Path,
        merge: impl FnOnce(Vec<File>, &File) -> Result<(), StoreError>,
    ) -> Result<Layer, StoreError> {
        if !self.dir.exists() {
            private_dir(&self.dir)?;
        }
        let target = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path);
        let target = target.map_err(io_error("create", path))?;
        merge(files, &target)?;
        seal(path)?;
        let key = path.file_name().unwrap_or_default().to_string_lossy();
        let layer = Layer::describe(&self.dir, &key);
        let layer = layer.map_err(|error| StoreError::Layer(key.into_owned(), error))?;
        self.verified.note(&layer, &self.dir);
        Ok(layer)
    }
}

fn merge_pages(files: Vec<File>, memory_bytes: u64, target: &File) -> Result<(), PagesError> {
    let open = |file| Pages::open(file, memory_bytes);
    let layers: Vec<Pages> = files.into_iter().map(open).collect::<Result<_, _>>()?;
    pages::merge(&layers, memory_bytes, target.try_clone()?).map(drop)
}

/// What a merged layer is called: by the contents of those it is made of.
fn key(layers: &[Layer]) -> String {
    let mut hasher = blake3::Hasher::new();
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
    use crate::snapshots::Snapshots;

    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
    const PAGE: usize = 4096;

    fn fill(dir: &Path, layers: u8) -> Manifest {
        let mut manifest = manifest::tests::sample();
        let bytes = manifest.machine.memory_bytes();
        let describe = |file: &str| Layer::describe(dir, file).unwrap();
        for name in ["disk.0", "disk.1", "memory", "device-state"] {
            fs::write(dir.join(name), name).unwrap();
        }
        manifest.disks = vec![describe("disk.0"), describe("disk.1")];
        manifest.memory = Some(describe("memory"));
        manifest.device_state = Some(describe("device-state"));
        manifest.pages.clear();
        for number in 0..layers {
            let name = format!("pages.{number}");
            let mut writer = PagesWriter::new(File::create(dir.join(&name)).unwrap(), bytes);
            let offset = u64::from(number / 2) * PAGE as u64;
            writer.add(offset, &[number + 1; PAGE]).unwrap();
            writer.finish().unwrap();
            manifest.pages.push(describe(&name));
        }
        manifest
    }

    fn pages(from: usize, to: usize) -> Merges {
        Merges {
            pages: Some(from..to),
            disks: None,
        }
    }

    fn published(dir: &Path, layers: u8) -> (Snapshots, Snapshot) {
        let snapshots = Snapshots::open(dir, &Verified::default()).unwrap();
        let staging = snapshots.stage("a").unwrap();
        let manifest = fill(staging.dir(), layers);
        let snapshot = snapshots.publish(staging, "key", &manifest).unwrap();
        (snapshots, snapshot)
    }

    #[test]
    fn a_replaced_snapshot_has_the_same_memory_in_fewer_layers() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, old) = published(dir.path(), 6);
        let memory = |snapshot: &Snapshot| {
            let file = tempfile::tempfile().unwrap();
            let bytes = snapshot.manifest.machine.memory_bytes();
            file.set_len(bytes).unwrap();
            for layer in &snapshot.manifest.pages {
                let layer = File::open(snapshot.path(layer)).unwrap();
                Pages::open(layer, bytes).unwrap().lay_over(&file).unwrap();
            }
            use std::os::unix::fs::FileExt as _;
            let mut begin = vec![0; 4 * PAGE];
            file.read_exact_at(&mut begin, 0).unwrap();
            begin
        };
        let before = memory(&old);
        assert_eq!(before[0], 2);
        let staging = snapshots.stage("b").unwrap();
        let manifest = snapshots
            .shorten(&old, staging.dir(), &pages(0, 4))
            .unwrap();
        drop(old);
        assert!(
            snapshots
                .replace(staging, "key", &manifest, PATIENCE)
                .unwrap()
        );
        let new = snapshots.get("key").unwrap().unwrap();
        let names: Vec<_> = new.manifest.pages.iter().map(|layer| &layer.file).collect();
        assert_eq!(names, ["pages.0", "pages.1", "pages.2"]);
        snapshots.verify(&new).unwrap();
        assert_eq!(memory(&new), before);
        assert_eq!(snapshots.keys().unwrap(), ["key"]);
        drop(Snapshots::open(dir.path(), &Verified::default()).unwrap());
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 1, "the old one and what was kept are gone");
    }

    #[test]
    fn neighbours_share_what_they_merge() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, snapshot) = published(dir.path(), 6);
        let merged = |unique: &str, merges: Merges| {
            let staging = snapshots.stage(unique).unwrap();
            let manifest = snapshots
                .shorten(&snapshot, staging.dir(), &merges)
                .unwrap();
            let path = staging.dir().join(&manifest.pages[0].file);
            fs::metadata(path).unwrap().ino()
        };
        assert_eq!(merged("b", pages(0, 4)), merged("c", pages(0, 4)));
        assert_ne!(merged("d", pages(0, 4)), merged("e", pages(0, 5)));
        let kept = || fs::read_dir(dir.path().join(MERGED)).unwrap().count();
        assert_eq!(kept(), 2);
        // Every staging is gone, and with the last removal what only they had.
        snapshots.remove("key").unwrap();
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_sandboxs_parent_is_shortened_in_a_directory_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, snapshot) = published(&dir.path().join("all"), 6);
        let parent = dir.path().join("parent");
        snapshots
            .shorten_to(&snapshot, &parent, &pages(0, 4))
            .unwrap();
        let found = Snapshot::load(&parent, "parent").unwrap().unwrap();
        snapshots.verify(&found).unwrap();
        assert_eq!(found.manifest.pages.len(), 3);
        assert_eq!(found.manifest.id, snapshot.manifest.id);
    }

    #[test]
    fn a_removal_takes_nothing_from_who_is_merging() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, snapshot) = published(dir.path(), 6);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    snapshots.remove("another").unwrap();
                }
            });
            let merged: Result<Vec<_>, _> = (0..40)
                .map(|round| {
                    let staging = snapshots.stage(&format!("b{round}"))?;
                    snapshots.shorten(&snapshot, staging.dir(), &pages(0, 4))
                })
                .collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            merged.unwrap();
        });
    }

    #[test]
    fn what_was_removed_meanwhile_is_not_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, old) = published(dir.path(), 6);
        let staging = snapshots.stage("b").unwrap();
        let manifest = snapshots
            .shorten(&old, staging.dir(), &pages(0, 4))
            .unwrap();
        snapshots.remove("key").unwrap();
        drop(old);
        assert!(
            !snapshots
                .replace(staging, "key", &manifest, PATIENCE)
                .unwrap()
        );
        assert_eq!(snapshots.keys().unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_in_use_is_replaced_when_it_no_longer_is() {
        let dir = tempfile::tempdir().unwrap();
        let (snapshots, old) = published(dir.path(), 6);
        let staging = snapshots.stage("b").unwrap();
        let manifest = snapshots
            .shorten(&old, staging.dir(), &pages(0, 4))
            .unwrap();
        std::thread::scope(|scope| {
            let replaced = scope.spawn(|| snapshots.replace(staging, "key", &manifest, PATIENCE));
            // By its manifest: every layer is where it says, and what it says.
            for layer in old.manifest.layers() {
                layer.verify(&old.dir).unwrap();
            }
            assert!(!replaced.is_finished());
            drop(old);
            assert!(replaced.join().unwrap().unwrap());
        });
    }
}

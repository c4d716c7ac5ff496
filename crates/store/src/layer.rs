//! A layer: one immutable file with its checksum.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file of a snapshot as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// File name in the snapshot's directory; never a path.
    pub file: String,
    /// Length in bytes, holes included.
    pub length: u64,
    /// Of the content; see [`hash_file`].
    pub blake3: String,
}

/// A layer is not what its manifest says.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// It cannot be read.
    #[error("cannot read layer `{path}`")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is longer or shorter.
    #[error("layer `{path}` has {found} bytes, its manifest says {expected}")]
    Length {
        /// Which file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// What the manifest says.
        expected: u64,
    },
    /// Its content differs.
    #[error("layer `{path}` is corrupt: its checksum does not match its manifest")]
    Checksum {
        /// Which file.
        path: PathBuf,
    },
}

/// Layers that were read and found to be what their manifests say, by inode: each is read
/// once in a daemon's life, unless it was changed since. Cheap to clone; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Verified(Arc<Mutex<HashMap<(u64, u64), Seen>>>);

/// What a file was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    length: u64,
    /// A link more changes `ctime`, a write changes this.
    modified: (i64, i64),
    blake3: String,
}

impl Seen {
    fn of(layer: &Layer, metadata: &Metadata) -> Self {
        Self {
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            blake3: layer.blake3.clone(),
        }
    }
}

/// More inodes than a host has layers; beyond it is begun anew.
const VERIFIED_MAX: usize = 100_000;

impl Verified {
    /// Checks a layer, unless that was done before.
    ///
    /// # Errors
    /// The file is missing, or differs in length or content.
    pub fn check(&self, layer: &Layer, dir: &Path) -> Result<(), LayerError> {
        let path = dir.join(&layer.file);
        if let Ok(metadata) = std::fs::metadata(&path)
            && self.lock().get(&(metadata.dev(), metadata.ino()))
                == Some(&Seen::of(layer, &metadata))
        {
            return layer.check_length(dir);
        }
        layer.verify(dir)?;
        self.note(layer, dir);
        Ok(())
    }

    /// Notes a layer that was hashed just now.
    pub fn note(&self, layer: &Layer, dir: &Path) {
        if let Ok(metadata) = std::fs::metadata(dir.join(&layer.file)) {
            let mut known = self.lock();
            if known.len() >= VERIFIED_MAX {
                known.clear();
            }
            let seen = Seen::of(layer, &metadata);
            known.insert((metadata.dev(), metadata.ino()), seen);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u64), Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Layer {
    /// Describes a file that is complete.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn describe(dir: &Path, file: &str) -> Result<Self, LayerError> {
        let path = dir.join(file);
        let io = |source| LayerError::Io {
            path: path.clone(),
            source,
        };
        let length = std::fs::metadata(&path).map_err(io)?.len();
        let blake3 = hash_file(&path).map_err(io)?;
        Ok(Self {
            file: file.to_owned(),
            length,
            blake3,
        })
    }

    /// Compares length only: what every spawn can afford.
    ///
    /// # Errors
    /// The file is missing or has another length.
    pub fn check_length(&self, dir: &Path) -> Result<(), LayerError> {
        let path = dir.join(&self.file);
        let found = std::fs::metadata(&path)
            .map_err(|source| LayerError::Io {
                path: path.clone(),
                source,
            })?
            .len();
        if found == self.length {
            Ok(())
        } else {
            Err(LayerError::Length {
                path,
                found,
                expected: self.length,
            })
        }
    }

    /// Reads the whole file and compares its checksum.
    ///
    /// # Errors
    /// The file is missing, or differs in length or content.
    pub fn verify(&self, dir: &Path) -> Result<(), LayerError> {
        self.check_length(dir)?;
        let path = dir.join(&self.file);
        let found = hash_file(&path).map_err(|source| LayerError::Io {
            path: path.clone(),
            source,
        })?;
        if found == self.blake3 {
            Ok(())
        } else {
            Err(LayerError::Checksum { path })
        }
    }
}

/// BLAKE3 of a file's content, 64 hex digits. Layers are mostly holes, so zeros are left
/// out: what is hashed is, for each block of 64 KiB that is not all zeros, its offset (u64,
/// little endian) and its bytes; then the file's length.
///
/// # Errors
/// The file cannot be read.
pub fn hash_file(path: &Path) -> io::Result<String> {
    const BLOCK: usize = 64 << 10;
    /// Large enough that reading, not calling, is the cost.
    const CHUNK: usize = 16 * BLOCK;
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    // Extents begin and end where the file system likes: blocks do not.
    let mut next = 0;
    pando_sys::file::for_each_data_extent(&file, |start, end| {
        let mut at = next.max(start - start % BLOCK as u64);
        while at < end {
            let bytes = CHUNK.min(usize::try_from(length - at).unwrap_or(CHUNK));
            let bytes = &mut buffer[..bytes];
            file.read_exact_at(bytes, at)?;
            for block in bytes.chunks(BLOCK) {
                if !pando_sys::file::is_zero(block) {
                    hasher.update(&at.to_le_bytes());
                    hasher.update(block);
                }
                at += block.len() as u64;
            }
            next = at;
        }
        Ok(())
    })?;
    hasher.update(&length.to_le_bytes());
    Ok(hasher.finalize().to_hex().to_string())
}

/// Bytes that a directory's files take on disk, each inode's own allocation.
pub(crate) fn allocated_bytes(dir: &Path) -> io::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(dir)? {
        let metadata = entry?.metadata()?;
        // st_blocks counts units of 512 bytes whatever the file system's block size.
        total += metadata.blocks() * 512;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_content_and_length_and_not_on_holes() {
        let dir = tempfile::tempdir().unwrap();
        let hash = |bytes: &[u8]| {
            let path = dir.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            let dense = hash_file(&path).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            pando_sys::file::punch_zeros(&file).unwrap();
            assert_eq!(hash_file(&path).unwrap(), dense);
            dense
        };
        let mut bytes = vec![0; 3 << 20];
        let zeros = hash(&bytes);
        assert_ne!(zeros, hash(&bytes[1..]));
        for at in [0, 65_535, 65_536, 1 << 20, (3 << 20) - 1] {
            bytes[at] = 1;
            let with = hash(&bytes);
            assert_ne!(zeros, with);
            bytes[at] = 0;
            let moved = (at + 65_536) % bytes.len();
            bytes[moved] = 1;
            assert_ne!(hash(&bytes), with, "moved by a block from {at}");
            bytes.fill(0);
        }
    }
}

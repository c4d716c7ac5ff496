//! A layer: one immutable file with its checksum.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file of a snapshot as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// File name in the snapshot's directory; never a path.
    pub file: String,
    /// Length in bytes, holes included.
    pub length: u64,
    /// BLAKE3 of the whole content, 64 hex digits.
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

/// BLAKE3 of a file, 64 hex digits.
///
/// # Errors
/// The file cannot be read.
pub fn hash_file(path: &Path) -> io::Result<String> {
    /// Large enough that reading, not calling, is the cost.
    const CHUNK: usize = 1 << 20;
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            count => {
                hasher.update(&buffer[..count]);
            }
        }
    }
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

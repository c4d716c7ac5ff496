//! Memory files of snapshots.
//!
//! A memory file holds a VM's whole memory, zero pages as holes, and never
//! changes once finished: every child maps it privately. While a VM that is to
//! be baked runs, the file *is* its memory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use pando_sys::file;

/// Why a memory file could not be finished.
#[derive(Debug, thiserror::Error)]
#[error("the memory file `{}` cannot be written", path.display())]
pub struct MemoryImageError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Finishes the memory file of a VM that was started cold and has ended: zero
/// pages become holes, and the file durable. Returns the bytes it takes on disk. Blocks.
///
/// # Errors
/// When the file cannot be read or written.
pub fn seal_cold(path: &Path) -> Result<u64, MemoryImageError> {
    let failed = |source| MemoryImageError {
        path: path.to_owned(),
        source,
    };
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed)?;
    file::punch_zeros(&file).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    file::allocated_bytes(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_reads_the_same_and_takes_less() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        let mut bytes = vec![0; 4 << 20];
        bytes[2 << 20] = 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(seal_cold(&path).unwrap() <= 64 << 10);
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}

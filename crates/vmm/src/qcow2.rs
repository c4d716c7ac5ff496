//! Empty disk layers, without starting `qemu-img`.
//!
//! ```text
//! cluster 0   header (version 3, no backing file, no features)
//! cluster 1   refcount table: one entry, to cluster 2
//! cluster 2   refcount block: clusters 0 to 3 and those of the L1 table are used once
//! cluster 3.. L1 table, all zero: nothing is allocated
//! ```
//!
//! The header names no backing file: which layer lies below is said when a
//! chain is opened, never taken from a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// log2 of the cluster size: 16 KiB, as of the disk below. An empty layer that came into use
/// takes 52 KiB, where QEMU's default of 64 KiB takes 196; no write was measured to be slower.
const CLUSTER_BITS: u32 = 14;
const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;
/// Bytes that one L1 entry maps: an L2 table of one cluster, 8 bytes an entry.
const L1_ENTRY_BYTES: u64 = CLUSTER_BYTES / 8 * CLUSTER_BYTES;
/// Largest layer: its L1 table still fits one refcount block.
const VIRTUAL_BYTES_MAX: u64 = 64 << 40;

/// Smallest unit of a disk.
const SECTOR_BYTES: u64 = 512;
const HEADER_BYTES: u32 = 104;
/// log2 of the bits in a reference count: 16 bits.
const REFCOUNT_ORDER: u32 = 4;

/// Creates an empty layer of `virtual_bytes`, which must be a multiple of 512.
///
/// # Errors
/// When the file exists, cannot be written, or the size is not possible.
pub fn create(path: &Path, virtual_bytes: u64) -> io::Result<()> {
    if virtual_bytes == 0
        || !virtual_bytes.is_multiple_of(SECTOR_BYTES)
        || virtual_bytes > VIRTUAL_BYTES_MAX
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let l1_entries = virtual_bytes.div_ceil(L1_ENTRY_BYTES);
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER_BYTES);
    let clusters = 3 + l1_clusters;

    let file = File::options().write(true).create_new(true).open(path)?;
    file.set_len(clusters * CLUSTER_BYTES)?;
    file.write_all_at(&header(virtual_bytes, l1_entries as u32), 0)?;
    file.write_all_at(&(2 * CLUSTER_BYTES).to_be_bytes(), CLUSTER_BYTES)?;
    let used = [0, 1].repeat(clusters as usize);
    file.write_all_at(&used, 2 * CLUSTER_BYTES)
}

fn header(virtual_bytes: u64, l1_entries: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES as usize + 8);
    header.extend(b"QFI\xfb");
    header.extend(3u32.to_be_bytes()); // version
    header.extend(0u64.to_be_bytes()); // backing file: none
    header.extend(0u32.to_be_bytes()); // length of its name
    header.extend(CLUSTER_BITS.to_be_bytes());
    header.extend(virtual_bytes.to_be_bytes());
    header.extend(0u32.to_be_bytes()); // encryption: none
    header.extend(l1_entries.to_be_bytes());
    header.extend((3 * CLUSTER_BYTES).to_be_bytes()); // L1 table
    header.extend(CLUSTER_BYTES.to_be_bytes()); // refcount table
    header.extend(1u32.to_be_bytes()); // its clusters
    header.extend(0u32.to_be_bytes()); // internal snapshots: none
    header.extend(0u64.to_be_bytes()); // their table
    header.extend([0; 24]); // incompatible, compatible and automatic features: none
    header.extend(REFCOUNT_ORDER.to_be_bytes());
    header.extend(HEADER_BYTES.to_be_bytes());
    header.extend([0; 8]); // end of the header extensions
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_as_long_as_it_says() {
        assert_eq!(header(8 << 30, 16).len(), HEADER_BYTES as usize + 8);
    }

    #[test]
    fn an_empty_layer_takes_little_and_is_not_made_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("layer");
        create(&path, 8 << 30).unwrap();
        assert!(pando_sys::file::allocated_bytes(&path).unwrap() <= 64 << 10);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * CLUSTER_BYTES);
        assert_eq!(
            create(&path, 8 << 30).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
    }

    #[test]
    fn sizes_that_no_disk_has_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [0, 1000, VIRTUAL_BYTES_MAX + 512] {
            create(&folder.path().join("layer"), bytes).unwrap_err();
        }
    }
}

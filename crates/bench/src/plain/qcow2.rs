//! An empty qcow2 file, without `qemu-img`, which need not be installed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// QEMU's default.
const CLUSTER_BITS: u32 = 16;
const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;

/// Bytes that an entry of the L1 table stands for.
const L1_ENTRY_BYTES: u64 = CLUSTER_BYTES / 8 * CLUSTER_BYTES;

/// Header, reference counts in two clusters, L1 table.
const CLUSTERS: u64 = 4;

/// Makes one of the size of another.
pub(super) fn create(path: &Path, of_size: &Path) -> io::Result<()> {
    let mut virtual_bytes = [0; 8];
    File::open(of_size)?.read_exact_at(&mut virtual_bytes, 24)?;
    let virtual_bytes = u64::from_be_bytes(virtual_bytes);
    let entries = virtual_bytes.div_ceil(L1_ENTRY_BYTES);
    if virtual_bytes == 0 || entries * 8 > CLUSTER_BYTES {
        return Err(io::Error::other("a disk of an odd size"));
    }
    let file = File::options().write(true).create_new(true).open(path)?;
    file.set_len(CLUSTERS * CLUSTER_BYTES)?;
    file.write_all_at(&header(virtual_bytes, entries), 0)?;
    file.write_all_at(&(2 * CLUSTER_BYTES).to_be_bytes(), CLUSTER_BYTES)?;
    let used = [0, 1].repeat(CLUSTERS as usize);
    file.write_all_at(&used, 2 * CLUSTER_BYTES)
}

/// Version 2, without a name of what lies below: the command line says that.
fn header(virtual_bytes: u64, entries: u64) -> Vec<u8> {
    let mut header = b"QFI\xfb\0\0\0\x02".to_vec();
    header.extend([0; 12]);
    header.extend(CLUSTER_BITS.to_be_bytes());
    header.extend(virtual_bytes.to_be_bytes());
    header.extend([0; 4]);
    header.extend((entries as u32).to_be_bytes());
    header.extend((3 * CLUSTER_BYTES).to_be_bytes());
    header.extend(CLUSTER_BYTES.to_be_bytes());
    header.extend(1u32.to_be_bytes());
    header.extend([0; 12]);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_has_the_size_of_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let [lower, upper] = ["lower", "upper"].map(|name| directory.path().join(name));
        fs::write(&lower, header(8 << 30, 16)).unwrap();
        create(&upper, &lower).unwrap();
        let text = fs::read(&upper).unwrap();
        assert_eq!(text.len(), 4 << 16);
        assert_eq!(text[..72], fs::read(&lower).unwrap());
        assert_eq!(text[(1 << 16) + 5], 2);
        assert_eq!(text[2 << 16..][..10], [0, 1, 0, 1, 0, 1, 0, 1, 0, 0]);
        assert!(create(&upper, &lower).is_err());
    }
}

//! Which pages of a private file mapping are no longer the file's.
//!
//! A page is private when it is present or swapped out, and not the file's.
//! "Present and not the file's" alone would silently lose pages that the host
//! has swapped out.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::maps::Mapping;
use super::{PAGE_BYTES, PageRange};

/// Bit of a `pagemap` entry: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Bit of a `pagemap` entry: the page is in swap.
const SWAPPED: u64 = 1 << 62;
/// Bit of a `pagemap` entry: the page is the file's or shared.
const FILE_OR_SHARED: u64 = 1 << 61;

/// Entries of `pagemap` read at once: 512 KiB, which covers 256 MiB of guest memory.
const ENTRIES_PER_READ: usize = 64 << 10;

/// Ranges that one `PAGEMAP_SCAN` returns before it is called again.
const RANGES_PER_SCAN: usize = 4096;

/// Appends the private pages of the mapping to `ranges`.
pub(super) fn private_ranges(
    pagemap: &File,
    mapping: &Mapping,
    ranges: &mut Vec<PageRange>,
) -> io::Result<()> {
    let before = ranges.len();
    match scan(pagemap, mapping, &PRIVATE, ranges) {
        Ok(()) => Ok(()),
        // Kernels before 6.7 do not know the call.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
            ranges.truncate(before);
            read_bits(pagemap, mapping, ranges)
        }
        Err(error) => Err(error),
    }
}

/// Appends the private pages of the mapping that were written since the last time, and
/// protects them again in the same go. A page in swap keeps its mark there.
///
/// Refused where nobody registered the mapping, or the kernel is older than 6.7. After any
/// other error the pages that were protected before it are lost.
pub(super) fn take_written(
    pagemap: &File,
    mapping: &Mapping,
    ranges: &mut Vec<PageRange>,
) -> io::Result<()> {
    scan(pagemap, mapping, &WRITTEN, ranges)
}

/// Appends what [`take_written`] would find now; protects nothing.
pub(super) fn written(
    pagemap: &File,
    mapping: &Mapping,
    ranges: &mut Vec<PageRange>,
) -> io::Result<()> {
    let look = Wanted {
        flags: FLAG_CHECK_TRACKED,
        ..WRITTEN
    };
    scan(pagemap, mapping, &look, ranges)
}

/// Whether [`take_written`] would be refused; protects nothing.
pub(super) fn check_tracked(pagemap: &File, mapping: &Mapping) -> io::Result<()> {
    let first = Mapping {
        end: mapping.start + PAGE_BYTES,
        ..*mapping
    };
    let check = Wanted {
        flags: FLAG_CHECK_TRACKED,
        ..PRIVATE
    };
    scan(pagemap, &first, &check, &mut Vec::new())
}

/// What one scan looks for.
struct Wanted {
    flags: u64,
    /// Besides being private.
    categories: u64,
}

const PRIVATE: Wanted = Wanted {
    flags: 0,
    categories: 0,
};

const WRITTEN: Wanted = Wanted {
    flags: FLAG_PROTECT | FLAG_CHECK_TRACKED,
    categories: CATEGORY_WRITTEN,
};

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = (3 << 30)
    | ((size_of::<ScanArgument>() as libc::c_ulong) << 16)
    | ((b'f' as libc::c_ulong) << 8)
    | 16;
/// `PM_SCAN_WP_MATCHING`: protect the pages that are reported.
const FLAG_PROTECT: u64 = 1 << 0;
/// `PM_SCAN_CHECK_WPASYNC`: fail where writes are not tracked.
const FLAG_CHECK_TRACKED: u64 = 1 << 1;
const CATEGORY_WRITTEN: u64 = 1 << 1;
const CATEGORY_FILE: u64 = 1 << 2;
const CATEGORY_PRESENT: u64 = 1 << 3;
const CATEGORY_SWAPPED: u64 = 1 << 4;

fn scan(
    pagemap: &File,
    mapping: &Mapping,
    wanted: &Wanted,
    ranges: &mut Vec<PageRange>,
) -> io::Result<()> {
    let mut regions = vec![Region::default(); RANGES_PER_SCAN];
    let mut start = mapping.start;
    while start < mapping.end {
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            flags: wanted.flags,
            start,
            end: mapping.end,
            vector: regions.as_mut_ptr() as u64,
            vector_length: regions.len() as u64,
            category_inverted: CATEGORY_FILE,
            category_mask: CATEGORY_FILE | wanted.categories,
            category_any_of: CATEGORY_PRESENT | CATEGORY_SWAPPED,
            // Nothing else about the pages is of interest, so neighbours merge.
            return_mask: CATEGORY_FILE,
            ..ScanArgument::default()
        };
        // SAFETY: `argument` is the kernel's structure with its size in it;
        // `vector` and `vector_length` describe `regions`, which outlives the call.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        for region in regions.iter().take(found) {
            push(ranges, mapping, region.start, region.end);
        }
        // The kernel collects 512 regions at a time, and says where it stopped to do so
        // even where it went on from there to the end: what it found beyond counts, too.
        let beyond = found.checked_sub(1).map_or(0, |last| regions[last].end);
        let end = argument.walk_end.max(beyond);
        if end <= start {
            return Err(io::Error::other("PAGEMAP_SCAN did not advance"));
        }
        start = end;
    }
    Ok(())
}

fn read_bits(pagemap: &File, mapping: &Mapping, ranges: &mut Vec<PageRange>) -> io::Result<()> {
    let mut entries = vec![0; ENTRIES_PER_READ * size_of::<u64>()];
    let mut start = mapping.start;
    while start < mapping.end {
        let pages = ((mapping.end - start) / PAGE_BYTES).min(ENTRIES_PER_READ as u64);
        let buffer = &mut entries[..pages as usize * size_of::<u64>()];
        pagemap.read_exact_at(buffer, start / PAGE_BYTES * size_of::<u64>() as u64)?;
        for entry in buffer.as_chunks::<8>().0 {
            if is_private(u64::from_ne_bytes(*entry)) {
                push(ranges, mapping, start, start + PAGE_BYTES);
            }
            start += PAGE_BYTES;
        }
    }
    Ok(())
}

fn is_private(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) != 0 && entry & FILE_OR_SHARED == 0
}

/// Adds `start..end`, merged with the range before where they touch.
fn push(ranges: &mut Vec<PageRange>, mapping: &Mapping, start: u64, end: u64) {
    let file_offset = mapping.file_offset + (start - mapping.start);
    if let Some(last) = ranges.last_mut()
        && last.address + last.bytes == start
        && last.file_offset + last.bytes == file_offset
    {
        last.bytes += end - start;
        return;
    }
    ranges.push(PageRange {
        address: start,
        file_offset,
        bytes: end - start,
    });
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The portable way alone, for comparison with what the kernel's scan finds.
    pub(in crate::memory) fn by_bits(pagemap: &File, mapping: &Mapping) -> Vec<PageRange> {
        let mut ranges = Vec::new();
        read_bits(pagemap, mapping, &mut ranges).unwrap();
        ranges
    }

    #[test]
    fn a_page_in_swap_is_private_and_one_of_the_file_is_not() {
        assert!(is_private(PRESENT));
        assert!(is_private(SWAPPED));
        assert!(!is_private(0));
        assert!(!is_private(PRESENT | FILE_OR_SHARED));
        assert!(!is_private(SWAPPED | FILE_OR_SHARED));
    }

    #[test]
    fn neighbours_merge_and_others_do_not() {
        let mapping = Mapping {
            start: 0x10000,
            end: 0x20000,
            file_offset: 0x5000,
        };
        let mut ranges = Vec::new();
        push(&mut ranges, &mapping, 0x10000, 0x11000);
        push(&mut ranges, &mapping, 0x11000, 0x12000);
        push(&mut ranges, &mapping, 0x13000, 0x14000);
        let expected = [
            PageRange {
                address: 0x10000,
                file_offset: 0x5000,
                bytes: 0x2000,
            },
            PageRange {
                address: 0x13000,
                file_offset: 0x8000,
                bytes: 0x1000,
            },
        ];
        assert_eq!(ranges, expected);
    }
}

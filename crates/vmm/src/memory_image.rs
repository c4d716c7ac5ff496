//! Memory files of snapshots.
//!
//! A memory file holds a VM's whole memory, zero pages as holes, and never
//! changes once finished: every child maps it privately. The file of a new
//! snapshot is its parent's with the VM's own pages laid over it. Only finding
//! and copying those pages happens while the VM is stopped:
//!
//! ```text
//!   before the pause   prepare   share or copy the parent's file, fault in the arena
//!   in the pause       capture   private pages -> arena (what does not fit -> file)
//!   after the pause    finish    arena -> file, fsync
//! ```

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use pando_sys::file;
use pando_sys::memory::{GuestMemory, MemoryError, PAGE_BYTES, PageRange};

/// Arena of one capture, for most VMs: what a sandbox dirties between two
/// snapshots is nearly always less, and 20 captures at once stay below 1.3 GiB.
pub const ARENA_BYTES: usize = 64 << 20;

/// Pages copied at once when the arena is full.
const SPILL_BYTES: u64 = 4 << 20;

/// Threads that copy pages. More do not help: the copy is bound by memory, and
/// a host may have two cores.
const COPY_THREADS: usize = 2;

/// Fewer pages than this (4 MiB) are not worth a second thread.
const PARALLEL_BYTES: u64 = 4 << 20;

/// Why a memory file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryImageError {
    /// A file could not be read or written.
    #[error("the memory file `{}` cannot be written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The VM's pages could not be read.
    #[error("the pages of the VM cannot be captured")]
    Pages(#[from] MemoryError),
    /// The VM maps more than its file holds.
    #[error("the VM has a page at {offset} of a memory file of {length} bytes")]
    Beyond {
        /// Where the page belongs.
        offset: u64,
        /// The file's length.
        length: u64,
    },
}

/// What a capture found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Bytes of pages that were the VM's own.
    pub private_bytes: u64,
    /// Those of them that did not fit the arena and were written in the pause.
    pub spilled_bytes: u64,
}

impl Captured {
    /// Pages that were the VM's own.
    pub fn private_pages(self) -> u64 {
        self.private_bytes / PAGE_BYTES
    }
}

/// A memory file in the making. All its methods block.
#[derive(Debug)]
pub struct MemoryImage {
    file: File,
    path: PathBuf,
    length: u64,
    arena: Vec<u8>,
    /// What the arena holds, in order.
    ranges: Vec<PageRange>,
}

impl MemoryImage {
    /// Starts the file `target`, which must not exist, as the parent's file
    /// `base`. Before the pause: without reflinks this copies the parent's data.
    ///
    /// # Errors
    /// When a file cannot be read or made.
    pub fn prepare(
        base: &Path,
        target: &Path,
        arena_bytes: usize,
    ) -> Result<Self, MemoryImageError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| MemoryImageError::File { path, source }
        };
        let base_file = File::open(base).map_err(failed(base))?;
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(target)
            .map_err(failed(target))?;
        file::share_or_copy(&base_file, &file).map_err(failed(target))?;
        let length = file.metadata().map_err(failed(target))?.len();
        Ok(Self {
            file,
            path: target.to_owned(),
            length,
            arena: faulted_in(arena_bytes),
            ranges: Vec::new(),
        })
    }

    /// Copies the pages that are the VM's own. In the pause: the VM must be stopped.
    ///
    /// # Errors
    /// When any page cannot be read; the file is then of no use.
    pub fn capture(&mut self, memory: &GuestMemory) -> Result<Captured, MemoryImageError> {
        let ranges = memory.private_ranges()?;
        for range in &ranges {
            if range.file_offset + range.bytes > self.length {
                return Err(MemoryImageError::Beyond {
                    offset: range.file_offset,
                    length: self.length,
                });
            }
        }
        let (kept, spilled) = split_at_bytes(ranges, self.arena.len() as u64);
        let kept_bytes = total(&kept);
        copy_in_parallel(memory, &kept, &mut self.arena[..kept_bytes as usize])?;
        self.ranges = kept;
        let spilled_bytes = total(&spilled);
        self.spill(memory, spilled)?;
        Ok(Captured {
            private_bytes: kept_bytes + spilled_bytes,
            spilled_bytes,
        })
    }

    fn spill(
        &self,
        memory: &GuestMemory,
        mut rest: Vec<PageRange>,
    ) -> Result<(), MemoryImageError> {
        let mut buffer = Vec::new();
        while !rest.is_empty() {
            let (now, later) = split_at_bytes(rest, SPILL_BYTES);
            buffer.resize(total(&now) as usize, 0);
            memory.read(&now, &mut buffer)?;
            self.write(&now, &buffer)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes the captured pages and makes the file durable. After the pause.
    /// Returns the bytes that the file takes on disk.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(self) -> Result<u64, MemoryImageError> {
        self.write(&self.ranges, &self.arena)?;
        let failed = |source| MemoryImageError::File {
            path: self.path.clone(),
            source,
        };
        self.file.sync_all().map_err(failed)?;
        file::allocated_bytes(&self.path).map_err(failed)
    }

    fn write(&self, ranges: &[PageRange], bytes: &[u8]) -> Result<(), MemoryImageError> {
        let mut rest = bytes;
        for range in ranges {
            let (pages, after) = rest.split_at(range.bytes as usize);
            file::write_sparse(&self.file, range.file_offset, pages).map_err(|source| {
                MemoryImageError::File {
                    path: self.path.clone(),
                    source,
                }
            })?;
            rest = after;
        }
        Ok(())
    }
}

/// Finishes the memory file of a VM that was started cold and has ended: zero
/// pages become holes, and the file durable. Returns the bytes it takes on disk. Blocks.
///
/// # Errors
/// When the file cannot be read or written.
pub fn seal_cold(path: &Path) -> Result<u64, MemoryImageError> {
    let failed = |source| MemoryImageError::File {
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

/// Memory whose pages exist, so that the pause pays for no page faults.
fn faulted_in(bytes: usize) -> Vec<u8> {
    let mut arena = vec![0; bytes];
    // Zeroed allocations are mapped but not yet there; any write makes a page real.
    for page in arena.chunks_mut(PAGE_BYTES as usize) {
        page[0] = std::hint::black_box(1);
    }
    arena
}

fn total(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.bytes).sum()
}

/// Splits the list where its sum reaches `bytes` (rounded down to pages),
/// cutting a range in two where needed.
fn split_at_bytes(ranges: Vec<PageRange>, bytes: u64) -> (Vec<PageRange>, Vec<PageRange>) {
    let mut left = bytes - bytes % PAGE_BYTES;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for range in ranges {
        let taken = range.bytes.min(left);
        if taken > 0 {
            before.push(PageRange {
                bytes: taken,
                ..range
            });
        }
        if taken < range.bytes {
            after.push(PageRange {
                address: range.address + taken,
                file_offset: range.file_offset + taken,
                bytes: range.bytes - taken,
            });
        }
        left -= taken;
    }
    (before, after)
}

fn copy_in_parallel(
    memory: &GuestMemory,
    ranges: &[PageRange],
    target: &mut [u8],
) -> Result<(), MemoryError> {
    let bytes = target.len() as u64;
    if bytes < PARALLEL_BYTES {
        return memory.read(ranges, target);
    }
    let (first, second) = split_at_bytes(ranges.to_vec(), bytes / COPY_THREADS as u64);
    let (first_target, second_target) = target.split_at_mut(total(&first) as usize);
    thread::scope(|scope| {
        let helper = scope.spawn(|| memory.read(&second, second_target));
        memory.read(&first, first_target)?;
        helper
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(page: u64, pages: u64) -> PageRange {
        PageRange {
            address: 0x10_0000 + page * PAGE_BYTES,
            file_offset: page * PAGE_BYTES,
            bytes: pages * PAGE_BYTES,
        }
    }

    #[test]
    fn a_split_cuts_a_range_and_loses_nothing() {
        let ranges = vec![range(0, 3), range(10, 5)];
        let (before, after) = split_at_bytes(ranges.clone(), 4 * PAGE_BYTES + 100);
        assert_eq!(before, [range(0, 3), range(10, 1)]);
        assert_eq!(after, [range(11, 4)]);
        assert_eq!(split_at_bytes(ranges.clone(), 0), (vec![], ranges.clone()));
        assert_eq!(split_at_bytes(ranges.clone(), u64::MAX), (ranges, vec![]));
    }

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

    #[test]
    fn an_image_starts_as_its_parent_and_never_overwrites_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let (base, target) = (folder.path().join("base"), folder.path().join("target"));
        std::fs::write(&base, vec![5; 1 << 20]).unwrap();
        let image = MemoryImage::prepare(&base, &target, 1 << 20).unwrap();
        image.finish().unwrap();
        assert!(std::fs::read(&target).unwrap() == vec![5; 1 << 20]);
        MemoryImage::prepare(&base, &target, 0).unwrap_err();
    }
}

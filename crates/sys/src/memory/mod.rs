//! A VM's memory, seen from the process that started it.
//!
//! A spawned VM maps its snapshot's memory file privately: a page that the guest
//! has written exists twice, once in the file and once as the VM's own. The
//! private ones are what a new snapshot must keep and what a clone costs.

mod maps;
mod pagemap;
mod usage;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;

pub use usage::ProcessMemory;

/// Bytes in a page. Pando runs on x86-64 and AArch64 kernels with 4 KiB pages;
/// [`GuestMemory::open`] refuses others.
pub const PAGE_BYTES: u64 = 4096;

/// Ranges read by one `process_vm_readv`: the kernel's limit on its vectors.
const RANGES_PER_READ: usize = 1024;

/// Neighbouring pages of a VM that are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Where they are in the VM's process.
    pub address: u64,
    /// Where they belong in the memory file.
    pub file_offset: u64,
    /// Length in bytes, a multiple of [`PAGE_BYTES`].
    pub bytes: u64,
}

impl PageRange {
    /// The number of pages.
    pub fn pages(&self) -> u64 {
        self.bytes / PAGE_BYTES
    }
}

/// Why memory could not be read.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The process's files in `/proc` could not be opened.
    #[error("`/proc/{pid}/{name}` cannot be opened")]
    Open {
        /// The process.
        pid: u32,
        /// The file's name.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The host's pages are not 4 KiB.
    #[error("pages of {0} bytes are not supported")]
    PageSize(usize),
    /// The process does not map the memory file.
    #[error("process {0} does not map its memory file")]
    NotMapped(u32),
    /// The kernel's answer about pages could not be read.
    #[error("the pages of process {pid} cannot be listed")]
    List {
        /// The process.
        pid: u32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Fewer bytes were read than the pages hold.
    #[error("{read} of {wanted} bytes of process {pid} could be read")]
    Short {
        /// The process.
        pid: u32,
        /// Bytes read.
        read: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// The kernel refused to read.
    #[error("the memory of process {pid} cannot be read")]
    Read {
        /// The process.
        pid: u32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// The memory of one VM's process, for as long as that process lives.
///
/// The kernel checks the right to look when the files are opened: open them
/// right after exec, before anything changes about either process.
#[derive(Debug)]
pub struct GuestMemory {
    pid: u32,
    memory_file: maps::FileIdentity,
    maps: File,
    pagemap: File,
    contents: File,
}

impl GuestMemory {
    /// Opens the memory of process `pid`, whose guest RAM is a mapping of `memory_file`.
    ///
    /// # Errors
    /// When the process is gone or not ours, or the host's pages are not 4 KiB.
    pub fn open(pid: u32, memory_file: &Path) -> Result<Self, MemoryError> {
        let page_size = rustix::param::page_size();
        if page_size as u64 != PAGE_BYTES {
            return Err(MemoryError::PageSize(page_size));
        }
        let open = |name: &'static str| {
            File::open(format!("/proc/{pid}/{name}")).map_err(|source| MemoryError::Open {
                pid,
                name,
                source,
            })
        };
        let metadata = std::fs::metadata(memory_file).map_err(|source| MemoryError::Open {
            pid,
            name: "its memory file",
            source,
        })?;
        Ok(Self {
            pid,
            memory_file: maps::FileIdentity {
                device: metadata.dev(),
                inode: metadata.ino(),
                path: memory_file.canonicalize().ok(),
            },
            maps: open("maps")?,
            pagemap: open("pagemap")?,
            contents: open("mem")?,
        })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The pages that are the VM's own, by address. Stop the VM first, or the
    /// answer is old before it is read.
    ///
    /// # Errors
    /// When the process is gone or does not map the memory file.
    pub fn private_ranges(&self) -> Result<Vec<PageRange>, MemoryError> {
        let list = |source| MemoryError::List {
            pid: self.pid,
            source,
        };
        let mappings = maps::mappings_of(&self.maps, &self.memory_file).map_err(list)?;
        if mappings.is_empty() {
            return Err(MemoryError::NotMapped(self.pid));
        }
        let mut ranges = Vec::new();
        for mapping in mappings {
            pagemap::private_ranges(&self.pagemap, &mapping, &mut ranges).map_err(list)?;
        }
        Ok(ranges)
    }

    /// Reads all of `ranges`, one after the other, into `buffer`, whose length is their sum.
    ///
    /// # Errors
    /// When any byte cannot be read: a snapshot with missing pages is none.
    pub fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<(), MemoryError> {
        let mut rest = buffer;
        for batch in ranges.chunks(RANGES_PER_READ) {
            let wanted: usize = batch.iter().map(|range| range.bytes as usize).sum();
            if rest.len() < wanted {
                let read = rest.len();
                return Err(MemoryError::Short {
                    pid: self.pid,
                    read,
                    wanted,
                });
            }
            let (target, after) = rest.split_at_mut(wanted);
            self.read_batch(batch, target)?;
            rest = after;
        }
        Ok(())
    }

    fn read_batch(&self, ranges: &[PageRange], target: &mut [u8]) -> Result<(), MemoryError> {
        match read_vectors(self.pid, ranges, target) {
            Ok(read) if read == target.len() => Ok(()),
            // The kernel ends a transfer early at its own limit (2 GiB), and
            // refuses it where ptrace rights have changed since the open: the
            // open descriptor still answers.
            Ok(_) | Err(Errno::PERM) => self.read_through_descriptor(ranges, target),
            Err(error) => Err(MemoryError::Read {
                pid: self.pid,
                source: error.into(),
            }),
        }
    }

    fn read_through_descriptor(
        &self,
        ranges: &[PageRange],
        target: &mut [u8],
    ) -> Result<(), MemoryError> {
        let mut rest = target;
        for range in ranges {
            let (part, after) = rest.split_at_mut(range.bytes as usize);
            self.contents
                .read_exact_at(part, range.address)
                .map_err(|source| MemoryError::Read {
                    pid: self.pid,
                    source,
                })?;
            rest = after;
        }
        Ok(())
    }
}

/// One `process_vm_readv`; returns how many bytes it moved.
fn read_vectors(pid: u32, ranges: &[PageRange], target: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    };
    let remote: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: range.address as *mut libc::c_void,
            iov_len: range.bytes as usize,
        })
        .collect();
    // SAFETY: `local` covers exactly `target`, which is exclusively borrowed.
    // The remote addresses are only looked up in the other process, by the
    // kernel, which reports those that are not mapped.
    let read = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(read)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests;

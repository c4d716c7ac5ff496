//! A VM's memory, seen from the process that started it.
//!
//! A spawned VM maps its snapshot's memory file privately: a page that the guest
//! has written exists twice, once in the file and once as the VM's own. The
//! private ones are what a new snapshot must keep and what a clone costs.
//!
//! Where `crates/preload` is loaded into the VMM, the kernel also marks which of
//! them were written since the marks were taken away the last time.

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

/// Ranges moved by one `process_vm_readv` or `process_vm_writev`: the kernel's
/// limit on their vectors.
const RANGES_PER_CALL: usize = 1024;

/// Neighbouring pages of a VM.
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

/// Neighbouring bytes of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
}

/// Why memory could not be read or written.
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
    /// There are fewer bytes than the pages hold.
    #[error("{given} bytes for {wanted} of process {pid}")]
    TooFew {
        /// The process.
        pid: u32,
        /// Bytes given.
        given: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// The kernel does not track what the process writes: it is older than 6.7, or the
    /// mapping was not registered.
    #[error("the kernel does not track what process {pid} writes")]
    NotTracked {
        /// The process.
        pid: u32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The memory file has bytes that the process does not map.
    #[error("process {pid} does not map byte {offset} of its memory file")]
    Beyond {
        /// The process.
        pid: u32,
        /// The first of them.
        offset: u64,
    },
    /// The kernel refused to write.
    #[error("the memory of process {pid} cannot be written")]
    Write {
        /// The process.
        pid: u32,
        /// What the kernel said.
        #[source]
        source: io::Error,
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
            contents: open_contents(pid)?,
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
        let mut ranges = Vec::new();
        for mapping in self.mappings()? {
            pagemap::private_ranges(&self.pagemap, &mapping, &mut ranges)
                .map_err(|source| self.not_listed(source))?;
        }
        Ok(ranges)
    }

    /// The pages that are the VM's own and were written since the last call, by address;
    /// at the first call all that are its own. Stop the VM first.
    ///
    /// # Errors
    /// [`MemoryError::NotTracked`] where the kernel does not know. After any other error
    /// some pages may have lost their mark: ask for all [`GuestMemory::private_ranges`].
    pub fn take_written(&self) -> Result<Vec<PageRange>, MemoryError> {
        let mut ranges = Vec::new();
        for mapping in self.mappings()? {
            pagemap::take_written(&self.pagemap, &mapping, &mut ranges)
                .map_err(|source| self.not_taken(source))?;
        }
        Ok(ranges)
    }

    /// How many bytes [`GuestMemory::take_written`] would find now, of a VM that may run on.
    ///
    /// # Errors
    /// [`MemoryError::NotTracked`] where the kernel does not know.
    pub fn written_bytes(&self) -> Result<u64, MemoryError> {
        let mut ranges = Vec::new();
        for mapping in self.mappings()? {
            pagemap::written(&self.pagemap, &mapping, &mut ranges)
                .map_err(|source| self.not_taken(source))?;
        }
        Ok(ranges.iter().map(|range| range.bytes).sum())
    }

    /// Whether [`GuestMemory::take_written`] works for this VM; changes nothing.
    ///
    /// # Errors
    /// [`MemoryError::NotTracked`] where it does not, others where that cannot be found out.
    pub fn check_tracked(&self) -> Result<(), MemoryError> {
        self.mappings()?.iter().try_for_each(|mapping| {
            pagemap::check_tracked(&self.pagemap, mapping).map_err(|source| self.not_taken(source))
        })
    }

    /// Where the VM has these parts of its memory file, in their order. A part that is
    /// mapped in pieces becomes several ranges.
    ///
    /// # Errors
    /// When any byte of them is not mapped.
    pub fn ranges_at(&self, parts: &[FileRange]) -> Result<Vec<PageRange>, MemoryError> {
        let mappings = self.mappings()?;
        let mut ranges = Vec::new();
        for part in parts {
            maps::locate(&mappings, *part, &mut ranges).map_err(|offset| MemoryError::Beyond {
                pid: self.pid,
                offset,
            })?;
        }
        Ok(ranges)
    }

    fn mappings(&self) -> Result<Vec<maps::Mapping>, MemoryError> {
        let mappings = maps::mappings_of(&self.maps, &self.memory_file)
            .map_err(|source| self.not_listed(source))?;
        if mappings.is_empty() {
            return Err(MemoryError::NotMapped(self.pid));
        }
        Ok(mappings)
    }

    fn not_listed(&self, source: io::Error) -> MemoryError {
        let pid = self.pid;
        MemoryError::List { pid, source }
    }

    fn not_taken(&self, source: io::Error) -> MemoryError {
        let pid = self.pid;
        match source.raw_os_error() {
            Some(libc::EPERM | libc::ENOTTY | libc::EINVAL) => {
                MemoryError::NotTracked { pid, source }
            }
            _ => MemoryError::List { pid, source },
        }
    }

    /// Reads all of `ranges`, one after the other, into `buffer`, whose length is their sum.
    ///
    /// # Errors
    /// When any byte cannot be read: a snapshot with missing pages is none.
    pub fn read(&self, ranges: &[PageRange], buffer: &mut [u8]) -> Result<(), MemoryError> {
        let mut rest = buffer;
        for batch in ranges.chunks(RANGES_PER_CALL) {
            let wanted = total(batch);
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

    /// Writes `bytes` into all of `ranges`, one after the other. Stop the VM first: it
    /// would see some of the pages before others.
    ///
    /// # Errors
    /// When any byte cannot be written; others may have been.
    pub fn write(&self, ranges: &[PageRange], bytes: &[u8]) -> Result<(), MemoryError> {
        let mut rest = bytes;
        for batch in ranges.chunks(RANGES_PER_CALL) {
            let wanted = total(batch);
            let Some((part, after)) = rest.split_at_checked(wanted) else {
                return Err(MemoryError::TooFew {
                    pid: self.pid,
                    given: rest.len(),
                    wanted,
                });
            };
            self.write_batch(batch, part)?;
            rest = after;
        }
        Ok(())
    }

    fn write_batch(&self, ranges: &[PageRange], bytes: &[u8]) -> Result<(), MemoryError> {
        match write_vectors(self.pid, ranges, bytes) {
            Ok(written) if written == bytes.len() => Ok(()),
            // As for reading.
            Ok(_) | Err(Errno::PERM) => self.write_through_descriptor(ranges, bytes),
            Err(error) => Err(MemoryError::Write {
                pid: self.pid,
                source: error.into(),
            }),
        }
    }

    fn write_through_descriptor(
        &self,
        ranges: &[PageRange],
        bytes: &[u8],
    ) -> Result<(), MemoryError> {
        let mut rest = bytes;
        for range in ranges {
            let (part, after) = rest.split_at(range.bytes as usize);
            self.contents
                .write_all_at(part, range.address)
                .map_err(|source| MemoryError::Write {
                    pid: self.pid,
                    source,
                })?;
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

/// For writing, too, where that is allowed: below a shim's landlock it is not.
fn open_contents(pid: u32) -> Result<File, MemoryError> {
    let path = format!("/proc/{pid}/mem");
    File::options()
        .read(true)
        .write(true)
        .open(&path)
        .or_else(|_| File::open(&path))
        .map_err(|source| MemoryError::Open {
            pid,
            name: "mem",
            source,
        })
}

fn total(ranges: &[PageRange]) -> usize {
    ranges.iter().map(|range| range.bytes as usize).sum()
}

fn vectors(ranges: &[PageRange]) -> Vec<libc::iovec> {
    let vector = |range: &PageRange| libc::iovec {
        iov_base: range.address as *mut libc::c_void,
        iov_len: range.bytes as usize,
    };
    ranges.iter().map(vector).collect()
}

/// One `process_vm_readv`; returns how many bytes it moved.
fn read_vectors(pid: u32, ranges: &[PageRange], target: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    };
    let remote = vectors(ranges);
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
    moved(read)
}

/// One `process_vm_writev`; returns how many bytes it moved.
fn write_vectors(pid: u32, ranges: &[PageRange], bytes: &[u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = vectors(ranges);
    // SAFETY: `local` covers exactly `bytes`, which the kernel only reads. What it writes
    // is memory of the other process, at addresses that it looks up there; that a caller
    // could name this process is no more than what `/proc/self/mem` allows.
    let written = unsafe {
        libc::process_vm_writev(
            pid as libc::pid_t,
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    moved(written)
}

fn moved(result: libc::ssize_t) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests;

//! Taking what changed out of a running VM's memory.
//!
//! A snapshot keeps the pages that differ from the one before it. Only finding and copying
//! them happens while the VM is stopped:
//!
//! ```text
//!   before the pause   Arena::faulted_in
//!   in the pause       capture   changed pages -> arena (what does not fit -> spill)
//!   after the pause    emit      arena -> whoever keeps them
//!   once they are kept confirm   the next capture has what changed since this one
//! ```
//!
//! A capture that fails, or that nobody confirms, loses nothing: its pages are in the next
//! one again. What changed is known in one of two ways:
//!
//! | method | how | needs |
//! |---|---|---|
//! | `written` | the kernel marks each page that is written | Linux 6.7 and `crates/preload` in the VMM |
//! | `compare` | every page that is the VM's own is copied, and hashed after the pause | nothing; the pause grows with all that the VM ever wrote |

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;

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

/// Bytes of a page's hash that are kept. A guest that finds two pages with the same 128 bits
/// spoils its own snapshots, and nobody else's.
const HASH_BYTES: usize = 16;

/// Where a run of pages goes: its offset in the memory file, and its contents.
pub type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

/// Why a capture failed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The VM's pages could not be listed or read.
    #[error("the pages of the VM cannot be captured")]
    Pages(#[from] MemoryError),
    /// Whoever was to keep the pages could not.
    #[error("the captured pages cannot be kept")]
    Keep(#[source] io::Error),
}

/// Knows what changed in one VM's memory since the last snapshot that is known to be kept.
/// All its methods block.
#[derive(Debug)]
pub struct ChangeTracker {
    memory: Arc<GuestMemory>,
    method: Method,
    /// How many captures were begun: the number of the last.
    begun: u64,
    /// The last capture succeeded and was emitted to its end.
    emitted: bool,
}

impl ChangeTracker {
    /// Tracks a VM by its kernel's marks, where that works for this VM.
    pub fn new(memory: Arc<GuestMemory>) -> Self {
        let method = match memory.check_tracked() {
            Ok(()) => Method::Written(Written::default()),
            Err(_) => Method::Compare(Compare::default()),
        };
        Self::with(memory, method)
    }

    /// Tracks a VM by comparison, whatever its kernel can do.
    pub fn comparing(memory: Arc<GuestMemory>) -> Self {
        Self::with(memory, Method::Compare(Compare::default()))
    }

    fn with(memory: Arc<GuestMemory>, method: Method) -> Self {
        Self {
            memory,
            method,
            begun: 0,
            emitted: false,
        }
    }

    /// How changes are found: `written` or `compare`.
    pub fn method(&self) -> &'static str {
        match self.method {
            Method::Written(_) => "written",
            Method::Compare(_) => "compare",
        }
    }

    /// Copies what changed since the last confirmed capture; before any was confirmed, all
    /// pages that are the VM's own. In the pause: the VM must be stopped.
    ///
    /// What does not fit the arena goes to `spill` at once, in pieces of at most 4 MiB.
    ///
    /// # Errors
    /// When any page cannot be read, or `spill` fails; the next capture has all pages of this one.
    pub fn capture(
        &mut self,
        arena: &mut Arena,
        spill: Sink<'_>,
    ) -> Result<Captured, CaptureError> {
        self.begun += 1;
        self.emitted = false;
        let found = self.method.find(&self.memory)?;
        let pages = total(&found) / PAGE_BYTES;
        let (ranges, rest) = split_at_bytes(found, arena.bytes.len() as u64);
        let bytes = total(&ranges) as usize;
        copy_in_parallel(&self.memory, &ranges, &mut arena.bytes[..bytes])?;
        Ok(Captured {
            number: self.begun,
            ranges,
            pages,
            spilled_bytes: self.spill(rest, spill)?,
        })
    }

    /// Bytes that a capture would copy now, of a VM that runs on and writes more.
    ///
    /// # Errors
    /// When the pages cannot be listed.
    pub fn estimate(&self) -> Result<u64, CaptureError> {
        Ok(match &self.method {
            Method::Written(written) => self.memory.written_bytes()? + total(&written.unconfirmed),
            Method::Compare(_) => total(&self.memory.private_ranges()?),
        })
    }

    /// What is the VM's own now is as good as kept: the next capture has what changes from
    /// now on. For a VM over whose memory a snapshot's pages were written.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub fn rebase(&mut self) -> Result<(), CaptureError> {
        let found = self.method.find(&self.memory)?;
        if let Method::Compare(_) = self.method {
            self.spill(found, &mut |_, _| Ok(()))?;
        }
        self.method.confirm();
        Ok(())
    }

    fn spill(&mut self, mut rest: Vec<PageRange>, spill: Sink<'_>) -> Result<u64, CaptureError> {
        let mut buffer = Vec::new();
        let mut spilled_bytes = 0;
        let mut counted = |offset: u64, bytes: &[u8]| {
            spilled_bytes += bytes.len() as u64;
            spill(offset, bytes)
        };
        while !rest.is_empty() {
            let (now, later) = split_at_bytes(rest, SPILL_BYTES);
            buffer.resize(total(&now) as usize, 0);
            self.memory.read(&now, &mut buffer)?;
            self.method.pass(&now, &buffer, &mut counted)?;
            rest = later;
        }
        Ok(spilled_bytes)
    }

    /// Calls `emit` for each run of pages in the arena that is to be kept: with `compare`
    /// those that are as they were at the last confirmed capture are left out. After the pause.
    ///
    /// # Errors
    /// When `emit` fails. It may be tried again from the beginning.
    pub fn emit(
        &mut self,
        captured: &Captured,
        arena: &Arena,
        emit: Sink<'_>,
    ) -> Result<(), CaptureError> {
        self.method.pass(&captured.ranges, &arena.bytes, emit)?;
        self.emitted = captured.number == self.begun;
        Ok(())
    }

    /// The last capture is kept for good: the next one has what changed since it.
    ///
    /// Does nothing unless that capture succeeded and was emitted to its end; the next one
    /// then has too much rather than too little.
    pub fn confirm(&mut self) {
        if std::mem::take(&mut self.emitted) {
            self.method.confirm();
        }
    }
}

/// Memory for a capture, whose pages exist, so that the pause pays for no page faults.
pub struct Arena {
    bytes: Vec<u8>,
}

impl Arena {
    /// An arena of this size, mostly [`ARENA_BYTES`]. Before the pause: 64 MiB take 20 ms.
    pub fn faulted_in(bytes: usize) -> Self {
        let mut bytes = vec![0; bytes];
        // Zeroed allocations are mapped but not yet there; any write makes a page real.
        for page in bytes.chunks_mut(PAGE_BYTES as usize) {
            page[0] = std::hint::black_box(1);
        }
        Self { bytes }
    }
}

/// What a capture copied.
#[derive(Clone, Debug)]
pub struct Captured {
    number: u64,
    /// What the arena holds, in order.
    ranges: Vec<PageRange>,
    /// Pages that were copied, spilled ones included. With `compare` some of them have not
    /// changed.
    pub pages: u64,
    /// Bytes that did not fit the arena and went to `spill` in the pause.
    pub spilled_bytes: u64,
}

/// How changes are found.
#[derive(Debug)]
enum Method {
    Written(Written),
    Compare(Compare),
}

impl Method {
    /// The pages to copy.
    fn find(&mut self, memory: &GuestMemory) -> Result<Vec<PageRange>, MemoryError> {
        match self {
            Self::Written(written) => written.find(memory),
            Self::Compare(compare) => {
                compare.pending.clear();
                memory.private_ranges()
            }
        }
    }

    /// Passes on those of the pages that are to be kept; `bytes` begins with their contents.
    fn pass(
        &mut self,
        ranges: &[PageRange],
        bytes: &[u8],
        sink: Sink<'_>,
    ) -> Result<(), CaptureError> {
        let mut rest = bytes;
        for range in ranges {
            let (pages, after) = rest.split_at(range.bytes as usize);
            match self {
                Self::Written(_) => sink(range.file_offset, pages),
                Self::Compare(compare) => compare.pass(range.file_offset, pages, sink),
            }
            .map_err(CaptureError::Keep)?;
            rest = after;
        }
        Ok(())
    }

    fn confirm(&mut self) {
        match self {
            Self::Written(written) => written.unconfirmed.clear(),
            Self::Compare(compare) => compare.kept = std::mem::take(&mut compare.pending),
        }
    }
}

/// Looking takes the kernel's marks away: what they said is remembered here until it is kept.
#[derive(Debug, Default)]
struct Written {
    /// The pages of all captures since the last confirmed one.
    unconfirmed: Vec<PageRange>,
    /// A look failed half-way: marks may be gone that nobody saw.
    marks_lost: bool,
}

impl Written {
    fn find(&mut self, memory: &GuestMemory) -> Result<Vec<PageRange>, MemoryError> {
        let taken = memory.take_written();
        self.marks_lost |= taken.is_err();
        let mut written = taken?;
        if self.marks_lost {
            written = memory.private_ranges()?;
        }
        self.unconfirmed = union(std::mem::take(&mut self.unconfirmed), written);
        self.marks_lost = false;
        Ok(self.unconfirmed.clone())
    }
}

/// A hash of each page by its offset in the memory file.
type Hashes = HashMap<u64, [u8; HASH_BYTES]>;

#[derive(Debug, Default)]
struct Compare {
    /// As of the last confirmed capture.
    kept: Hashes,
    /// As of the last capture, which is not confirmed.
    pending: Hashes,
}

impl Compare {
    /// Passes on the runs of changed pages.
    fn pass(&mut self, offset: u64, bytes: &[u8], sink: Sink<'_>) -> io::Result<()> {
        let mut begin = 0;
        for (index, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let at = index * PAGE_BYTES as usize;
            if self.note(offset + at as u64, page) {
                continue;
            }
            if begin < at {
                sink(offset + begin as u64, &bytes[begin..at])?;
            }
            begin = at + page.len();
        }
        if begin < bytes.len() {
            sink(offset + begin as u64, &bytes[begin..])?;
        }
        Ok(())
    }

    /// Remembers a page; whether it has changed.
    fn note(&mut self, offset: u64, page: &[u8]) -> bool {
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(&blake3::hash(page).as_bytes()[..HASH_BYTES]);
        self.pending.insert(offset, hash);
        self.kept.get(&offset) != Some(&hash)
    }
}

fn total(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.bytes).sum()
}

/// The pages that are in either, by address, each once.
fn union(mut ranges: Vec<PageRange>, more: Vec<PageRange>) -> Vec<PageRange> {
    if ranges.is_empty() {
        return more;
    }
    ranges.extend(more);
    ranges.sort_unstable_by_key(|range| range.address);
    let mut merged: Vec<PageRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if continues(last, &range) => {
                let end = (last.address + last.bytes).max(range.address + range.bytes);
                last.bytes = end - last.address;
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Whether `next`, which does not begin before `last`, overlaps it or goes on after it, in
/// the file as in the process.
fn continues(last: &PageRange, next: &PageRange) -> bool {
    let distance = next.address - last.address;
    distance <= last.bytes && next.file_offset == last.file_offset + distance
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
    fn a_union_has_each_page_once() {
        let (one, other) = (
            vec![range(3, 4), range(20, 1)],
            vec![
                range(0, 2),
                range(5, 4),
                range(9, 1),
                range(20, 1),
                range(30, 2),
            ],
        );
        let both = [range(0, 2), range(3, 7), range(20, 1), range(30, 2)];
        assert_eq!(union(one.clone(), other.clone()), both);
        assert_eq!(union(other, one.clone()), both);
        assert_eq!(union(one.clone(), vec![]), one);
        assert_eq!(union(vec![], one.clone()), one);
    }

    #[test]
    fn neighbours_in_the_process_alone_stay_apart() {
        let elsewhere = PageRange {
            file_offset: 100 * PAGE_BYTES,
            ..range(1, 1)
        };
        let both = vec![range(0, 1), elsewhere];
        assert_eq!(union(vec![range(0, 1)], vec![elsewhere]), both);
    }

    #[test]
    fn comparison_passes_on_runs_of_what_changed_since_it_was_confirmed() {
        let mut compare = Compare::default();
        let mut method = |bytes: &[u8], confirm: bool| {
            let mut runs = Vec::new();
            let mut sink = |offset: u64, bytes: &[u8]| {
                runs.push((offset / PAGE_BYTES, bytes.len() as u64 / PAGE_BYTES));
                Ok(())
            };
            compare.pass(PAGE_BYTES, bytes, &mut sink).unwrap();
            if confirm {
                compare.kept = std::mem::take(&mut compare.pending);
            }
            runs
        };
        let mut bytes = vec![0; 8 * PAGE_BYTES as usize];
        assert_eq!(method(&bytes, true), [(1, 8)]);
        assert_eq!(method(&bytes, true), []);
        for page in [0, 3, 4, 7] {
            bytes[page * PAGE_BYTES as usize + page] = 1;
        }
        for confirm in [false, true] {
            assert_eq!(method(&bytes, confirm), [(1, 1), (4, 2), (8, 1)]);
        }
        assert_eq!(method(&bytes, false), []);
    }
}

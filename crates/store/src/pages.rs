//! A layer of pages: what changed in a guest's memory since the snapshot before.
//!
//! ```text
//! 0       "PANDO-PAGES 1\n\0\0"  memory bytes u64  runs u64  index offset u64  index bytes u64
//! 4096    data: the pages of all runs that are not zeros, in the order of the index
//! …       index: per run two varints
//!           gap    zigzag: first page, less the page after the run before
//!           count  pages << 1 | 1 if they are all zeros and have no data
//! ```
//! Numbers are little endian. Data begins at a block and pages are whole blocks, so a file
//! system with reflinks can share them. The index stands at the end: what does not fit in
//! memory while a VM stands still is written before the number of runs is known.

use pando_sys::file::is_zero;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes of a guest's page.
pub const PAGE_BYTES: u64 = 4096;

const MAGIC: &[u8; 16] = b"PANDO-PAGES 1\n\0\0";
const HEADER_BYTES: usize = 48;
const DATA_OFFSET: u64 = PAGE_BYTES;

/// Most bytes of a run's two numbers.
const RUN_BYTES_MAX: u64 = 20;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Why a layer of pages cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// It cannot be read.
    #[error("cannot read the layer of pages")]
    Io(#[from] io::Error),
    /// It is another file.
    #[error("not a layer of pages")]
    Foreign,
    /// It contradicts itself.
    #[error("the layer of pages is malformed: {0}")]
    Malformed(&'static str),
}

/// Neighbouring pages of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where they belong in the memory, in bytes.
    pub offset: u64,
    /// How many bytes, a multiple of [`PAGE_BYTES`].
    pub bytes: u64,
    /// Where they are in the layer; `None` when they are all zeros.
    pub data: Option<u64>,
}

/// Writes a layer of pages.
#[derive(Debug)]
pub struct PagesWriter {
    file: File,
    memory_bytes: u64,
    buffer: Vec<u8>,
    /// Where the buffer goes.
    at: u64,
    index: Vec<u8>,
    runs: u64,
    /// The last run, which may grow: first page, pages, zeros.
    open: Option<(u64, u64, bool)>,
    /// The page after the last run in the index.
    after: u64,
    pages: u64,
}

impl PagesWriter {
    /// Begins a layer in an empty file.
    pub fn new(file: File, memory_bytes: u64) -> Self {
        Self {
            file,
            memory_bytes,
            buffer: Vec::new(),
            at: DATA_OFFSET,
            index: Vec::new(),
            runs: 0,
            open: None,
            after: 0,
            pages: 0,
        }
    }

    /// Adds whole pages that belong at `offset`.
    ///
    /// # Errors
    /// The file cannot be written, or the pages are not the memory's.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let whole = offset.is_multiple_of(PAGE_BYTES)
            && (bytes.len() as u64).is_multiple_of(PAGE_BYTES)
            && end.is_some_and(|end| end <= self.memory_bytes);
        if !whole {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let first = offset / PAGE_BYTES;
        for (page, content) in (first..).zip(bytes.chunks(PAGE_BYTES as usize)) {
            let zeros = is_zero(content);
            self.note(page, zeros);
            if !zeros {
                self.buffer.extend_from_slice(content);
                if self.buffer.len() >= BUFFER_BYTES {
                    self.flush()?;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, page: u64, zeros: bool) {
        self.pages += 1;
        match &mut self.open {
            Some((first, count, kind)) if *first + *count == page && *kind == zeros => *count += 1,
            _ => {
                self.close_run();
                self.open = Some((page, 1, zeros));
            }
        }
    }

    fn close_run(&mut self) {
        if let Some((first, count, zeros)) = self.open.take() {
            let gap = first.wrapping_sub(self.after).cast_signed();
            put_varint(&mut self.index, ((gap << 1) ^ (gap >> 63)).cast_unsigned());
            put_varint(&mut self.index, count << 1 | u64::from(zeros));
            self.after = first + count;
            self.runs += 1;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.at)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the layer; returns how many pages it holds. Not yet durable.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> io::Result<u64> {
        self.close_run();
        self.flush()?;
        self.file.write_all_at(&self.index, self.at)?;
        // A layer without pages ends where its data would begin.
        self.file.set_len(self.at + self.index.len() as u64)?;
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(MAGIC);
        for number in [
            self.memory_bytes,
            self.runs,
            self.at,
            self.index.len() as u64,
        ] {
            header.extend_from_slice(&number.to_le_bytes());
        }
        self.file.write_all_at(&header, 0)?;
        Ok(self.pages)
    }
}

/// A layer of pages, its index read and checked.
#[derive(Debug)]
pub struct Pages {
    file: File,
    /// In the order of their data.
    runs: Vec<Run>,
}

impl Pages {
    /// Reads the index. Nothing of the file is believed that was not checked: every run is
    /// inside the memory and inside the file.
    ///
    /// # Errors
    /// See [`PagesError`].
    pub fn open(file: File, memory_bytes: u64) -> Result<Self, PagesError> {
        let length = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0)
            .map_err(|_| PagesError::Foreign)?;
        if header[..MAGIC.len()] != *MAGIC {
            return Err(PagesError::Foreign);
        }
        let number = |index: usize| {
            let at = MAGIC.len() + index * 8;
            u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default())
        };
        let [memory, count, index_offset, index_bytes] = [0, 1, 2, 3].map(number);
        if memory != memory_bytes {
            return Err(PagesError::Malformed("it is of a memory of another size"));
        }
        let fits = index_offset >= DATA_OFFSET
            && index_offset.checked_add(index_bytes) == Some(length)
            && count <= memory_bytes / PAGE_BYTES
            && index_bytes <= count.saturating_mul(RUN_BYTES_MAX);
        if !fits {
            return Err(PagesError::Malformed("its parts do not fit"));
        }
        let mut index = vec![0; usize::try_from(index_bytes).unwrap_or(0)];
        file.read_exact_at(&mut index, index_offset)?;
        let runs = parse(&index, count, memory_bytes)?;
        let data: u64 = runs
            .iter()
            .filter(|run| run.data.is_some())
            .map(|run| run.bytes)
            .sum();
        if DATA_OFFSET + data != index_offset {
            return Err(PagesError::Malformed("its data has another length"));
        }
        Ok(Self { file, runs })
    }

    /// Its runs, in the order of their data. Later layers win over earlier ones; within one
    /// no page is twice.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    fn by_place(&self) -> Vec<Run> {
        let mut runs = self.runs.clone();
        runs.sort_unstable_by_key(|run| run.offset);
        runs
    }

    /// Reads a run's pages.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, run: &Run, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        buffer.resize(usize::try_from(run.bytes).unwrap_or(0), 0);
        match run.data {
            Some(at) => self.file.read_exact_at(buffer, at),
            None => Ok(()),
        }
    }

    /// Lays the pages over a memory file, sharing their blocks where the file system can.
    /// Returns the bytes that were copied.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn lay_over(&self, memory: &File) -> io::Result<u64> {
        let (mut copied, mut shares) = (0, true);
        let mut buffer = Vec::new();
        for run in &self.runs {
            let Some(at) = run.data else {
                pando_sys::file::punch(memory, run.offset, run.bytes)?;
                continue;
            };
            shares = shares
                && pando_sys::file::share_range(&self.file, at, memory, run.offset, run.bytes)?;
            if !shares {
                self.read(run, &mut buffer)?;
                memory.write_all_at(&buffer, run.offset)?;
                copied += run.bytes;
            }
        }
        Ok(copied)
    }
}

/// Most bytes of a piece of [`Topmost`].
const PIECE_BYTES: u64 = 1 << 20;

/// Makes one layer of several, the oldest first: laid over anything it gives what they give
/// one after another, zeros included, since they hide what lies below. Returns how many pages
/// it holds.
///
/// # Errors
/// A layer cannot be read, or the target not be written.
pub fn merge(layers: &[Pages], memory_bytes: u64, target: File) -> Result<u64, PagesError> {
    let mut writer = PagesWriter::new(target, memory_bytes);
    let mut buffer = Vec::new();
    for (layer, piece) in Topmost::of(layers, memory_bytes)? {
        layer.read(&piece, &mut buffer)?;
        writer.add(piece.offset, &buffer)?;
    }
    Ok(writer.finish()?)
}

/// What several layers give that are laid over one another, the oldest first: each page once,
/// of the topmost layer that has it, in the order of the memory and in pieces of at most
/// 1 MiB. Takes memory for the indexes and two bytes for each page of the guest.
#[derive(Debug)]
pub struct Topmost<'l> {
    layers: &'l [Pages],
    /// Their runs, in the order of the memory.
    runs: Vec<Vec<Run>>,
    /// For each page the number of the topmost layer that has it, from 1; else 0.
    topmost: Vec<u16>,
    /// The next page to look at.
    page: usize,
}

impl<'l> Topmost<'l> {
    /// Of these layers of one memory.
    ///
    /// # Errors
    /// A layer is of another memory, or there are more than 65,535.
    pub fn of(layers: &'l [Pages], memory_bytes: u64) -> Result<Self, PagesError> {
        let pages = usize::try_from(memory_bytes / PAGE_BYTES).unwrap_or(0);
        let mut topmost = vec![0; pages];
        for (number, layer) in (1usize..).zip(layers) {
            let number = u16::try_from(number);
            let number = number.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            for run in &layer.runs {
                let first = (run.offset / PAGE_BYTES) as usize;
                let after = first + (run.bytes / PAGE_BYTES) as usize;
                let places = topmost.get_mut(first..after);
                let other = PagesError::Malformed("it is of a memory of another size");
                places.ok_or(other)?.fill(number);
            }
        }
        Ok(Self {
            layers,
            runs: layers.iter().map(Pages::by_place).collect(),
            topmost,
            page: 0,
        })
    }
}

impl<'l> Iterator for Topmost<'l> {
    type Item = (&'l Pages, Run);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.topmost.get(self.page..)?;
        let (skipped, number) = rest.iter().enumerate().find(|(_, number)| **number > 0)?;
        let layer = usize::from(*number) - 1;
        self.page += skipped;
        let run = rest_of_run(&self.runs[layer], self.page as u64 * PAGE_BYTES);
        let longest = (run.bytes.min(PIECE_BYTES) / PAGE_BYTES) as usize;
        let same = rest[skipped..].iter().take(longest);
        let pages = same.take_while(|other| *other == number).count();
        self.page += pages;
        let bytes = pages as u64 * PAGE_BYTES;
        Some((&self.layers[layer], Run { bytes, ..run }))
    }
}

/// The run that has the page at `offset`, which one of them has, from there on.
fn rest_of_run(by_place: &[Run], offset: u64) -> Run {
    let after = by_place.partition_point(|run| run.offset <= offset);
    let run = by_place[after - 1];
    let skipped = offset - run.offset;
    Run {
        offset,
        bytes: run.bytes - skipped,
        data: run.data.map(|data| data + skipped),
    }
}

fn parse(index: &[u8], count: u64, memory_bytes: u64) -> Result<Vec<Run>, PagesError> {
    let malformed = || PagesError::Malformed("its index cannot be read");
    let memory_pages = memory_bytes / PAGE_BYTES;
    let mut runs = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    let (mut rest, mut after, mut data) = (index, 0u64, DATA_OFFSET);
    for _ in 0..count {
        let gap = take_varint(&mut rest).ok_or_else(malformed)?;
        let number = take_varint(&mut rest).ok_or_else(malformed)?;
        let gap = (gap >> 1).cast_signed() ^ -(gap & 1).cast_signed();
        let first = after.checked_add_signed(gap).ok_or_else(malformed)?;
        let (pages, zeros) = (number >> 1, number & 1 == 1);
        let end = first.checked_add(pages).filter(|end| *end <= memory_pages);
        after = end.ok_or(PagesError::Malformed("a page is beyond the memory"))?;
        let bytes = pages * PAGE_BYTES;
        runs.push(Run {
            offset: first * PAGE_BYTES,
            bytes,
            data: (!zeros).then_some(data),
        });
        if !zeros {
            data += bytes;
        }
    }
    if !rest.is_empty() {
        return Err(malformed());
    }
    let mut by_place: Vec<&Run> = runs.iter().collect();
    by_place.sort_unstable_by_key(|run| run.offset);
    let overlap = |pair: &[&Run]| pair[0].offset + pair[0].bytes > pair[1].offset;
    if by_place.windows(2).any(overlap) {
        return Err(PagesError::Malformed("a page is there twice"));
    }
    Ok(runs)
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMORY_BYTES: u64 = 64 * PAGE_BYTES;

    fn page(byte: u8) -> Vec<u8> {
        vec![byte; PAGE_BYTES as usize]
    }

    fn layer(pages: &[(u64, u8)]) -> File {
        let file = tempfile::tempfile().unwrap();
        let mut writer = PagesWriter::new(file.try_clone().unwrap(), MEMORY_BYTES);
        for (number, byte) in pages {
            writer.add(number * PAGE_BYTES, &page(*byte)).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), pages.len() as u64);
        file
    }

    fn laid_over(layer: File, memory: &mut [u8]) {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(memory, 0).unwrap();
        let pages = Pages::open(layer, MEMORY_BYTES).unwrap();
        pages.lay_over(&file).unwrap();
        file.read_exact_at(memory, 0).unwrap();
    }

    proptest! {
        #[test]
        fn what_was_added_is_what_lies_over(
            pages in proptest::collection::btree_map(0u64..64, 0u8..3, 0..64),
            turned in 0usize..64,
        ) {
            let mut order: Vec<(u64, u8)> = pages.into_iter().collect();
            // Captured in any order: what did not fit comes first.
            if !order.is_empty() {
                let turn = turned % order.len();
                order.rotate_left(turn);
            }
            let mut expected = vec![9; MEMORY_BYTES as usize];
            let mut memory = expected.clone();
            for (number, byte) in &order {
                let at = (number * PAGE_BYTES) as usize;
                expected[at..at + PAGE_BYTES as usize].fill(*byte);
            }
            laid_over(layer(&order), &mut memory);
            prop_assert!(memory == expected);
        }

        #[test]
        fn merged_layers_lie_over_as_one_after_another(
            layers in proptest::collection::vec(
                (proptest::collection::btree_map(0u64..64, 0u8..3, 0..40), 0usize..40), 1..6,
            ),
        ) {
            let files: Vec<File> = layers.into_iter().map(|(pages, turned)| {
                let mut order: Vec<(u64, u8)> = pages.into_iter().collect();
                let turn = turned % order.len().max(1);
                order.rotate_left(turn);
                layer(&order)
            }).collect();
            // Nothing is 9 in a layer: what no layer has shows through both.
            let mut expected = vec![9; MEMORY_BYTES as usize];
            let mut memory = expected.clone();
            let opened: Vec<Pages> = files
                .iter()
                .map(|file| Pages::open(file.try_clone().unwrap(), MEMORY_BYTES).unwrap())
                .collect();
            for file in files {
                laid_over(file, &mut expected);
            }
            let merged = tempfile::tempfile().unwrap();
            let pages = merge(&opened, MEMORY_BYTES, merged.try_clone().unwrap()).unwrap();
            let changed = expected.chunks(PAGE_BYTES as usize).filter(|page| page[0] != 9);
            prop_assert_eq!(pages, changed.count() as u64);
            laid_over(merged, &mut memory);
            prop_assert!(memory == expected);
        }

        #[test]
        fn a_changed_byte_of_header_or_index_never_panics(
            at in 0u64..64, flip in 1u8.., in_index: bool,
        ) {
            let file = layer(&[(1, 1), (2, 0), (9, 2), (60, 1)]);
            let length = file.metadata().unwrap().len();
            let at = if in_index { length - 1 - at % 8 } else { at };
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ flip], at).unwrap();
            if let Ok(pages) = Pages::open(file, MEMORY_BYTES) {
                for run in pages.runs() {
                    prop_assert!(run.offset + run.bytes <= MEMORY_BYTES);
                    pages.read(run, &mut Vec::new()).unwrap();
                }
            }
        }
    }

    #[test]
    fn zeros_take_no_space_and_a_layer_is_its_pages_and_little_more() {
        let file = layer(&[(3, 0), (4, 0), (5, 1), (6, 1), (40, 1)]);
        let length = file.metadata().unwrap().len();
        assert!(length < 4 * PAGE_BYTES + 64, "{length}");
        let pages = Pages::open(file, MEMORY_BYTES).unwrap();
        assert_eq!(pages.runs().len(), 3);
        assert_eq!(pages.runs()[0].data, None);
    }

    #[test]
    fn a_page_that_is_there_twice_or_beyond_the_memory_is_refused() {
        let twice = layer(&[(3, 1), (4, 1), (3, 1)]);
        assert!(matches!(
            Pages::open(twice, MEMORY_BYTES),
            Err(PagesError::Malformed(_))
        ));
        let file = tempfile::tempfile().unwrap();
        let mut writer = PagesWriter::new(file, MEMORY_BYTES);
        writer.add(MEMORY_BYTES, &page(1)).unwrap_err();
        writer.add(5, &page(1)).unwrap_err();
        let other = layer(&[(3, 1)]);
        assert!(Pages::open(other, 2 * MEMORY_BYTES).is_err());
        assert!(matches!(
            Pages::open(tempfile::tempfile().unwrap(), MEMORY_BYTES),
            Err(PagesError::Foreign)
        ));
    }
}

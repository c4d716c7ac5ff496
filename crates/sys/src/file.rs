//! Whole files: shared copies, sparse copies, holes, durable names.

mod extents;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Bytes looked at in one piece when holes are made: the block size below
/// which no common file system frees anything.
const HOLE_BYTES: usize = 4096;

/// Bytes read at once when holes are made.
const SCAN_BYTES: usize = 1 << 20;

/// Largest piece of one `copy_file_range`, so that a long copy can be interrupted.
const COPY_BYTES: u64 = 64 << 20;

/// Opens a file that a jailed process may have put there, for reading: links are not
/// followed, and pipes and devices are neither waited for nor read.
///
/// # Errors
/// It is not there, or not a plain file.
pub fn open_untrusted(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::RDONLY
        | rustix::fs::OFlags::NOFOLLOW
        | rustix::fs::OFlags::NONBLOCK
        | rustix::fs::OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a plain file",
        ))
    }
}

/// How a file was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The copy shares all blocks with the source until either is written.
    Shared,
    /// This many bytes of data were copied; holes stayed holes.
    Data(u64),
}

/// Makes `target`, an empty file, equal to `source`: by sharing its blocks where
/// the file system can, else by copying its data and keeping its holes.
///
/// # Errors
/// When a file cannot be read or written; `target` may then hold anything.
pub fn share_or_copy(source: &File, target: &File) -> io::Result<Copied> {
    match rustix::fs::ioctl_ficlone(target, source) {
        Ok(()) => Ok(Copied::Shared),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
            copy_sparse(source, target).map(Copied::Data)
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes a stretch of `target` share the blocks of one of `source`; false where the file
/// system cannot. All three numbers must be multiples of its block size.
///
/// # Errors
/// When a file cannot be read or written.
pub fn share_range(
    source: &File,
    from: u64,
    target: &File,
    to: u64,
    bytes: u64,
) -> io::Result<bool> {
    match extents::clone_range(source, from, target, to, bytes) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn copy_sparse(source: &File, target: &File) -> io::Result<u64> {
    target.set_len(source.metadata()?.len())?;
    let mut copied = 0;
    for_each_data_extent(source, |start, end| {
        copied += end - start;
        copy_range(source, target, start, end)
    })?;
    Ok(copied)
}

fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let piece = (end - from).min(COPY_BYTES) as usize;
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return copy_by_hand(source, target, from, end);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(source: &File, target: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; SCAN_BYTES];
    while at < end {
        let piece = (end - at).min(SCAN_BYTES as u64) as usize;
        source.read_exact_at(&mut buffer[..piece], at)?;
        target.write_all_at(&buffer[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

/// Calls `visit(start, end)` for each stretch of the file that is not a hole.
///
/// # Errors
/// When the file cannot be examined, or `visit` fails.
pub fn for_each_data_extent(
    file: &File,
    mut visit: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(length);
        if end <= start {
            return Ok(());
        }
        visit(start, end)?;
        at = end;
    }
    Ok(())
}

/// Sets space aside for the first `bytes` of a file, which stays as long as it is.
///
/// # Errors
/// When there is not as much, or the file system cannot.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(
        file,
        FallocateFlags::KEEP_SIZE,
        0,
        bytes,
    )?)
}

/// Turns every block of zeros into a hole; returns the bytes that were freed.
/// What the file reads as does not change. Nobody may write it meanwhile.
///
/// # Errors
/// When the file cannot be read, or the file system cannot make holes.
pub fn punch_zeros(file: &File) -> io::Result<u64> {
    let mut extents = Vec::new();
    for_each_data_extent(file, |start, end| {
        extents.push((start, end));
        Ok(())
    })?;
    let mut buffer = vec![0; SCAN_BYTES];
    let mut freed = 0;
    for (start, end) in extents {
        let mut at = start;
        while at < end {
            let piece = (end - at).min(SCAN_BYTES as u64) as usize;
            file.read_exact_at(&mut buffer[..piece], at)?;
            freed += punch_runs(file, at, &buffer[..piece])?;
            at += piece as u64;
        }
    }
    Ok(freed)
}

/// Punches the runs of zero blocks in `bytes`, which stand at `offset`.
fn punch_runs(file: &File, offset: u64, bytes: &[u8]) -> io::Result<u64> {
    let mut freed = 0;
    for run in block_runs(bytes).filter(|run| run.zero && run.bytes.len() % HOLE_BYTES == 0) {
        punch(file, offset + run.start, run.bytes.len() as u64)?;
        freed += run.bytes.len() as u64;
    }
    Ok(freed)
}

/// Writes `bytes` at `offset`, as holes where whole blocks are zero.
/// `offset` must be a multiple of 4096.
///
/// # Errors
/// When the file cannot be written, or the file system cannot make holes.
pub fn write_sparse(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    for run in block_runs(bytes) {
        let at = offset + run.start;
        if run.zero && run.bytes.len() % HOLE_BYTES == 0 {
            punch(file, at, run.bytes.len() as u64)?;
        } else {
            file.write_all_at(run.bytes, at)?;
        }
    }
    Ok(())
}

/// Makes a stretch of the file a hole, which reads as zeros.
///
/// # Errors
/// When the file cannot be written, or the file system cannot make holes.
pub fn punch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, length)?)
}

/// Neighbouring blocks that are all zero, or none of which is.
struct BlockRun<'a> {
    zero: bool,
    start: u64,
    bytes: &'a [u8],
}

fn block_runs(bytes: &[u8]) -> impl Iterator<Item = BlockRun<'_>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(start..).filter(|rest| !rest.is_empty())?;
        let zero = is_zero(&rest[..rest.len().min(HOLE_BYTES)]);
        let blocks = rest
            .chunks(HOLE_BYTES)
            .take_while(|block| is_zero(block) == zero)
            .count();
        let run = &rest[..rest.len().min(blocks * HOLE_BYTES)];
        let run = BlockRun {
            zero,
            start: start as u64,
            bytes: run,
        };
        start += run.bytes.len();
        Some(run)
    })
}

/// Whether all bytes are zero. Compared in words, which the compiler vectorises.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Bytes that the file takes on disk, holes not counted.
///
/// # Errors
/// When the file cannot be examined.
pub fn allocated_bytes(path: &Path) -> io::Result<u64> {
    const STAT_BLOCK_BYTES: u64 = 512;
    Ok(std::fs::metadata(path)?.blocks() * STAT_BLOCK_BYTES)
}

/// Bytes on disk that are this file's alone: what removing it would free. Blocks that it
/// shares with others, as after [`share_range`], are not counted.
///
/// # Errors
/// When the file cannot be examined.
pub fn unshared_bytes(file: &File) -> io::Result<u64> {
    match extents::unshared_bytes(file) {
        Ok(bytes) => Ok(bytes),
        // A file system that does not list extents shares none.
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => Ok(file.metadata()?.blocks() * 512),
        Err(error) => Err(error.into()),
    }
}

/// Makes two names change places.
///
/// # Errors
/// One is not there, or the file system cannot.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    Ok(rustix::fs::renameat_with(here, one, here, other, flags)?)
}

/// Whether files in this directory can share blocks.
pub fn can_share(directory: &Path) -> bool {
    let make = || {
        rustix::fs::open(
            directory,
            rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
    };
    let (Ok(one), Ok(other)) = (make(), make()) else {
        return false;
    };
    let (one, other) = (File::from(one), File::from(other));
    one.write_all_at(&[1; HOLE_BYTES], 0).is_ok() && rustix::fs::ioctl_ficlone(&other, &one).is_ok()
}

/// Makes what was created, renamed or removed in a directory survive power loss.
///
/// # Errors
/// When the directory cannot be opened or synced.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse_file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[7; 10_000], 3 << 20).unwrap();
        file.write_all_at(b"end", (8 << 20) - 3).unwrap();
        file
    }

    fn contents(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_copy_is_equal_and_keeps_its_holes() {
        let source = sparse_file();
        let target = tempfile::tempfile().unwrap();
        share_or_copy(&source, &target).unwrap();
        assert_eq!(contents(&source), contents(&target));
        assert!(target.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn the_slow_way_copies_the_same() {
        let source = sparse_file();
        let target = tempfile::tempfile().unwrap();
        target.set_len(8 << 20).unwrap();
        copy_by_hand(&source, &target, 0, 8 << 20).unwrap();
        assert_eq!(contents(&source), contents(&target));
    }

    #[test]
    fn zeros_become_holes_and_the_contents_stay() {
        let file = tempfile::tempfile().unwrap();
        let mut bytes = vec![0; (3 << 20) + 100];
        bytes[5_000] = 1;
        bytes[(1 << 20) - 1] = 2;
        *bytes.last_mut().unwrap() = 3;
        file.write_all_at(&bytes, 0).unwrap();
        let freed = punch_zeros(&file).unwrap();
        assert!(freed > 2 << 20, "{freed}");
        assert_eq!(contents(&file), bytes);
        assert_eq!(punch_zeros(&file).unwrap(), 0);
    }

    #[test]
    fn zeros_are_written_as_holes_over_what_was_there() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[9; 64 << 10], 0).unwrap();
        let mut bytes = vec![0; 40 << 10];
        bytes[9 << 10] = 1;
        write_sparse(&file, 8 << 10, &bytes).unwrap();
        let after = contents(&file);
        assert!(after[..8 << 10].iter().all(|byte| *byte == 9));
        assert_eq!(after[8 << 10..48 << 10], bytes);
        assert!(after[48 << 10..].iter().all(|byte| *byte == 9));
        assert!(file.metadata().unwrap().blocks() * 512 <= 32 << 10);
    }

    #[test]
    fn an_empty_file_copies_to_an_empty_file() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        share_or_copy(&source, &target).unwrap();
        assert_eq!(target.metadata().unwrap().len(), 0);
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        assert!(is_zero(&[0; 4096]));
        assert!(is_zero(&[]));
        for position in [0, 15, 16, 30, 31] {
            let mut bytes = [0; 31 + 1];
            bytes[position] = 1;
            assert!(!is_zero(&bytes));
        }
    }
}

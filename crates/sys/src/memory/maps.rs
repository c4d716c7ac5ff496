//! Where a process maps a file, from `/proc/PID/maps`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{FileRange, PageRange};

/// Largest `maps` that is read. A VMM has a few hundred lines of 100 bytes.
const MAPS_BYTES: u64 = 16 << 20;

/// What tells a file from others.
#[derive(Debug)]
pub(super) struct FileIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) path: Option<PathBuf>,
}

/// A mapping of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) file_offset: u64,
}

/// One line of `maps`.
struct Line<'a> {
    mapping: Mapping,
    device: u64,
    inode: u64,
    path: &'a str,
}

/// Every mapping of the file in the process whose `maps` this is.
pub(super) fn mappings_of(maps: &File, file: &FileIdentity) -> io::Result<Vec<Mapping>> {
    let mut reader = maps;
    reader.seek(SeekFrom::Start(0))?;
    let mut text = Vec::new();
    reader.take(MAPS_BYTES).read_to_end(&mut text)?;
    // Paths may be any bytes; only a match of the whole path counts.
    Ok(select(&String::from_utf8_lossy(&text), file))
}

/// Appends where `part` of the file is mapped, or returns the offset of the first byte
/// that is not.
pub(super) fn locate(
    mappings: &[Mapping],
    part: FileRange,
    ranges: &mut Vec<PageRange>,
) -> Result<(), u64> {
    let (mut offset, mut left) = (part.offset, part.bytes);
    while left > 0 {
        let piece = mappings.iter().find_map(|mapping| {
            let skipped = offset.checked_sub(mapping.file_offset)?;
            let there = (mapping.end - mapping.start).checked_sub(skipped)?;
            (there > 0).then(|| PageRange {
                address: mapping.start + skipped,
                file_offset: offset,
                bytes: left.min(there),
            })
        });
        let piece = piece.ok_or(offset)?;
        ranges.push(piece);
        offset += piece.bytes;
        left -= piece.bytes;
    }
    Ok(())
}

/// btrfs and overlayfs show another device in `maps` than in `stat`: where no
/// line matches by device, the inode together with the path decides.
fn select(text: &str, file: &FileIdentity) -> Vec<Mapping> {
    let lines: Vec<Line<'_>> = text
        .lines()
        .filter_map(parse)
        .filter(|line| line.inode == file.inode)
        .collect();
    let by_device: Vec<Mapping> = lines
        .iter()
        .filter(|line| line.device == file.device)
        .map(|line| line.mapping)
        .collect();
    if !by_device.is_empty() {
        return by_device;
    }
    lines
        .iter()
        .filter(|line| file.path.as_deref() == Some(Path::new(line.path)))
        .map(|line| line.mapping)
        .collect()
}

/// `start-end perms offset major:minor inode   path`, numbers in hex but the inode.
fn parse(line: &str) -> Option<Line<'_>> {
    let mut rest = line;
    let mut field = || {
        let trimmed = rest.trim_start_matches(' ');
        let (field, after) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
        rest = after;
        field
    };
    let (start, end) = field().split_once('-')?;
    let _permissions = field();
    let file_offset = hex(field())?;
    let (major, minor) = field().split_once(':')?;
    let inode = field().parse().ok()?;
    let path = rest.trim_start_matches(' ');
    Some(Line {
        mapping: Mapping {
            start: hex(start)?,
            end: hex(end)?,
            file_offset,
        },
        device: rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32),
        inode,
        path,
    })
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f00-8f00 rw-p 00001000 fd:01 42                         /var/lib/pando/memory
9f00-af00 r--p 00000000 fd:01 43                         /lib/x.so
b000-c000 rw-p 00000000 00:00 0 
ffff-12fff rw-p 00000000 fd:02 42                        /elsewhere
";

    fn identity(device: (u32, u32), path: &str) -> FileIdentity {
        let device = rustix::fs::makedev(device.0, device.1);
        FileIdentity {
            device,
            inode: 42,
            path: Some(path.into()),
        }
    }

    #[test]
    fn a_mapping_is_found_by_device_and_inode() {
        let found = select(MAPS, &identity((0xfd, 1), "/renamed/since"));
        assert_eq!(
            found,
            [Mapping {
                start: 0x7f00,
                end: 0x8f00,
                file_offset: 0x1000
            }]
        );
    }

    #[test]
    fn where_devices_differ_the_path_decides() {
        let found = select(MAPS, &identity((0, 99), "/elsewhere"));
        assert_eq!(
            found,
            [Mapping {
                start: 0xffff,
                end: 0x12fff,
                file_offset: 0
            }]
        );
        assert!(select(MAPS, &identity((0, 99), "/other")).is_empty());
    }

    #[test]
    fn a_part_is_found_in_the_pieces_that_map_it() {
        let mapping = |start, end, file_offset| Mapping {
            start,
            end,
            file_offset,
        };
        let mappings = [mapping(0x9000, 0xb000, 0x2000), mapping(0x4000, 0x6000, 0)];
        let located = |offset, bytes| -> Result<Vec<(u64, u64)>, u64> {
            let mut ranges = Vec::new();
            locate(&mappings, FileRange { offset, bytes }, &mut ranges)?;
            Ok(ranges.iter().map(|r| (r.address, r.bytes)).collect())
        };
        let both = vec![(0x5000, 0x1000), (0x9000, 0x1000)];
        assert_eq!(located(0x1000, 0x2000), Ok(both));
        assert_eq!(located(0x3000, 0x1000), Ok(vec![(0xa000, 0x1000)]));
        assert_eq!(located(0x3000, 0x1001), Err(0x4000));
        assert_eq!(located(0x9000, 0), Ok(vec![]));
    }

    #[test]
    fn lines_that_are_none_are_skipped() {
        assert!(select("nonsense\n\n1-2 rw-p\n", &identity((0, 0), "/")).is_empty());
    }
}

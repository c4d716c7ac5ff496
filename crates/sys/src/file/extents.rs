//! The two calls about blocks that no library has: `FICLONERANGE` and `FIEMAP`.

use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

/// `_IOW(0x94, 13, struct file_clone_range)` of `linux/fs.h`.
const FICLONERANGE: libc::c_ulong = 0x4020_940d;

/// `_IOWR('f', 11, struct fiemap)` of `linux/fs.h`.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;

/// `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    length: u64,
    target_offset: u64,
}

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// It is the last of the file.
const LAST: u32 = 1 << 0;
/// Another file, or another part of this one, has it too.
const SHARED: u32 = 1 << 13;

const EXTENTS: usize = 256;

/// `struct fiemap` with room for answers.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

fn call(fd: RawFd, request: libc::c_ulong, argument: *mut libc::c_void) -> Result<(), Errno> {
    // SAFETY: both callers pass the structure that the request is defined with, which
    // outlives the call, and any descriptor may be passed.
    match unsafe { libc::ioctl(fd, request, argument) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

pub(super) fn clone_range(
    source: &File,
    from: u64,
    target: &File,
    to: u64,
    bytes: u64,
) -> Result<(), Errno> {
    let mut range = CloneRange {
        source: source.as_raw_fd().into(),
        source_offset: from,
        length: bytes,
        target_offset: to,
    };
    call(target.as_raw_fd(), FICLONERANGE, (&raw mut range).cast())
}

/// Bytes of the extents that nobody shares.
pub(super) fn unshared_bytes(file: &File) -> Result<u64, Errno> {
    let (mut start, mut total) = (0, 0);
    loop {
        let mut map = Map {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        call(file.as_raw_fd(), FS_IOC_FIEMAP, (&raw mut map).cast())?;
        let found = &map.extents[..EXTENTS.min(map.mapped as usize)];
        total += found
            .iter()
            .filter(|extent| extent.flags & SHARED == 0)
            .map(|extent| extent.length)
            .sum::<u64>();
        match found.last() {
            Some(last) if last.flags & LAST == 0 && last.length > 0 => {
                start = last.logical + last.length;
            }
            _ => return Ok(total),
        }
    }
}

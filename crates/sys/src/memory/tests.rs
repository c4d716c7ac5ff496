use std::io::Write;

use super::*;

/// A private mapping of a file in this process.
struct PrivateMapping {
    address: *mut libc::c_void,
    bytes: usize,
}

impl PrivateMapping {
    fn new(file: &File, bytes: usize) -> Self {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping at an address of the kernel's choice; the
        // result is checked, and nobody truncates the file meanwhile.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        Self { address, bytes }
    }

    /// Has the kernel track writes, as `crates/preload` does in a VMM. For as long as the
    /// descriptor lives; `None` where the kernel cannot (before 6.7).
    fn track(&self) -> Option<std::os::fd::OwnedFd> {
        use std::os::fd::{AsRawFd, FromRawFd};
        const USER_MODE_ONLY: libc::c_int = 1;
        const SET_API: libc::Ioctl = 0xc018_aa3f;
        const REGISTER: libc::Ioctl = 0xc020_aa00;
        const WP_UNPOPULATED_AND_ASYNC: u64 = 1 << 13 | 1 << 15;
        const MODE_WP: u64 = 1 << 1;
        let mut api = [0xaa, WP_UNPOPULATED_AND_ASYNC, 0];
        let mut register = [self.address as u64, self.bytes as u64, MODE_WP, 0];
        // SAFETY: the kernel's structures are three and four words; the descriptor is new.
        unsafe {
            let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
            let descriptor = libc::syscall(libc::SYS_userfaultfd, flags) as libc::c_int;
            assert!(descriptor >= 0, "{}", io::Error::last_os_error());
            let descriptor = std::os::fd::OwnedFd::from_raw_fd(descriptor);
            if libc::ioctl(descriptor.as_raw_fd(), SET_API, api.as_mut_ptr()) != 0 {
                return None;
            }
            let registered = libc::ioctl(descriptor.as_raw_fd(), REGISTER, register.as_mut_ptr());
            assert_eq!(registered, 0, "{}", io::Error::last_os_error());
            Some(descriptor)
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this long, lives as long as `self`, and is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }
}

impl Drop for PrivateMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and no borrow outlives `self`.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

const PAGES: usize = 9000;
const PAGE: usize = PAGE_BYTES as usize;

fn memory_file() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![1; PAGES * PAGE]).unwrap();
    file
}

fn own_memory(file: &tempfile::NamedTempFile) -> GuestMemory {
    GuestMemory::open(std::process::id(), file.path()).unwrap()
}

#[test]
fn written_pages_are_private_and_read_ones_are_not() {
    let file = memory_file();
    let mut mapping = PrivateMapping::new(file.as_file(), PAGES * PAGE);
    let memory = own_memory(&file);
    let sum: u64 = mapping.bytes().iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(sum, (PAGES * PAGE) as u64);
    assert_eq!(memory.private_ranges().unwrap(), []);

    mapping.bytes()[3 * PAGE] = 9;
    mapping.bytes()[4 * PAGE + 17] = 8;
    mapping.bytes()[4000 * PAGE] = 7;
    let ranges = memory.private_ranges().unwrap();
    let found: Vec<(u64, u64)> = ranges.iter().map(|r| (r.file_offset, r.bytes)).collect();
    assert_eq!(
        found,
        [
            (3 * PAGE_BYTES, 2 * PAGE_BYTES),
            (4000 * PAGE_BYTES, PAGE_BYTES)
        ]
    );

    let mut contents = vec![0; 3 * PAGE];
    memory.read(&ranges, &mut contents).unwrap();
    assert_eq!(
        (contents[0], contents[PAGE + 17], contents[2 * PAGE]),
        (9, 8, 7)
    );
    assert_eq!(contents[1], 1, "the rest of a page is copied from the file");
}

#[test]
fn both_ways_of_looking_find_the_same_pages() {
    let file = memory_file();
    let mut mapping = PrivateMapping::new(file.as_file(), PAGES * PAGE);
    // More ranges than one scan returns and than one read takes.
    for page in (0..PAGES).step_by(2) {
        mapping.bytes()[page * PAGE] = page as u8;
    }
    let memory = own_memory(&file);
    let ranges = memory.private_ranges().unwrap();
    let mappings = maps::mappings_of(&memory.maps, &memory.memory_file).unwrap();
    let by_bits: Vec<PageRange> = mappings
        .iter()
        .flat_map(|found| pagemap::tests::by_bits(&memory.pagemap, found))
        .collect();
    assert_eq!(ranges, by_bits);

    let mut contents = vec![0; ranges.iter().map(|range| range.bytes as usize).sum()];
    memory.read(&ranges, &mut contents).unwrap();
    let mut through_descriptor = vec![0; contents.len()];
    memory
        .read_through_descriptor(&ranges, &mut through_descriptor)
        .unwrap();
    assert!(contents == through_descriptor);
    assert_eq!(contents[..PAGE], mapping.bytes()[..PAGE]);
}

#[test]
fn a_buffer_too_short_and_a_hole_in_the_address_space_are_errors() {
    let file = memory_file();
    let mut mapping = PrivateMapping::new(file.as_file(), PAGES * PAGE);
    mapping.bytes()[0] = 2;
    let memory = own_memory(&file);
    let ranges = memory.private_ranges().unwrap();
    let short = memory.read(&ranges, &mut [0; 100]);
    assert!(matches!(short, Err(MemoryError::Short { read: 100, .. })));
    let nowhere = PageRange {
        address: 0,
        file_offset: 0,
        bytes: PAGE_BYTES,
    };
    assert!(matches!(
        memory.read(&[nowhere], &mut [0; PAGE]),
        Err(MemoryError::Read { .. })
    ));
}

#[test]
fn a_process_that_does_not_map_the_file_is_named() {
    let memory = own_memory(&memory_file());
    let error = memory.private_ranges().unwrap_err();
    assert!(matches!(error, MemoryError::NotMapped(pid) if pid == std::process::id()));
}

/// The pages of the ranges, by number.
fn pages(ranges: &[PageRange]) -> Vec<usize> {
    let pages_of = |range: &PageRange| {
        let first = (range.file_offset / PAGE_BYTES) as usize;
        first..first + range.pages() as usize
    };
    ranges.iter().flat_map(pages_of).collect()
}

fn assert_not_tracked(memory: &GuestMemory) {
    for result in [memory.check_tracked(), memory.take_written().map(drop)] {
        assert!(matches!(result, Err(MemoryError::NotTracked { .. })));
    }
}

#[test]
fn what_is_written_between_two_calls_is_found_exactly() {
    let file = memory_file();
    let mut mapping = PrivateMapping::new(file.as_file(), PAGES * PAGE);
    let memory = own_memory(&file);
    // Before it is tracked, as what a VMM writes before somebody asks.
    mapping.bytes()[7 * PAGE] = 1;
    let Some(_tracking) = mapping.track() else {
        assert_not_tracked(&memory);
        return;
    };
    // More ranges than one scan returns.
    let first: Vec<usize> = (1..PAGES).step_by(2).collect();
    for page in &first {
        mapping.bytes()[page * PAGE] = 2;
    }
    memory.check_tracked().unwrap();
    assert_eq!(pages(&memory.take_written().unwrap()), first);
    assert_eq!(memory.take_written().unwrap(), []);

    // Written again, read again, and written for the first time.
    let second = [0, 3, 4, 7, 4000, 4001];
    for page in second {
        mapping.bytes()[page * PAGE + 9] = 3;
    }
    let sum: u64 = mapping.bytes().iter().map(|byte| u64::from(*byte)).sum();
    assert!(sum > 0);
    assert_eq!(pages(&memory.take_written().unwrap()), second);
    assert_eq!(memory.take_written().unwrap(), []);
    assert_eq!(
        pages(&memory.private_ranges().unwrap()).len(),
        first.len() + 3,
        "three were the file's before"
    );
}

#[test]
fn a_mapping_that_nobody_registered_is_not_tracked() {
    let file = memory_file();
    let mut mapping = PrivateMapping::new(file.as_file(), PAGES * PAGE);
    mapping.bytes()[0] = 2;
    assert_not_tracked(&own_memory(&file));
}

#[test]
fn what_is_written_from_outside_is_there_and_counts_as_written() {
    let file = memory_file();
    let mut mapping = PrivateMapping::new(file.as_file(), PAGES * PAGE);
    let memory = own_memory(&file);
    let tracking = mapping.track();
    mapping.bytes()[5 * PAGE] = 2;
    let taken = memory.take_written();
    assert_eq!(taken.is_ok(), tracking.is_some());
    // More ranges than one call takes; page 5 is private and protected, the others are the file's.
    let parts: Vec<FileRange> = (1..PAGES as u64)
        .step_by(4)
        .map(|page| FileRange {
            offset: page * PAGE_BYTES,
            bytes: PAGE_BYTES,
        })
        .collect();
    let ranges = memory.ranges_at(&parts).unwrap();
    let mut bytes = vec![0; parts.len() * PAGE];
    for (index, page) in bytes.chunks_mut(PAGE).enumerate() {
        page.fill(index as u8);
    }
    let assert_all_written = || {
        if tracking.is_some() {
            assert_eq!(memory.take_written().unwrap(), ranges);
        }
    };
    memory.write(&ranges, &bytes).unwrap();
    assert_all_written();
    let mut read = vec![0; bytes.len()];
    memory.read(&ranges, &mut read).unwrap();
    assert!(read == bytes);
    assert_eq!(mapping.bytes()[5 * PAGE], 1);
    assert_eq!(mapping.bytes()[6 * PAGE], 1, "its neighbour is the file's");

    bytes.fill(77);
    memory.write_through_descriptor(&ranges, &bytes).unwrap();
    assert_eq!(mapping.bytes()[9 * PAGE], 77);
    assert_all_written();
}

#[test]
fn too_few_bytes_and_what_is_not_mapped_cannot_be_written() {
    let file = memory_file();
    let _mapping = PrivateMapping::new(file.as_file(), PAGES * PAGE);
    let memory = own_memory(&file);
    let part = |offset, bytes| [FileRange { offset, bytes }];
    let last = (PAGES as u64 - 1) * PAGE_BYTES;
    let ranges = memory.ranges_at(&part(last, PAGE_BYTES)).unwrap();
    let short = memory.write(&ranges, &[0; 100]);
    assert!(matches!(short, Err(MemoryError::TooFew { given: 100, .. })));
    let beyond = memory.ranges_at(&part(last, PAGE_BYTES + 1));
    let end = PAGES as u64 * PAGE_BYTES;
    assert!(matches!(beyond, Err(MemoryError::Beyond { offset, .. }) if offset == end));
    let nowhere = PageRange {
        address: 0,
        file_offset: 0,
        bytes: PAGE_BYTES,
    };
    let refused = memory.write(&[nowhere], &[0; PAGE]);
    assert!(matches!(refused, Err(MemoryError::Write { .. })));
}

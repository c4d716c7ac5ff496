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

const PAGES: usize = 5000;
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
    for page in (0..PAGES).filter(|page| page % 11 != 0) {
        mapping.bytes()[page * PAGE] = page as u8;
    }
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

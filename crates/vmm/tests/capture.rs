//! What is captured of a real VM, compared with all of its memory.
#![allow(missing_docs, reason = "the names of tests are their documentation")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use pando_sys::memory::{FileRange, GuestMemory, PAGE_BYTES};
use pando_vmm::capture::ARENA_BYTES;
use pando_vmm::{Arena, CaptureError, ChangeTracker, Start, Vmm};
use support::{CODE, Machine, World, best_method, page_of};

/// Pages by their offset in the memory file.
type Pages = BTreeMap<u64, Vec<u8>>;

/// All pages that are a stopped VM's own.
fn private_pages(memory: &GuestMemory) -> Pages {
    let mut pages = Pages::new();
    for range in memory.private_ranges().unwrap() {
        let mut bytes = vec![0; range.bytes as usize];
        memory.read(&[range], &mut bytes).unwrap();
        add(&mut pages, range.file_offset, &bytes);
    }
    pages
}

fn add(pages: &mut Pages, offset: u64, bytes: &[u8]) {
    for (index, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
        pages.insert(offset + index as u64 * PAGE_BYTES, page.to_vec());
    }
}

fn changed(before: &Pages, after: &Pages) -> BTreeSet<u64> {
    let differs = |entry: &(&u64, &Vec<u8>)| before.get(entry.0) != Some(entry.1);
    after
        .iter()
        .filter(differs)
        .map(|(offset, _)| *offset)
        .collect()
}

/// Captures a stopped VM; what came out, wherever it went.
fn capture(tracker: &mut ChangeTracker, arena_bytes: usize) -> Pages {
    let mut pages = Pages::new();
    let mut arena = Arena::faulted_in(arena_bytes);
    let mut sink = |offset: u64, bytes: &[u8]| {
        add(&mut pages, offset, bytes);
        Ok(())
    };
    let captured = tracker.capture(&mut arena, &mut sink).unwrap();
    tracker.emit(&captured, &arena, &mut sink).unwrap();
    pages
}

/// Lets a stopped VM write some letters, and stops it.
async fn write_letters(machine: &Machine, up_to: u8) {
    machine.qemu.cont().await.unwrap();
    machine.wait_for(up_to).await;
    machine.qemu.stop().await.unwrap();
}

fn offsets(pages: &Pages) -> BTreeSet<u64> {
    pages.keys().copied().collect()
}

/// A child that has written two letters, its memory, and the last letter.
async fn child(world: &World) -> (Machine, Arc<GuestMemory>, u8) {
    let (last, state) = world.bake().await;
    let child = world.spawn(&state, "child").await;
    write_letters(&child, last + 2).await;
    let memory = child.qemu.guest_memory().unwrap();
    (child, memory, last + 2)
}

/// Both ways, on two children of one parent; the second with an arena that is too small.
fn trackers(memory: &Arc<GuestMemory>) -> [(ChangeTracker, usize); 2] {
    let best = ChangeTracker::new(Arc::clone(memory));
    assert_eq!(best.method(), best_method());
    let comparing = ChangeTracker::comparing(Arc::clone(memory));
    assert_eq!(comparing.method(), "compare");
    [(best, ARENA_BYTES), (comparing, 3 * PAGE_BYTES as usize)]
}

#[tokio::test]
async fn the_second_capture_has_exactly_what_was_written_since_the_first() {
    let world = World::new();
    let (child, memory, mut letter) = child(&world).await;
    let mut trackers = trackers(&memory);
    let mut before = private_pages(&memory);
    for (tracker, arena_bytes) in &mut trackers {
        assert!(
            capture(tracker, *arena_bytes) == before,
            "{}",
            tracker.method()
        );
        tracker.confirm();
    }
    for _ in 0..3 {
        letter += 2;
        write_letters(&child, letter).await;
        let after = private_pages(&memory);
        let changed = changed(&before, &after);
        assert!(changed.contains(&page_of(letter)), "the guest ran");
        for (tracker, arena_bytes) in &mut trackers {
            let found = capture(tracker, *arena_bytes);
            tracker.confirm();
            assert_eq!(offsets(&found), changed, "{}", tracker.method());
            assert!(found.iter().all(|(offset, page)| after[offset] == *page));
        }
        before = after;
    }
    for (tracker, arena_bytes) in &mut trackers {
        assert!(capture(tracker, *arena_bytes).is_empty(), "nothing ran");
    }
}

#[tokio::test]
async fn what_was_not_confirmed_comes_again() {
    let world = World::new();
    let (child, memory, letter) = child(&world).await;
    for (index, (mut tracker, arena_bytes)) in trackers(&memory).into_iter().enumerate() {
        let letter = letter + 6 * index as u8;
        capture(&mut tracker, arena_bytes);
        tracker.confirm();
        let kept = private_pages(&memory);
        write_letters(&child, letter + 2).await;
        // One that nobody keeps, and then one whose keeper fails.
        capture(&mut tracker, arena_bytes);
        write_letters(&child, letter + 4).await;
        let full = &mut |_: u64, _: &[u8]| Err(io::ErrorKind::StorageFull.into());
        let failed = tracker.capture(&mut Arena::faulted_in(0), full);
        assert!(matches!(failed, Err(CaptureError::Keep(_))));
        tracker.confirm();
        write_letters(&child, letter + 6).await;

        let now = private_pages(&memory);
        let found = capture(&mut tracker, arena_bytes);
        for page in (letter + 1..=letter + 6).map(page_of) {
            assert!(found.contains_key(&page), "{}", tracker.method());
        }
        assert_eq!(offsets(&found), changed(&kept, &now));
        tracker.confirm();
        assert!(capture(&mut tracker, arena_bytes).is_empty());
    }
}

#[tokio::test]
async fn what_is_written_into_a_stopped_vm_is_run_and_captured() {
    let world = World::new();
    let (last, state) = world.bake().await;
    let child = world.spawn(&state, "child").await;
    let memory = child.qemu.guest_memory().unwrap();
    let mut tracker = ChangeTracker::new(Arc::clone(&memory));
    capture(&mut tracker, ARENA_BYTES);
    tracker.confirm();

    // `inc %bl` in the guest's loop becomes `dec %bl`.
    let file = std::fs::read(world.path("memory")).unwrap();
    let code = file
        .windows(CODE.len())
        .rposition(|bytes| bytes == CODE)
        .unwrap();
    let inc = CODE
        .windows(2)
        .position(|bytes| bytes == [0xfe, 0xc3])
        .unwrap();
    let at = (code + inc) as u64;
    let page = at - at % PAGE_BYTES;
    let part = FileRange {
        offset: page,
        bytes: PAGE_BYTES,
    };
    let mut bytes = file[page as usize..][..PAGE_BYTES as usize].to_vec();
    bytes[(at - page) as usize + 1] = 0xcb;
    memory
        .write(&memory.ranges_at(&[part]).unwrap(), &bytes)
        .unwrap();

    let found = capture(&mut tracker, ARENA_BYTES);
    assert_eq!(found, Pages::from([(page, bytes)]));
    child.qemu.cont().await.unwrap();
    child.wait_for(last - 2).await;
    assert_eq!(child.qemu.console_tail().as_bytes()[0], last - 1);
}

#[tokio::test]
async fn a_vm_that_boots_without_keeping_its_memory_is_tracked_from_its_start() {
    let world = World::new();
    let Start::Cold {
        kernel,
        initrd,
        command_line,
        memory,
        ..
    } = world.cold()
    else {
        panic!()
    };
    let start = Start::Cold {
        kernel,
        initrd,
        command_line,
        memory,
        keep: false,
    };
    let machine = world
        .launch(start, vec![world.layer("disk")])
        .await
        .unwrap();
    write_letters(&machine, b'C').await;
    let memory = machine.qemu.guest_memory().unwrap();
    let mut tracker = ChangeTracker::new(Arc::clone(&memory));
    assert_eq!(tracker.method(), best_method());
    assert!(capture(&mut tracker, ARENA_BYTES) == private_pages(&memory));
}

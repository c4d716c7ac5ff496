//! The disk is full, or will be in a moment: what cannot be kept is refused, what runs is not
//! lost, and nothing is left half-written.

use crate::in_full;
use crate::stage::{
    Contents, Operation, check_files, check_snapshots, create_from, remove, remove_all, rows,
    snapshot_names, take, text,
};
use pando_testkit::{Answer, FileSystem, LoopFs, Options, World};
use serde_json::Value;
use std::time::{Duration, Instant};

use Operation as O;

const OPERATIONS: [Operation; 6] = [
    O::Snapshot,
    O::Fork,
    O::CreateFrom,
    O::Rollback,
    O::Pause,
    O::Resume,
];

/// Free bytes before each operation: with the least a directory can be made and nothing in it.
/// A snapshot of what is marked below takes 2 to 3 MiB.
const FREE: [u64; 9] = [
    0,
    4 << 10,
    8 << 10,
    64 << 10,
    300 << 10,
    1 << 20,
    2 << 20,
    3 << 20,
    6 << 20,
];

/// For CI: each operation once, where it was seen to be refused in another step.
const SAMPLE: [(Operation, u64); 8] = [
    (O::Snapshot, 1 << 20),
    (O::Fork, 300 << 10),
    (O::CreateFrom, 0),
    (O::CreateFrom, 4 << 10),
    (O::Rollback, 0),
    (O::Pause, 2 << 20),
    (O::Resume, 0),
    (O::Resume, 4 << 10),
];

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let fs = LoopFs::new(FileSystem::Ext4, 1600);
    let world = World::with(Options {
        state_dir: Some(fs.state_dir()),
        ..Options::default()
    });
    let all = OPERATIONS
        .iter()
        .flat_map(|operation| FREE.map(|free| (*operation, free)));
    let tried: Vec<_> = match in_full() {
        true => all.collect(),
        false => SAMPLE.to_vec(),
    };
    let refused = tried
        .iter()
        .filter(|(operation, free)| {
            let refused = try_with(&fs, &world, *operation, *free);
            remove_all(&world);
            refused
        })
        .count();
    // Else the disk was not full, or nothing needs it.
    assert!(
        refused >= tried.len() / 3,
        "{refused} of {} were refused",
        tried.len()
    );
}

/// Does an operation with so little space, and once more when there is enough; returns
/// whether it was refused.
fn try_with(fs: &LoopFs, world: &World, operation: Operation, free: u64) -> bool {
    let what = format!("{operation:?} with {free} bytes");
    let id = world.create();
    let mut before = Contents::begin(world, &id);
    before.mark(world, &id, "one");
    take(world, &id, "before");
    let mut now = before.clone();
    now.mark(world, &id, "two");
    if operation == O::Resume {
        world.ok(["pause", &id]);
    }
    fs.leave_free(free);
    let answer = operation.request(world, &id).expect("an answer");
    let refused = is_refused(&answer, &what);
    check_stands(world, &id, operation, refused, &what);
    fs.make_room();
    await_room(world, &id);
    check_files(world);
    if refused {
        let again = operation.request(world, &id).expect("an answer");
        assert!(!is_refused(&again, &what), "again: {}", again.text);
    }
    check_done(world, &id, operation, (&before, &now), &what);
    check_files(world);
    refused
}

/// Whether there was no space for it; all else must be a success.
fn is_refused(answer: &Answer, what: &str) -> bool {
    let body = answer.json();
    let error = match answer.status {
        200 | 201 => body["children"][0]["error"].clone(),
        507 => body["error"].clone(),
        _ => panic!("{what}: {}", answer.text),
    };
    assert!(
        error.is_null() || error["code"] == "no_space",
        "{what}: {error}"
    );
    !error.is_null()
}

/// The sandbox is in the state before or after, and if it stands still, it says so.
fn check_stands(world: &World, id: &str, operation: Operation, refused: bool, what: &str) {
    let found = world.inspect(id);
    let expected = match operation {
        O::Pause if !refused => "paused",
        O::Resume if refused => "paused",
        _ => "running",
    };
    assert_eq!(found["state"], expected, "{what}: {found}");
    if expected == "paused" {
        return;
    }
    let exec = format!("/v1/sandboxes/{id}/exec");
    let request = serde_json::json!({ "argv": ["true"] });
    let used = world.api().post(&exec, &request);
    match used.status {
        200 => {}
        507 => assert_eq!(
            world.inspect(id)["state_reason"],
            "it stands still: the host's disk is full",
            "{what}"
        ),
        _ => panic!("{what}: {}", used.text),
    }
}

/// Waits until a sandbox that stood still goes on. That it stands still may be known only
/// when there is room again: it has had nothing to write after its disk was synced.
fn await_room(world: &World, id: &str) {
    await_going(world, id);
    if world.inspect(id)["state"] == "running" {
        world.sh(id, "sudo sync");
        await_going(world, id);
    }
}

fn await_going(world: &World, id: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while world.inspect(id)["state_reason"] != Value::Null {
        assert!(Instant::now() < deadline, "it still stands still");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// It was done: what came of it is whole, and what was there before, too.
fn check_done(
    world: &World,
    id: &str,
    operation: Operation,
    (before, now): (&Contents, &Contents),
    what: &str,
) {
    let names = snapshot_names(world);
    let taken = names.contains(&"fresh".to_owned());
    assert_eq!(taken, operation == O::Snapshot, "{what}: {names:?}");
    check_snapshots(world, &[("before", before), ("fresh", now)]);
    let children: Vec<String> = rows(world, "sandboxes")
        .iter()
        .map(|row| text(row, "id"))
        .filter(|child| child != id)
        .collect();
    let makes = matches!(operation, O::Fork | O::CreateFrom);
    assert_eq!(children.len(), usize::from(makes), "{what}: {children:?}");
    for child in children {
        let expected = if operation == O::Fork { now } else { before };
        expected.check(world, &child, &format!("{what}: the child"));
        remove(world, &child);
    }
    if operation == O::Pause {
        world.ok(["resume", id]);
    }
    let mut contents = if operation == O::Rollback {
        before
    } else {
        now
    }
    .clone();
    contents.check(world, id, &format!("{what}: the sandbox"));
    contents.mark(world, id, "three");
    take(world, id, "after");
    let child = create_from(world, "after");
    contents.check(
        world,
        &child,
        &format!("{what}: a child of a further snapshot"),
    );
}

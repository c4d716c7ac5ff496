//! A host whose disk is full: what cannot be kept is refused, what runs is not lost.

use pando_testkit::{FileSystem, LoopFs, Options, World};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn a_create_on_a_full_disk_is_refused_and_leaves_nothing() {
    // Room for the template's two bakes side by side, each with a guest's memory and a copy
    // of the root, since the cache is on another file system.
    let fs = LoopFs::new(FileSystem::Ext4, 1600);
    let world = World::with(Options {
        state_dir: Some(fs.path().join("state")),
        ..Options::default()
    });
    let id = world.create();
    // Nothing of the guest's is left to be written.
    world.sh(&id, "sudo sync");
    fs.leave_free(0);

    let refused = world.api().post("/v1/sandboxes", &json!({}));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (507, &json!("no_space")),
        "{}",
        refused.text
    );
    let left: Vec<_> = std::fs::read_dir(world.state_dir().join("v1/sandboxes"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, [id.as_str()]);
    assert_eq!(world.ok(["ls", "-q"]), id);
    assert_eq!(world.sh(&id, "echo still"), "still");

    // One that must write stands still, says so, and goes on when it can.
    let writes =
        json!({ "shell": "dd if=/dev/zero of=$HOME/big bs=1M count=64 conv=fsync 2>&1; sync" });
    let exec = format!("/v1/sandboxes/{id}/exec");
    let stalled = world.api().post(&exec, &writes);
    assert_eq!(
        (stalled.status, &stalled.json()["error"]["code"]),
        (507, &json!("no_space")),
        "{}",
        stalled.text
    );
    let reason = world.inspect(&id)["state_reason"].clone();
    assert_eq!(reason, "it stands still: the host's disk is full");
    fs.make_room();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !world.inspect(&id)["state_reason"].is_null() {
        assert!(Instant::now() < deadline, "it still stands still");
        std::thread::sleep(Duration::from_millis(20));
    }
    // What was begun has gone on by itself, to its end.
    world.sh(
        &id,
        "while pgrep -x dd; do sleep 0.1; done; test $(stat -c %s ~/big) = 67108864",
    );
    world.ok(["rm", &id]);
    let next = world.create();
    assert_eq!(world.sh(&next, "echo again"), "again");
}

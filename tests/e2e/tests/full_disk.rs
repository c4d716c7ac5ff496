//! A host whose disk is full: what cannot be kept is refused, what runs is not lost.

use pando_testkit::{Options, World};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A small file system of its own, unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(dir: &Path, mib: u32) -> Self {
        let (image, place) = (dir.join("image"), dir.join("mounted"));
        std::fs::create_dir(&place).unwrap();
        run(
            "truncate",
            &["-s", &format!("{mib}M"), &image.display().to_string()],
        );
        run(
            "mkfs.ext4",
            &["-q", "-m", "0", &image.display().to_string()],
        );
        run(
            "mount",
            &[
                "-o",
                "loop",
                &image.display().to_string(),
                &place.display().to_string(),
            ],
        );
        Self(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program)
        .args(args)
        .status()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {args:?}");
}

#[test]
fn a_create_on_a_full_disk_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Other accounts must pass through to what is theirs.
    run("chmod", &["711", &dir.path().display().to_string()]);
    // The layers of a sandbox are copied here, since the cache is on another file system:
    // one sandbox fits, two do not.
    let mounted = Mounted::new(dir.path(), 900);
    let world = World::with(Options {
        state_dir: Some(mounted.0.join("state")),
        ..Options::default()
    });
    let id = world.create();
    // Nothing of the guest's is left to be written.
    world.sh(&id, "sudo sync");
    let filler = mounted.0.join("filler");
    let filled = Command::new("dd")
        .arg("if=/dev/zero")
        .arg(format!("of={}", filler.display()))
        .args(["bs=1M", "status=none"])
        .output()
        .unwrap();
    assert!(!filled.status.success(), "the disk is not full");

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
    std::fs::remove_file(&filler).unwrap();
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

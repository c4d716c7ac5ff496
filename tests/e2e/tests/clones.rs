//! Every sandbox is a clone of one snapshot; none may show it.

use pando_testkit::World;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn clones_share_neither_entropy_nor_identity_and_know_the_time() {
    let world = World::start();
    let ids: Vec<String> = (0..3).map(|_| world.create()).collect();
    let mut seen = BTreeSet::new();
    for id in &ids {
        let bytes = world.sh(id, "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; python3 -c 'import uuid, os; print(uuid.uuid4(), os.urandom(8).hex())'");
        for word in bytes.lines() {
            assert!(seen.insert(word.to_owned()), "two clones gave {word}");
        }
        for line in ["cat /etc/machine-id", "hostname"] {
            let word = world.sh(id, line);
            assert!(seen.insert(word.clone()), "two clones have {word}");
        }
        assert_eq!(world.sh(id, "hostname"), *id);
        let before = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let guest: f64 = world.sh(id, "date +%s.%N").parse().unwrap();
        let after = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        assert!(
            before - 0.05 <= guest && guest <= after + 0.05,
            "guest {guest}, host {before} to {after}"
        );
    }
}

#[test]
fn guest_time_runs_as_fast_as_the_hosts() {
    let world = World::start();
    let id = world.create();
    let read = || {
        let guest: f64 = world.sh(&id, "cut -d' ' -f1 /proc/uptime").parse().unwrap();
        (guest, SystemTime::now())
    };
    let (first, started) = read();
    std::thread::sleep(std::time::Duration::from_secs(10));
    let (second, ended) = read();
    let host = ended.duration_since(started).unwrap().as_secs_f64();
    let ratio = (second - first) / host;
    assert!(
        (0.97..1.03).contains(&ratio),
        "guest time ran {ratio} times as fast"
    );
}

#[test]
fn what_one_sandbox_writes_no_other_sees() {
    let world = World::start();
    let one = world.create();
    world.sh(
        &one,
        "echo secret > ~/file; sudo sh -c 'echo x >> /etc/hosts'",
    );
    let two = world.create();
    assert_eq!(world.sh(&two, "ls ~; grep -c '^x' /etc/hosts || true"), "0");
}

#[test]
fn a_sandbox_says_what_isolates_it() {
    let world = World::start();
    let id = world.create();
    let isolation = world.inspect(&id)["isolation"].clone();
    assert!(
        isolation["vmm"].as_str().unwrap().starts_with("qemu "),
        "{isolation}"
    );
    assert!(
        ["kvm", "tcg"].contains(&isolation["accelerator"].as_str().unwrap()),
        "{isolation}"
    );
    assert!(
        !isolation["reason"].as_str().unwrap().is_empty(),
        "{isolation}"
    );
    let layers = isolation["layers"].to_string();
    for layer in ["seccomp", "landlock"] {
        assert!(layers.contains(layer), "{layer} is missing in {layers}");
    }
}

//! What a snapshot costs: what changed since the one before.

use crate::{file_name, files, from, snapshot_dir, take};
use pando_testkit::{Options, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A world whose log says how changes were found.
fn debugging(state_dir: Option<PathBuf>) -> World {
    World::with(Options {
        env: vec![("PANDO_LOG".to_owned(), "debug".to_owned())],
        state_dir,
        ..Options::default()
    })
}

/// Whether this kernel marks what is written to a private mapping.
fn kernel_marks_writes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|word| word.parse::<u32>().unwrap());
    (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

#[test]
fn a_snapshot_costs_what_changed_since_the_one_before() {
    let world = debugging(None);
    let method = match kernel_marks_writes() {
        true => "written",
        false => "compare",
    };
    costs_what_changed(&world, method);
}

#[test]
fn it_does_so_too_where_the_kernel_cannot_say_what_changed() {
    // The loader cannot be given a library in such a place, and without it nothing is marked.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let world = debugging(Some(place.path().join("a state")));
    costs_what_changed(&world, "compare");
}

fn costs_what_changed(world: &World, method: &str) {
    let id = world.create();
    let rewrite = |source: &str, name: &str, mib: u32| {
        let line = format!(
            "dd if=/dev/{source} of=/dev/shm/{name} bs=1M count={mib} conv=notrunc status=none"
        );
        world.sh(&id, &line);
    };
    let mut chain = Vec::new();
    let mut keep = || {
        let snapshot = take(world, &id, &json!({}));
        check_bytes(world, &snapshot, chain.last());
        chain.push(snapshot.clone());
        let of = |field: &str| snapshot[field].as_u64().unwrap();
        (of("dirty_pages"), of("bytes"))
    };
    let dirty: Vec<u64> = (0..10)
        .map(|_| {
            rewrite("urandom", "rewritten", 8);
            keep().0
        })
        .collect();
    assert!(
        dirty.iter().all(|pages| *pages >= 2048),
        "{dirty:?} pages, of which 2048 were rewritten"
    );
    assert!(dirty[9] * 2 <= dirty[1] * 3, "it grows: {dirty:?}");
    let (_, idle) = keep();
    assert!(idle < 2 << 20, "{idle} bytes of nothing");

    rewrite("urandom", "zeroed", 32);
    let (_, random) = keep();
    assert!(random >= 32 << 20, "{random} bytes of 32 MiB");
    rewrite("zero", "zeroed", 32);
    let (pages, zeros) = keep();
    assert!(pages >= 8192, "{pages} pages, of which 8192 were zeroed");
    assert!(zeros < 5 << 20, "{zeros} bytes of zeros");

    let sum = |id: &str| world.sh(id, "sha256sum /dev/shm/rewritten /dev/shm/zeroed");
    let last = chain.last().unwrap()["id"].as_str().unwrap();
    let child = from(world, last);
    assert_eq!(sum(&child), sum(&id));
    let zeros = "stat -c %s /dev/shm/zeroed; tr -d '\\0' < /dev/shm/zeroed | wc -c";
    assert_eq!(world.sh(&child, zeros), format!("{}\n0", 32 << 20));

    let log = world.log();
    let captured: Vec<_> = log
        .lines()
        .filter(|line| line.contains("captured"))
        .collect();
    assert_eq!(captured.len(), chain.len());
    for line in captured {
        assert!(line.contains(method), "not by `{method}`: {line}");
    }
}

/// What a snapshot takes on disk is what its answer says, and no more than what changed.
fn check_bytes(world: &World, snapshot: &Value, before: Option<&Value>) {
    let Some(before) = before else { return };
    let dir = |of: &Value| snapshot_dir(world, of["id"].as_str().unwrap());
    let others: BTreeSet<u64> = files(&dir(before))
        .iter()
        .map(|file| fs::metadata(file).unwrap().ino())
        .collect();
    let (mut own, mut clusters) = (0, 0);
    for file in files(&dir(snapshot)) {
        let metadata = fs::metadata(&file).unwrap();
        if !others.contains(&metadata.ino()) {
            own += metadata.blocks() * 512;
            if file_name(&file).starts_with("disk.") {
                clusters += written_bytes(&file);
            }
        }
    }
    assert_eq!(snapshot["bytes"], own, "{snapshot}");
    let pages = snapshot["dirty_pages"].as_u64().unwrap() * 4096;
    assert!(
        own <= pages + clusters + (128 << 10),
        "{own} bytes for {pages} of pages and {clusters} of disk"
    );
}

/// The bytes of all clusters that a disk layer has of its own.
fn written_bytes(layer: &Path) -> u64 {
    let output = Command::new("qemu-img")
        .args(["map", "--output=json", "--force-share"])
        .arg(layer)
        .output()
        .expect("`qemu-img` runs");
    assert!(output.status.success(), "{output:?}");
    let map: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pieces = map.as_array().unwrap().iter();
    pieces
        .filter(|piece| piece["depth"] == 0 && piece["present"] == true)
        .map(|piece| piece["length"].as_u64().unwrap())
        .sum()
}

//! What is kept is nobody else's, and a state that is not whole is refused by name.

use crate::{file_name, files, from, outcome, show, snapshot_dir};
use pando_testkit::{Answer, Footprint, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A world with a snapshot, `kept`, and the sandbox that it was taken of.
struct Damaged {
    world: World,
    sandbox: String,
    kept: String,
}

impl Damaged {
    fn new() -> Self {
        let world = World::start();
        let sandbox = world.create();
        world.sh(
            &sandbox,
            "echo here > file; sync; echo there > /dev/shm/memory",
        );
        let kept = world.ok(["snapshot", &sandbox, "--name", "kept"]);
        Self {
            world,
            sandbox,
            kept,
        }
    }

    fn dir(&self) -> PathBuf {
        snapshot_dir(&self.world, &self.kept)
    }

    /// Puts other contents in place of a file of the snapshot, under the next daemon, and
    /// returns what was there. Layers are shared with other snapshots, and with the cache
    /// of bakes: those keep theirs.
    fn replace(&mut self, name: &str, change: impl FnOnce(&Path)) -> PathBuf {
        let path = self.dir().join(name);
        let (whole, other) = (self.world.scratch("whole"), self.world.scratch("other"));
        self.world.kill_daemon();
        let copied = Command::new("cp")
            .args(["--sparse=always", "--preserve=timestamps"])
            .args([&path, &other])
            .status();
        assert!(copied.unwrap().success());
        change(&other);
        fs::rename(&path, &whole).unwrap();
        fs::rename(&other, &path).unwrap();
        self.world.start_daemon();
        whole
    }

    /// Puts it back.
    fn restore(&self, name: &str, whole: &Path) {
        fs::rename(whole, self.dir().join(name)).unwrap();
    }

    /// What every use of the snapshot is answered with; nothing is made or lost by any.
    fn refusals(&self) -> Vec<Answer> {
        let api = self.world.api();
        self.world.sh(&self.sandbox, "true");
        let before = Footprint::of(&self.world);
        let events = || api.get("/v1/events?after=0&limit=1000").text;
        let told = events();
        let answers = vec![
            api.post("/v1/sandboxes", &json!({ "from": "kept" })),
            api.roll_back(&self.sandbox, &json!({ "snapshot": "kept" })),
        ];
        assert_eq!(Footprint::of(&self.world), before);
        assert_eq!(events(), told, "no sandbox was begun");
        answers
    }

    fn check_corrupt(&self, why: &str) {
        for answer in self.refusals() {
            assert_eq!(
                outcome(&answer),
                "422 corrupt_snapshot",
                "{why}: {}",
                answer.text
            );
            let message = answer.json()["error"]["message"].to_string();
            assert!(
                message.contains(why) && message.contains(&self.kept),
                "{why}: {message}"
            );
        }
    }
}

/// Makes a file something else.
type Change = fn(&Path);

fn flip_a_byte(path: &Path) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[!byte[0]], middle).unwrap();
}

#[test]
fn no_other_account_can_read_a_memory_that_is_kept() {
    let world = World::start();
    let id = world.create();
    let kept = world.ok(["snapshot", &id]);
    from(&world, &kept);
    let v1 = world.state_dir().join("v1");
    for dir in [v1.join("snapshots"), v1.join("materialized")] {
        assert!(!files(&dir).is_empty(), "{}", dir.display());
        let mode = fs::metadata(&dir).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", dir.display());
    }
}

#[test]
fn a_damaged_layer_is_named_before_anything_runs_on_it() {
    let mut damaged = Damaged::new();
    let layers: Vec<_> = files(&damaged.dir())
        .iter()
        .map(|file| file_name(file))
        .filter(|name| name != "manifest")
        .collect();
    let kinds = |name: &str| name.split('.').next().unwrap().to_owned();
    let kinds: BTreeSet<_> = layers.iter().map(|name| kinds(name)).collect();
    let every = ["device-state", "disk", "memory", "network", "pages", "root"];
    assert_eq!(kinds, every.map(str::to_owned).into());
    for layer in &layers {
        let whole = damaged.replace(layer, flip_a_byte);
        damaged.check_corrupt(layer);
        damaged.restore(layer, &whole);
    }
    let shorter = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    };
    let whole = damaged.replace("pages.0", shorter);
    damaged.check_corrupt("pages.0");
    damaged.restore("pages.0", &whole);
    // Whole again, it is as good as before.
    let child = from(&damaged.world, "kept");
    assert_eq!(
        damaged.world.sh(&child, "cat file /dev/shm/memory"),
        "here\nthere"
    );
}

#[test]
fn a_manifest_of_another_version_or_none_is_refused_as_such() {
    let mut damaged = Damaged::new();
    let manifests: [(&str, Change); 3] = [
        ("version 77", |path| {
            let text = fs::read_to_string(path).unwrap();
            fs::write(path, text.replacen(" 2 ", " 77 ", 1)).unwrap();
        }),
        ("checksum", flip_a_byte),
        ("not a Pando manifest", |path| {
            fs::write(path, "garbage").unwrap();
        }),
    ];
    for (why, change) in manifests {
        let whole = damaged.replace("manifest", change);
        damaged.check_corrupt(why);
        // It can be looked at all the same, and removed.
        assert_eq!(show(&damaged.world, "kept")["id"], *damaged.kept);
        damaged.restore("manifest", &whole);
    }
    let child = from(&damaged.world, "kept");
    assert_eq!(
        damaged.world.sh(&child, "cat file /dev/shm/memory"),
        "here\nthere"
    );
    damaged.replace("manifest", |path| fs::write(path, "garbage").unwrap());
    damaged.world.ok(["snapshot", "rm", "kept"]);
    assert!(!damaged.dir().exists());
}

/// Has a manifest say something else, with the checksum of what it says then.
fn rewrite(path: &Path, place: &str, value: &Value) {
    let text = fs::read_to_string(path).unwrap();
    let (head, body) = text.split_once('\n').unwrap();
    let mut body: Value = serde_json::from_str(body).unwrap();
    *body.pointer_mut(place).unwrap() = value.clone();
    let body = serde_json::to_string_pretty(&body).unwrap();
    let (format, _) = head.rsplit_once(' ').unwrap();
    let checksum = blake3::hash(body.as_bytes()).to_hex();
    fs::write(path, format!("{format} {checksum}\n{body}")).unwrap();
}

#[test]
fn a_sandbox_is_not_put_back_onto_another_root_image() {
    let mut damaged = Damaged::new();
    let other = json!("0".repeat(64));
    damaged.replace("manifest", |path| rewrite(path, "/root", &other));
    let to = json!({ "snapshot": "kept" });
    let refused = damaged.world.api().roll_back(&damaged.sandbox, &to);
    assert_eq!(outcome(&refused), "409 incompatible_snapshot");
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("root image: 000000"), "{message}");
    assert_eq!(
        damaged.world.sh(&damaged.sandbox, "cat /dev/shm/memory"),
        "there"
    );
}

#[test]
fn a_snapshot_of_another_machine_names_both_and_gives_its_disk() {
    let mut damaged = Damaged::new();
    let ours = fs::read_to_string(damaged.dir().join("manifest")).unwrap();
    let ours: Value = serde_json::from_str(ours.split_once('\n').unwrap().1).unwrap();
    for (field, theirs) in [("vmm", json!("qemu 1.2.3")), ("cpu_model", json!("abacus"))] {
        let whole = damaged.replace("manifest", |path| {
            rewrite(path, &format!("/machine/{field}"), &theirs);
        });
        for answer in damaged.refusals() {
            assert_eq!(
                outcome(&answer),
                "409 incompatible_snapshot",
                "{}",
                answer.text
            );
            let error = &answer.json()["error"];
            for side in [
                theirs.as_str().unwrap(),
                ours["machine"][field].as_str().unwrap(),
            ] {
                assert!(error["message"].as_str().unwrap().contains(side), "{error}");
            }
            assert!(
                error["hint"].as_str().unwrap().contains("--disk-only"),
                "{error}"
            );
        }
        let child = damaged
            .world
            .ok(["create", "--from", "kept", "--disk-only"]);
        assert_eq!(damaged.world.sh(&child, "cat file; ls /dev/shm"), "here");
        damaged.restore("manifest", &whole);
    }
    // The kernel is in the memory: another one of the host's is no hindrance.
    let kernel = json!("0".repeat(64));
    damaged.replace("manifest", |path| rewrite(path, "/machine/kernel", &kernel));
    let child = from(&damaged.world, "kept");
    assert_eq!(
        damaged.world.sh(&child, "cat file /dev/shm/memory"),
        "here\nthere"
    );
}

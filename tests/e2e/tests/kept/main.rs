//! States that are kept, branched and gone back to: what runs goes on from there exactly, it
//! costs what changed, calls in flight are told what was done, and a damaged state is refused.

mod cost;
mod damage;
mod in_flight;

use pando_testkit::{Answer, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Three that count how often they are asked: a Python process and a shell loop, which have the
/// number in their memory alone, and a file.
const COUNTERS: &str = r#"
mkfifo py.ask py.answer sh.ask sh.answer
echo 0 > file
cat > counter.py <<'END'
import os
ask, n = os.open('py.ask', os.O_RDWR), 0
while os.read(ask, 1):
    n += 1
    with open('py.answer', 'w') as answer:
        print(n, file=answer)
END
setsid python3 counter.py > /dev/null 2>&1 &
setsid sh -c 'exec 3<> sh.ask; n=0; while read line <&3; do n=$((n + 1)); echo $n > sh.answer; done' > /dev/null 2>&1 &
"#;

/// A process that never waits to be asked: it writes each number down as it comes to it.
const TICKER: &str = r#"
cat > ticker.py <<'END'
import time
n = 0
with open('ticks', 'w', buffering=1) as ticks:
    while True:
        n += 1
        print(n, file=ticks)
        time.sleep(0.001)
END
setsid python3 ticker.py > /dev/null 2>&1 &
until test -s ticks; do sleep 0.01; done
"#;

/// Asks all three, once.
fn count(world: &World, id: &str) -> String {
    let ask = "for c in py sh; do echo > $c.ask; cat $c.answer; done; \
               echo $(($(cat file) + 1)) > file; cat file";
    world.sh(id, ask).replace('\n', " ")
}

/// How far the ticker is, once it has gone on; no number is missing and none is there twice.
fn ticks(world: &World, id: &str) -> u32 {
    let said = world.sh(
        id,
        "n=$(wc -l < ticks); until test $(wc -l < ticks) -gt $n; do :; done; \
         awk '$1 != NR { print \"not \" NR \": \" $1; exit 1 } END { print NR }' ticks",
    );
    said.parse().unwrap_or_else(|_| panic!("{said}"))
}

/// A sandbox made from a snapshot.
fn from(world: &World, snapshot: &str) -> String {
    world.ok(["create", "--from", snapshot])
}

/// The ids of the children of a `pando fork`.
fn fork(world: &World, args: &[&str]) -> Vec<String> {
    let said = world.ok(["fork"].iter().chain(args));
    said.lines().map(str::to_owned).collect()
}

/// A snapshot as REST describes it.
fn show(world: &World, snapshot: &str) -> Value {
    let answer = world.api().get(&format!("/v1/snapshots/{snapshot}"));
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// Takes a snapshot and gives the answer.
fn take(world: &World, id: &str, request: &Value) -> Value {
    let answer = world.api().snapshot(id, request);
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()
}

/// Status and code of an answer, as `409 paused`.
fn outcome(answer: &Answer) -> String {
    let body: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    let code = body["error"]["code"].as_str().unwrap_or("-");
    format!("{} {code}", answer.status)
}

#[test]
fn all_that_comes_from_a_snapshot_goes_on_exactly_from_it() {
    let world = World::start();
    let id = world.ok(["create", "--name", "origin"]);
    world.sh(&id, COUNTERS);
    assert_eq!(count(&world, &id), "1 1 1");
    let kept = world.ok(["snapshot", &id, "--name", "kept"]);
    assert_eq!(count(&world, &id), "2 2 2", "the original goes on");
    let forked = fork(&world, &[&id, "-n", "4"]);
    assert_eq!(forked.len(), 4);
    assert_eq!(count(&world, &id), "3 3 3", "the parent goes on");
    for child in &forked {
        assert_eq!(count(&world, child), "3 3 3");
    }
    let made = [from(&world, &kept), from(&world, "kept")];
    for child in &made {
        assert_eq!(count(&world, child), "2 2 2");
    }
    // Each has memory and files of its own.
    assert_eq!(count(&world, &made[0]), "3 3 3");
    world.ok(["rollback", "origin", "kept"]);
    assert_eq!(count(&world, &id), "2 2 2");
    world.ok(["pause", "origin"]);
    world.ok(["resume", "origin"]);
    assert_eq!(count(&world, &id), "3 3 3");

    world.ok(["rm", &id]);
    assert_eq!(count(&world, &from(&world, "kept")), "2 2 2");
    world.ok(["template", "rm", "base"]);
    assert_eq!(count(&world, &from(&world, "kept")), "2 2 2");
}

#[test]
fn a_process_that_never_rests_loses_nothing_and_does_nothing_twice() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, TICKER);
    let before = ticks(&world, &id);
    world.ok(["snapshot", &id, "--name", "kept"]);
    let after = ticks(&world, &id);
    assert!(after > before);
    let mut children = fork(&world, &[&id, "-n", "2"]);
    children.push(from(&world, "kept"));
    for child in &children {
        assert!(ticks(&world, child) > before);
    }
    while ticks(&world, &id) < after + 2000 {}
    world.ok(["rollback", &id, "kept"]);
    let back = ticks(&world, &id);
    assert!(
        before < back && back < after + 2000,
        "{before} {after} {back}"
    );
}

#[test]
fn a_sandbox_stays_who_it_is_and_its_children_are_others() {
    let world = World::start();
    let id = world.ok([
        "create", "--name", "web", "-e", "A=1", "-e", "B=1", "-l", "of=web",
    ]);
    let who = |id: &str| world.sh(id, "hostname; cat /etc/machine-id; echo $A $B");
    let described = || {
        let sandbox = world.inspect(&id);
        let fields = ["id", "name", "state", "labels", "created_at", "template"];
        fields.map(|field| sandbox[field].clone())
    };
    let (before, description) = (who(&id), described());
    let kept = world.ok(["snapshot", &id]);
    world.sh(&id, "sudo hostname other");
    for round in [vec!["rollback", "web", &kept], vec!["pause", "web"]] {
        world.ok(&round);
        world.ok(["resume", "web"]);
        assert_eq!(who(&id), before, "{round:?}");
        assert_eq!(described(), description, "{round:?}");
    }
    assert_eq!(world.inspect(&id)["parent"], *kept);

    let mut seen: BTreeSet<String> = before.lines().take(2).map(str::to_owned).collect();
    let mut children = fork(
        &world,
        &["web", "-n", "2", "-e", "B=2", "-e", "C=3", "-l", "of=fork"],
    );
    children.push(world.ok(["create", "--from", &kept, "-e", "B=2", "-l", "of=fork"]));
    for child in &children {
        let said = who(child);
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines[0], child);
        for line in &lines[..2] {
            assert!(seen.insert((*line).to_owned()), "two have {line}");
        }
        let sandbox = world.inspect(child);
        assert_eq!(sandbox["labels"], json!({ "of": "fork" }), "{sandbox}");
        assert_eq!(sandbox["parent"], *kept, "{sandbox}");
        assert_eq!(sandbox["name"], Value::Null, "{sandbox}");
    }
    assert_eq!(world.sh(&children[1], "echo $A $B $C"), "1 2 3");
    assert_eq!(world.sh(&children[2], "echo $A $B"), "2");
}

fn snapshot_dir(world: &World, id: &str) -> PathBuf {
    world.state_dir().join("v1/snapshots").join(id)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_snapshot_of_the_disk_has_all_that_was_written_and_nothing_that_ran() {
    let world = World::start();
    let id = world.create();
    world.sh(
        &id,
        "echo one > synced; sync; echo two > written; echo three > /dev/shm/memory; \
         setsid sleep 1000 > /dev/null 2>&1 &",
    );
    let kept = take(&world, &id, &json!({ "kind": "disk", "name": "disk" }));
    assert_eq!(
        (&kept["kind"], &kept["dirty_pages"]),
        (&json!("disk"), &json!(0)),
        "{kept}"
    );
    let whole = world.ok(["snapshot", &id]);
    let on_disk = "cat synced written; ls /dev/shm; pgrep -x sleep || echo none";
    assert_eq!(
        world.sh(&id, "cat /dev/shm/memory; pgrep -c -x sleep"),
        "three\n1"
    );
    let child = from(&world, "disk");
    assert_eq!(world.sh(&child, on_disk), "one\ntwo\nnone");
    assert_eq!(world.sh(&child, "hostname"), child);

    // The child of a disk is a sandbox like others.
    world.sh(
        &child,
        "echo four > /dev/shm/memory; rm written; echo five > synced",
    );
    let grandchild = from(&world, &world.ok(["snapshot", &child]));
    assert_eq!(
        world.sh(&grandchild, "cat /dev/shm/memory synced"),
        "four\nfive"
    );

    // The disk of a snapshot with memory.
    let other = world.ok(["create", "--from", &whole, "--disk-only"]);
    assert_eq!(world.sh(&other, on_disk), "one\ntwo\nnone");

    world.sh(&id, "rm synced; sync");
    world.ok(["rollback", &id, "disk"]);
    assert_eq!(world.sh(&id, on_disk), "one\ntwo\nnone");
    assert_eq!(world.sh(&id, "hostname"), id);
    world.ok(["rollback", &id, &whole]);
    assert_eq!(
        world.sh(&id, "cat written /dev/shm/memory; pgrep -c -x sleep"),
        "two\nthree\n1"
    );
}

#[test]
fn a_snapshot_says_what_it_was_given_and_the_tree_what_came_of_what() {
    let world = World::start();
    let one = world.ok(["create", "--name", "one"]);
    let given =
        json!({ "name": "green", "labels": { "tests": "ok", "é": "ü" }, "note": "all\npass ✓" });
    let green = take(&world, &one, &given);
    let id = green["id"].as_str().unwrap().to_owned();
    for (field, value) in given.as_object().unwrap() {
        assert_eq!(green[field], *value);
    }
    assert_eq!(
        (&green["sandbox"], &green["parent"]),
        (&json!(one), &Value::Null)
    );
    for reference in ["green", &id, &id[..8]] {
        assert_eq!(show(&world, reference), green);
    }
    let two = from(&world, "green");
    let red = world.ok([
        "snapshot",
        &two,
        "--name",
        "red",
        "-l",
        "tests=bad",
        "--disk",
    ]);
    assert_eq!(world.ok(["snapshot", "ls", "-q", "-l", "tests=ok"]), id);
    assert_eq!(world.ok(["snapshot", "ls", "-q"]), format!("{id}\n{red}"));
    let three = from(&world, "red");
    let children = fork(&world, &[&two, "-n", "2"]);
    world.ok(["rollback", "one", "green", "--save", "left"]);
    let left = show(&world, "left");
    let fresh = world.ok(["create", "--name", "fresh"]);
    world.ok(["pause", "fresh"]);

    let left = left["id"].as_str().unwrap();
    let expected = [
        "base".to_owned(),
        format!("├─ {id} green (full)"),
        format!("│  ├─ {one} one (running)"),
        format!("│  ├─ {red} red (disk)"),
        format!("│  │  ├─ {two} (running)"),
        format!("│  │  ├─ {three} (running)"),
        "│  │  ├─ <child> (running)".to_owned(),
        "│  │  └─ <child> (running)".to_owned(),
        format!("│  └─ {left} left (full)"),
        format!("└─ {fresh} fresh (paused)"),
    ];
    assert_eq!(drawn(&world, &children), expected);
}

/// The tree as it is drawn, without sizes; which of the children comes first is not known.
fn drawn(world: &World, children: &[String]) -> Vec<String> {
    let mut text = world.ok(["tree"]);
    for child in children {
        text = text.replace(child, "<child>");
    }
    let without_size = |line: &str| match line.split_once(", ") {
        Some((line, _)) => format!("{line})"),
        None => line.to_owned(),
    };
    text.lines().map(without_size).collect()
}

#[test]
fn what_came_from_a_removed_snapshot_keeps_what_it_needs() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, COUNTERS);
    count(&world, &id);
    let first = world.ok(["snapshot", &id, "--name", "first"]);
    let child = from(&world, "first");
    assert_eq!(count(&world, &child), "2 2 2");
    world.ok(["snapshot", &child, "--name", "second"]);
    world.ok(["snapshot", "rm", "first"]);
    assert!(!snapshot_dir(&world, &first).exists());

    assert_eq!(count(&world, &child), "3 3 3");
    world.ok(["pause", &child]);
    world.ok(["resume", &child]);
    assert_eq!(count(&world, &child), "4 4 4");
    world.ok(["snapshot", &child, "--name", "third"]);
    let grandchild = from(&world, "second");
    assert_eq!(count(&world, &grandchild), "3 3 3");
    let forked = fork(&world, &[&grandchild]);
    assert_eq!(count(&world, &forked[0]), "4 4 4");
    world.ok(["rm", &id]);
    world.ok(["snapshot", "rm", "second"]);
    world.ok(["rollback", &grandchild, "third"]);
    assert_eq!(count(&world, &grandchild), "5 5 5");

    world.ok(["snapshot", "rm", "third"]);
    world.ok(["rm", &child, &grandchild, &forked[0]]);
    let usage: Value = serde_json::from_str(&world.ok(["df", "--json"])).unwrap();
    for what in ["snapshots_bytes", "sandboxes_bytes"] {
        assert_eq!(usage[what], 0, "{usage}");
    }
    for dir in ["snapshots", "sandboxes"] {
        let left = files(&world.state_dir().join("v1").join(dir));
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn pause_and_resume_lose_nothing_however_often() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, TICKER);
    let mut last = ticks(&world, &id);
    for round in 1..=20 {
        world.ok(["pause", &id]);
        assert_eq!(world.processes(), BTreeSet::new(), "it costs no process");
        world.ok(["resume", &id]);
        if [1, 2, 20].contains(&round) {
            let now = ticks(&world, &id);
            assert!(now > last, "round {round}: {last}, then {now}");
            last = now;
        }
    }
    assert_eq!(world.inspect(&id)["state"], "running");
    assert_eq!(world.api().resume(&id).status, 200, "it runs already");
    assert_eq!(world.api().pause(&id).status, 200);
    assert_eq!(world.inspect(&id)["state"], "paused");
    assert_eq!(outcome(&world.api().pause(&id)), "409 wrong_state");
    let used = files(&snapshot_of_a_pause(&world));
    assert!(!used.is_empty());
    world.ok(["rm", &id]);
    assert!(files(&world.state_dir().join("v1/snapshots")).is_empty());
}

/// The only snapshot, which a paused sandbox is in.
fn snapshot_of_a_pause(world: &World) -> PathBuf {
    let mut all = files(&world.state_dir().join("v1/snapshots"));
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

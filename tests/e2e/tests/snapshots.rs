//! States that are kept, branched and gone back to: what runs goes on from there exactly, it
//! costs what changed, calls in flight are told what was done, and a damaged state is refused.

use pando_testkit::{Answer, Footprint, Options, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

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

/// Calls that are under way in a sandbox.
struct InFlight<'s> {
    exec: ScopedJoinHandle<'s, Answer>,
    stream: Child,
    upload: TcpStream,
}

/// What came of them.
struct CameOf {
    exec: Answer,
    /// Exit code of `pando exec`, and all that it wrote.
    stream: (i32, String),
    /// Status line and body.
    upload: String,
}

const UPLOAD_BYTES: usize = 8 << 20;

impl<'s> InFlight<'s> {
    /// Begins an exec and a stream, which wait to be told to go on, and an upload that sends
    /// half of its bytes. When this returns the guest is at work on all of them.
    fn begin(scope: &'s Scope<'s, '_>, world: &'s World, id: &'s str) -> Self {
        world.sh(id, "rm -f begun one two upload; mkfifo begun one two");
        let exec = scope.spawn(move || {
            let waits = json!({ "shell": "echo > begun; cat one" });
            world
                .api()
                .post(&format!("/v1/sandboxes/{id}/exec"), &waits)
        });
        world.sh(id, "cat begun");
        let mut stream = world
            .command(["exec", id, "--", "sh", "-c", "echo begun; cat two"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(stream.stdout.as_mut().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        let upload = begin_upload(world, id);
        world.sh(id, "until test -s upload; do sleep 0.01; done");
        Self {
            exec,
            stream,
            upload,
        }
    }

    /// Lets them end by themselves.
    fn let_go(&mut self, world: &World, id: &str) {
        world.sh(id, "echo first > one; echo second > two");
        self.upload.write_all(&vec![7; UPLOAD_BYTES / 2]).unwrap();
    }

    fn end(mut self) -> CameOf {
        let mut upload = String::new();
        // What was answered before the connection broke is an answer.
        drop(self.upload.read_to_string(&mut upload));
        let exec = self.exec.join().unwrap();
        let output = self.stream.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        CameOf {
            exec,
            stream: (
                output.status.code().unwrap_or(-1),
                String::from_utf8_lossy(&said).into_owned(),
            ),
            upload,
        }
    }
}

/// An upload of which half is sent.
fn begin_upload(world: &World, id: &str) -> TcpStream {
    let address = world.url().replace("http://", "");
    let mut upload = TcpStream::connect(&address).unwrap();
    upload
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let head = format!(
        "PUT /v1/sandboxes/{id}/files?path=/home/user/upload HTTP/1.1\r\nHost: {address}\r\n\
         Authorization: Bearer {}\r\nContent-Length: {UPLOAD_BYTES}\r\nConnection: close\r\n\r\n",
        world.key()
    );
    upload.write_all(head.as_bytes()).unwrap();
    upload.write_all(&vec![7; UPLOAD_BYTES / 2]).unwrap();
    upload
}

#[test]
fn calls_in_flight_are_told_what_cut_them_off() {
    let world = World::start();
    let id = world.create();
    let kept = world.ok(["snapshot", &id]);
    let acts = [
        (vec!["rollback", &id, &kept], None, "rolled_back"),
        (vec!["pause", &id], Some("resume"), "paused"),
        (vec!["stop", &id], Some("start"), "stopped"),
        (vec!["rm", &id], None, "removed"),
    ];
    let mut wrong = Vec::new();
    for (act, undo, code) in acts {
        let came_of = std::thread::scope(|scope| {
            let calls = InFlight::begin(scope, &world, &id);
            world.ok(&act);
            calls.end()
        });
        let words = code.replace('_', " ");
        let (exit, said) = &came_of.stream;
        if outcome(&came_of.exec) != format!("409 {code}") {
            wrong.push(format!("{code}, exec: {}", came_of.exec.text));
        }
        if *exit != 125 || !said.contains(&words) {
            wrong.push(format!("{code}, stream: exit {exit}, {said}"));
        }
        if !came_of.upload.starts_with("HTTP/1.1 409") || !came_of.upload.contains(code) {
            wrong.push(format!("{code}, upload: {}", came_of.upload));
        }
        if let Some(undo) = undo {
            world.ok([undo, &id]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn calls_in_flight_go_on_through_a_snapshot_and_a_fork() {
    let world = World::start();
    let id = world.create();
    for act in [
        vec!["snapshot", &id],
        vec!["snapshot", &id, "--disk"],
        vec!["fork", &id],
    ] {
        let came_of = std::thread::scope(|scope| {
            let mut calls = InFlight::begin(scope, &world, &id);
            world.ok(&act);
            calls.let_go(&world, &id);
            calls.end()
        });
        let answer = came_of.exec.json();
        assert_eq!(
            (&answer["exit_code"], &answer["stdout"]),
            (&json!(0), &json!("first\n")),
            "{act:?}: {answer}"
        );
        assert_eq!(came_of.stream, (0, "second\n".to_owned()), "{act:?}");
        assert!(
            came_of.upload.starts_with("HTTP/1.1 200"),
            "{act:?}: {}",
            came_of.upload
        );
        assert_eq!(
            world.sh(&id, "stat -c %s upload; tr -d '\\7' < upload | wc -c"),
            format!("{UPLOAD_BYTES}\n0")
        );
    }
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

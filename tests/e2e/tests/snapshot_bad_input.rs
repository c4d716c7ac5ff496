//! What may be got wrong about snapshots, forks, rollback and pause: each row is tried over
//! REST or the command line and has the status or exit code that stands beside it, its exact
//! words are in `snapshots/`, and nothing is left behind or changed by any.

use pando_testkit::{Answer, Api, Footprint, World};
use serde_json::{Value, json};

/// Ids that nobody has.
const NO_SANDBOX: &str = "saaaaaaaaaaaaaaaaaaa";
const NO_SNAPSHOT: &str = "naaaaaaaaaaaaaaaaaaa";

/// A world with a sandbox in each state and snapshots that do not fit it.
struct Stage {
    world: World,
    /// Runs; it is also called `web`.
    running: String,
    stopped: String,
    paused: String,
    /// A snapshot of `running`; it is also called `taken`.
    kept: String,
    /// A snapshot of 2 CPUs and 1024 MiB; its sandbox is gone.
    other_size: String,
}

impl Stage {
    fn set() -> Self {
        let world = World::start();
        let running = world.ok(["create", "--name", "web"]);
        let stopped = world.create();
        world.ok(["stop", &stopped]);
        let paused = world.create();
        world.ok(["pause", &paused]);
        let kept = world.ok(["snapshot", &running, "--name", "taken"]);
        let other_size = snapshot_of_a_passing(&world, &["--cpus", "2", "--memory", "1024"]);
        // A warm connection and a first exec, so that what they keep is there before.
        world.sh(&running, "true");
        Self {
            world,
            running,
            stopped,
            paused,
            kept,
            other_size,
        }
    }

    fn ids(&self) -> [&str; 5] {
        [
            &self.running,
            &self.stopped,
            &self.paused,
            &self.kept,
            &self.other_size,
        ]
    }
}

/// The snapshot of a sandbox that is removed at once.
fn snapshot_of_a_passing(world: &World, flags: &[&str]) -> String {
    let sandbox = world.ok(["create"].iter().chain(flags));
    let snapshot = world.ok(["snapshot", &sandbox]);
    world.ok(["rm", &sandbox]);
    snapshot
}

/// What is tried, the status and code that are expected, and what was answered.
type Row<'a> = (&'a str, &'a str, Answer);

/// `409 wrong_state`.
fn status_and_code(answer: &Answer) -> String {
    let body: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    let code = body["error"]["code"].as_str().unwrap_or("-");
    format!("{} {code}", answer.status)
}

/// All that is not as expected, told together.
fn check(rows: &[Row<'_>]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter(|(_, expected, answer)| status_and_code(answer) != *expected)
        .map(|(row, expected, answer)| {
            format!("{row}: {expected} was expected: {}", answer.refusal())
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rest_refuses_what_cannot_be_done_with_a_snapshot() {
    let stage = Stage::set();
    let before = Footprint::of(&stage.world);
    let mut rows = unknown_rows(&stage);
    rows.extend(state_rows(&stage));
    rows.extend(take_rows(&stage));
    rows.extend(fork_rows(&stage));
    rows.extend(rollback_rows(&stage));
    rows.extend(create_rows(&stage));
    rows.extend(listing_rows(&stage));
    rows.extend(raw_rows(&stage));
    check(&rows);
    assert_eq!(Footprint::of(&stage.world), before);
    let table: String = rows
        .iter()
        .map(|(row, _, answer)| format!("{row}: {}\n", answer.refusal()))
        .collect();
    insta::assert_snapshot!(stage.world.filtered(&stage.ids(), &table));
}

/// Nothing of that id is there, or it is of another kind.
#[rustfmt::skip]
fn unknown_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let to = |snapshot: &str| json!({ "snapshot": snapshot });
    let snapshot = |reference: &str| format!("/v1/snapshots/{reference}");
    let no_sandbox = "404 sandbox_not_found";
    let no_snapshot = "404 snapshot_not_found";
    vec![
        ("snapshot nobody", no_sandbox, api.snapshot(NO_SANDBOX, &json!({}))),
        ("fork nobody", no_sandbox, api.fork(NO_SANDBOX, &json!({}))),
        ("roll nobody back", no_sandbox, api.roll_back(NO_SANDBOX, &to(&stage.kept))),
        ("pause nobody", no_sandbox, api.pause(NO_SANDBOX)),
        ("resume nobody", no_sandbox, api.resume(NO_SANDBOX)),
        ("snapshot a snapshot", no_sandbox, api.snapshot(&stage.kept, &json!({}))),
        ("fork a snapshot by its name", no_sandbox, api.fork("taken", &json!({}))),
        ("remove a snapshot as a sandbox", no_sandbox, api.delete(&format!("/v1/sandboxes/{}", stage.kept))),
        ("roll back to nothing", no_snapshot, api.roll_back(&stage.running, &to(NO_SNAPSHOT))),
        ("roll back to no name", no_snapshot, api.roll_back(&stage.running, &to(""))),
        ("roll back to a path", no_snapshot, api.roll_back(&stage.running, &to("../taken"))),
        ("roll back to a sandbox", no_snapshot, api.roll_back(&stage.running, &to(&stage.stopped))),
        ("show nothing", no_snapshot, api.get(&snapshot(NO_SNAPSHOT))),
        ("show a sandbox as a snapshot", no_snapshot, api.get(&snapshot(&stage.running))),
        ("show a path", no_snapshot, api.get(&snapshot("..%2f..%2fetc"))),
        ("show the beginning of no id", no_snapshot, api.get(&snapshot("n"))),
        ("remove nothing", no_snapshot, api.delete(&snapshot(NO_SNAPSHOT))),
        ("remove a sandbox as a snapshot", no_snapshot, api.delete(&snapshot("web"))),
    ]
}

/// Not in this state.
#[rustfmt::skip]
fn state_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let (stopped, paused) = (&stage.stopped, &stage.paused);
    let wrong = "409 wrong_state";
    let disk = json!({ "kind": "disk" });
    vec![
        ("snapshot what is stopped", wrong, api.snapshot(stopped, &json!({}))),
        ("snapshot what is paused", wrong, api.snapshot(paused, &json!({}))),
        ("snapshot the disk of what is paused", wrong, api.snapshot(paused, &disk)),
        ("fork what is stopped", wrong, api.fork(stopped, &json!({}))),
        ("fork what is paused", wrong, api.fork(paused, &json!({}))),
        ("pause what is stopped", wrong, api.pause(stopped)),
        ("pause what is paused", wrong, api.pause(paused)),
        ("resume what is stopped", wrong, api.resume(stopped)),
        ("run in what is paused", wrong, api.post(&format!("/v1/sandboxes/{paused}/exec"), &json!({ "argv": ["true"] }))),
        ("read a file of what is paused", wrong, api.get(&format!("/v1/sandboxes/{paused}/files?path=/etc/hosts"))),
    ]
}

/// A snapshot that cannot be as it is described.
#[rustfmt::skip]
fn take_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let take = |request: Value| api.snapshot(&stage.running, &request);
    let (invalid, malformed) = ("400 invalid_request", "400 malformed_json");
    vec![
        ("snapshot name taken", "409 snapshot_name_taken", take(json!({ "name": "taken" }))),
        ("reserved snapshot name", invalid, take(json!({ "name": "ls" }))),
        ("snapshot name like an id", invalid, take(json!({ "name": NO_SNAPSHOT }))),
        ("snapshot name like a sandbox's id", invalid, take(json!({ "name": NO_SANDBOX }))),
        ("snapshot name of 200 characters", invalid, take(json!({ "name": "x".repeat(200) }))),
        ("snapshot name that is a path", invalid, take(json!({ "name": "../x" }))),
        ("empty snapshot name", invalid, take(json!({ "name": "" }))),
        ("snapshot name with a line break", invalid, take(json!({ "name": "a\nb" }))),
        ("a number as a snapshot's name", malformed, take(json!({ "name": 7 }))),
        ("unknown kind", invalid, take(json!({ "kind": "memory" }))),
        ("kind in capitals", invalid, take(json!({ "kind": "Full" }))),
        ("snapshot labels too large", invalid, take(json!({ "labels": { "a": "x".repeat(200_000) } }))),
        ("a label that is no text", malformed, take(json!({ "labels": { "a": 1 } }))),
        ("note too long", invalid, take(json!({ "note": "x".repeat(5000) }))),
        ("a size for a snapshot", malformed, take(json!({ "cpus": 2 }))),
    ]
}

/// Children that cannot be.
#[rustfmt::skip]
fn fork_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let fork = |request: Value| api.fork(&stage.running, &request);
    let (invalid, malformed) = ("400 invalid_request", "400 malformed_json");
    vec![
        ("no children", invalid, fork(json!({ "count": 0 }))),
        ("too many children", invalid, fork(json!({ "count": 1001 }))),
        ("minus one child", malformed, fork(json!({ "count": -1 }))),
        ("many children", malformed, fork(json!({ "count": "many" }))),
        ("a child and a half", malformed, fork(json!({ "count": 1.5 }))),
        ("more children than a number holds", malformed, fork(json!({ "count": 4_294_967_296_u64 }))),
        ("a name for the children", malformed, fork(json!({ "name": "child" }))),
        ("children's variable with =", invalid, fork(json!({ "env": { "A=B": "1" } }))),
        ("children's variable with a zero byte", invalid, fork(json!({ "env": { "A": "a\u{0}b" } }))),
        ("children's environment too large", invalid, fork(json!({ "env": { "A": "x".repeat(200_000) } }))),
        ("children's labels too large", invalid, fork(json!({ "labels": { "a": "x".repeat(200_000) } }))),
    ]
}

/// States that a sandbox cannot be put into.
#[rustfmt::skip]
fn rollback_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let back = |request: Value| api.roll_back(&stage.running, &request);
    let kept = &stage.kept;
    let (invalid, malformed) = ("400 invalid_request", "400 malformed_json");
    vec![
        ("roll back to another size", "409 incompatible_snapshot", back(json!({ "snapshot": stage.other_size }))),
        ("roll what is stopped back to another size", "409 incompatible_snapshot", api.roll_back(&stage.stopped, &json!({ "snapshot": stage.other_size }))),
        ("save under a name that is taken", "409 snapshot_name_taken", back(json!({ "snapshot": kept, "save": "taken" }))),
        ("save under a malformed name", invalid, back(json!({ "snapshot": kept, "save": "../x" }))),
        ("save under a reserved name", invalid, back(json!({ "snapshot": kept, "save": "show" }))),
        ("save, and roll back to nothing", "404 snapshot_not_found", back(json!({ "snapshot": NO_SNAPSHOT, "save": "left" }))),
        ("save, and roll back to another size", "409 incompatible_snapshot", back(json!({ "snapshot": stage.other_size, "save": "left" }))),
        ("roll back to what", malformed, back(json!({}))),
        ("roll back to a number", malformed, back(json!({ "snapshot": 1 }))),
        ("roll back and save, yes", malformed, back(json!({ "snapshot": kept, "save": true }))),
    ]
}

/// Sandboxes that cannot be made from a snapshot.
#[rustfmt::skip]
fn create_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let create = |request: Value| api.post("/v1/sandboxes", &request);
    let kept = &stage.kept;
    let (invalid, malformed) = ("400 invalid_request", "400 malformed_json");
    let no_snapshot = "404 snapshot_not_found";
    vec![
        ("create from nothing", no_snapshot, create(json!({ "from": NO_SNAPSHOT }))),
        ("create from no name", no_snapshot, create(json!({ "from": "" }))),
        ("create from a sandbox", no_snapshot, create(json!({ "from": stage.stopped }))),
        ("create from a template as from a snapshot", no_snapshot, create(json!({ "from": "base" }))),
        ("create from a snapshot and a template", invalid, create(json!({ "from": kept, "template": "base" }))),
        ("boot a snapshot", invalid, create(json!({ "from": kept, "start": "boot" }))),
        ("the disk of nothing", invalid, create(json!({ "disk_only": true }))),
        ("the disk of a template", invalid, create(json!({ "disk_only": true, "template": "base" }))),
        ("disk only, yes", malformed, create(json!({ "from": kept, "disk_only": "yes" }))),
        ("create from a snapshot with CPUs not in the list", invalid, create(json!({ "from": kept, "cpus": 3 }))),
        ("create from a snapshot under a sandbox's name", "409 name_taken", create(json!({ "from": kept, "name": "web" }))),
    ]
}

/// Listings, and methods that are not taken.
#[rustfmt::skip]
fn listing_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let (invalid, method) = ("400 invalid_request", "405 method_not_allowed");
    vec![
        ("a label without a value", invalid, api.get("/v1/snapshots?label=a")),
        ("a label without a name", invalid, api.get("/v1/snapshots?label=%3D1")),
        ("one good label and one bad", invalid, api.get("/v1/snapshots?label=a%3D1&label=b")),
        ("an unknown parameter", invalid, api.get("/v1/snapshots?lable=a%3D1")),
        ("snapshot of no sandbox", method, api.post("/v1/snapshots", &json!({ "name": "x" }))),
        ("rename a snapshot", method, api.send("PATCH", "/v1/snapshots/taken", &[], b"")),
        ("remove the tree", method, api.delete("/v1/tree")),
        ("fork by GET", method, api.get(&format!("/v1/sandboxes/{}/fork", stage.running))),
    ]
}

/// Requests that are wrong below JSON, or come from somebody who may not.
#[rustfmt::skip]
fn raw_rows(stage: &Stage) -> Vec<Row<'_>> {
    let api = stage.world.api();
    let nobody = Api::new(stage.world.url(), None);
    let snapshots = format!("/v1/sandboxes/{}/snapshots", stage.running);
    let rollback = format!("/v1/sandboxes/{}/rollback", stage.running);
    let to = json!({ "snapshot": stage.kept });
    let json = ("content-type", "application/json");
    vec![
        ("a body that is not JSON", "400 malformed_json", api.send("POST", &snapshots, &[json], b"name=x")),
        ("a body that breaks off", "400 malformed_json", api.send("POST", &snapshots, &[json], b"{\"name\": \"x")),
        ("a body that is not UTF-8", "400 malformed_json", api.send("POST", &snapshots, &[json], b"{\"note\": \"\xff\"}")),
        ("a body that is a list", "400 malformed_json", api.send("POST", &rollback, &[json], b"[1]")),
        ("a body that is a form", "415 unsupported_media_type", api.send("POST", &snapshots, &[("content-type", "application/x-www-form-urlencoded")], b"name=x")),
        ("oversized body", "413 body_too_large", api.send("POST", &rollback, &[json], &vec![b' '; 13 << 20])),
        ("roll back without a body", "400 malformed_json", api.send("POST", &rollback, &[], b"")),
        ("fork without a key", "401 unauthorized", nobody.fork(&stage.running, &json!({}))),
        ("list without a key", "401 unauthorized", nobody.get("/v1/snapshots")),
        ("roll back from a page of another site", "403 foreign_origin", api.send("POST", &rollback, &[json, ("origin", "http://evil.example")], to.to_string().as_bytes())),
    ]
}

#[test]
fn a_snapshot_gives_its_size_and_another_is_refused_by_naming_both() {
    let stage = Stage::set();
    let before = Footprint::of(&stage.world);
    for (field, asked, has) in [("cpus", 1, 2), ("memory_mib", 512, 1024)] {
        let wanted = json!({ "from": stage.other_size, field: asked });
        let refused = stage.world.api().post("/v1/sandboxes", &wanted);
        assert_eq!(status_and_code(&refused), "400 invalid_request");
        let message = refused.json()["error"]["message"].to_string();
        for part in [field, &asked.to_string(), &has.to_string()] {
            assert!(message.contains(part), "{message}");
        }
    }
    assert_eq!(Footprint::of(&stage.world), before);
    let wanted = json!({ "from": stage.other_size, "cpus": 2, "memory_mib": 1024 });
    let made = stage.world.api().post("/v1/sandboxes", &wanted);
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(made.json()["parent"], *stage.other_size);
}

#[test]
fn a_snapshot_is_removed_once_and_its_name_is_free_again() {
    let world = World::start();
    let api = world.api();
    let sandbox = world.create();
    let kept = world.ok(["snapshot", &sandbox, "--name", "kept"]);
    let path = format!("/v1/snapshots/{kept}");
    assert_eq!(api.delete(&path).status, 204);
    let from = json!({ "from": "kept" });
    for again in [
        api.delete(&path),
        api.delete("/v1/snapshots/kept"),
        api.get(&path),
        api.roll_back(&sandbox, &json!({ "snapshot": kept })),
        api.post("/v1/sandboxes", &from),
    ] {
        assert_eq!(status_and_code(&again), "404 snapshot_not_found");
    }
    let ran = world.run(["snapshot", "rm", &kept]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert!(ran.stderr.contains("not found"), "{ran:?}");
    // One that is there goes, though another is not.
    let second = world.ok(["snapshot", &sandbox, "--name", "kept"]);
    let ran = world.run(["snapshot", "rm", &kept, "kept"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "kept\n"), "{ran:?}");
    assert_eq!(
        status_and_code(&api.get(&format!("/v1/snapshots/{second}"))),
        "404 snapshot_not_found"
    );
    assert_eq!(world.sh(&sandbox, "echo runs"), "runs");
}

#[test]
fn an_empty_body_is_a_request_without_wishes() {
    let world = World::start();
    let sandbox = world.create();
    let api = world.api();
    let taken = api.send(
        "POST",
        &format!("/v1/sandboxes/{sandbox}/snapshots"),
        &[],
        b"",
    );
    assert_eq!(taken.status, 201, "{}", taken.text);
    assert_eq!(taken.json()["kind"], "full");
    assert_eq!(taken.json()["name"], Value::Null);
    let forked = api.send("POST", &format!("/v1/sandboxes/{sandbox}/fork"), &[], b"");
    assert_eq!(forked.status, 201, "{}", forked.text);
    let children = forked.json()["children"].clone();
    assert_eq!(children.as_array().map(Vec::len), Some(1), "{children}");
    // Not paused, and let go on all the same: it is as it was wanted.
    assert_eq!(api.resume(&sandbox).status, 200);
}

#[test]
fn the_command_line_refuses_what_cannot_be_done_with_a_snapshot() {
    let stage = Stage::set();
    let before = Footprint::of(&stage.world);
    let (stopped, paused) = (&*stage.stopped, &*stage.paused);
    let size = &*stage.other_size;
    let long = "x".repeat(200);
    #[rustfmt::skip]
    let rows: Vec<(&str, u8, Vec<&str>)> = vec![
        ("snapshot nothing", 2, vec!["snapshot"]),
        ("snapshot nobody", 1, vec!["snapshot", NO_SANDBOX]),
        ("snapshot what is stopped", 1, vec!["snapshot", stopped]),
        ("snapshot what is paused", 1, vec!["snapshot", paused]),
        ("snapshot before a command", 2, vec!["snapshot", "web", "ls"]),
        ("snapshot name taken", 1, vec!["snapshot", "web", "--name", "taken"]),
        ("reserved snapshot name", 1, vec!["snapshot", "web", "--name", "ls"]),
        ("snapshot name of 200 characters", 1, vec!["snapshot", "create", "web", "--name", &long]),
        ("malformed label", 2, vec!["snapshot", "web", "--label", "novalue"]),
        ("show nothing", 1, vec!["snapshot", "show", NO_SNAPSHOT]),
        ("show a sandbox", 1, vec!["snapshot", "show", "web"]),
        ("rm nothing", 2, vec!["snapshot", "rm"]),
        ("rm a stranger", 1, vec!["snapshot", "rm", NO_SNAPSHOT]),
        ("rm a sandbox", 1, vec!["snapshot", "rm", "web"]),
        ("rm a snapshot as a sandbox", 1, vec!["rm", "taken"]),
        ("fork nobody", 1, vec!["fork", NO_SANDBOX]),
        ("fork what is stopped", 1, vec!["fork", stopped]),
        ("no children", 2, vec!["fork", "web", "-n", "0"]),
        ("too many children", 2, vec!["fork", "web", "-n", "1001"]),
        ("many children", 2, vec!["fork", "web", "-n", "many"]),
        ("roll back to what", 2, vec!["rollback", "web"]),
        ("roll nobody back", 1, vec!["rollback", NO_SANDBOX, "taken"]),
        ("roll back to nothing", 1, vec!["rollback", "web", NO_SNAPSHOT]),
        ("roll back to another size", 1, vec!["rollback", "web", size]),
        ("save under a name that is taken", 1, vec!["rollback", "web", "taken", "--save", "taken"]),
        ("pause nobody", 1, vec!["pause", NO_SANDBOX]),
        ("pause what is paused", 1, vec!["pause", paused]),
        ("resume what is stopped", 1, vec!["resume", stopped]),
        ("resume nothing", 2, vec!["resume"]),
        ("create from nothing", 1, vec!["create", "--from", NO_SNAPSHOT]),
        ("create from a snapshot and a template", 2, vec!["create", "--from", "taken", "-t", "base"]),
        ("the disk of nothing", 2, vec!["create", "--disk-only"]),
        ("run from nothing", 125, vec!["run", "--from", NO_SNAPSHOT, "--", "true"]),
        ("run in what is paused", 125, vec!["exec", paused, "true"]),
    ];
    let mut table = String::new();
    let mut wrong = Vec::new();
    for (row, code, args) in &rows {
        let ran = stage.world.run(args);
        if ran.code == i32::from(*code) {
            table += &format!("# {row}\n{}\n", ran.refusal());
        } else {
            wrong.push(format!("{row}: exit {code} was expected: {ran:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(Footprint::of(&stage.world), before);
    insta::assert_snapshot!(stage.world.filtered(&stage.ids(), &table));
}

//! Clones of one moment: what must differ in each, what must go on in each, and that what
//! the host had swapped out is there too.

use pando_testkit::{Answer, SwapFile, World};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// Draws, reads clocks and waits for signals without a pause; see its own words.
const SPIN: &str = include_str!("../guest/spin.py");

/// Programs in the middle of something; see its own words.
const BUSY: &str = include_str!("../guest/busy.py");

/// What [`SPIN`] draws from.
const SOURCES: [&str; 6] = [
    "getrandom",
    "system-call",
    "urandom",
    "kernel-uuid",
    "secrets",
    "uuid4",
];

/// Where programs tell what they saw.
const TOLD: &str = "/dev/shm/told";

/// How far a clone's clock may be from the host's, in seconds.
const CLOCK_TOLERANCE: f64 = 0.05;

/// Seconds; a clock's error is known no better than this.
const CLOCK_PRECISION: f64 = 0.06;

fn json_of(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text);
    answer.json()
}

fn snapshot(world: &World, id: &str) -> String {
    let taken = json_of(&world.api().snapshot(id, &json!({})), 201);
    assert_eq!(taken["clean"], true, "{taken}");
    taken["id"].as_str().unwrap().to_owned()
}

/// The children, and the seconds after which the parent ran on for sure.
fn fork(world: &World, id: &str, count: usize) -> (Vec<String>, f64) {
    let forked = json_of(&world.api().fork(id, &json!({ "count": count })), 201);
    let children: Vec<String> = forked["children"]
        .as_array()
        .unwrap()
        .iter()
        .map(|child| {
            child["sandbox"]["id"]
                .as_str()
                .unwrap_or_else(|| panic!("{child}"))
        })
        .map(str::to_owned)
        .collect();
    assert_eq!(children.len(), count, "{forked}");
    (children, forked["durable_ms"].as_f64().unwrap() / 1000.0)
}

fn from_snapshot(world: &World, snapshot: &str) -> String {
    world.ok(["create", "--from", snapshot])
}

fn roll_back(world: &World, id: &str, snapshot: &str) {
    json_of(
        &world.api().roll_back(id, &json!({ "snapshot": snapshot })),
        200,
    );
}

/// Puts a program into a sandbox and starts it.
fn start_program(world: &World, id: &str, program: &str) {
    let put = world.api().put(
        &format!("/v1/sandboxes/{id}/files?path=/tmp/program.py"),
        program.as_bytes(),
    );
    assert!((200..300).contains(&put.status), "{}", put.text);
    world.sh(
        id,
        "setsid python3 /tmp/program.py >/tmp/program.out 2>&1 </dev/null &",
    );
}

/// Waits inside the sandbox until programs have told all of these.
fn await_told(world: &World, id: &str, names: &[&str]) {
    let all = names.join(" ");
    let line = format!(
        "for name in {all}; do for i in $(seq 600); do [ -e {TOLD}/$name ] && break; sleep 0.1; done; \
         [ -e {TOLD}/$name ] || echo $name; done"
    );
    let missing = world.sh(id, &line);
    if !missing.is_empty() {
        let output = world.sh(id, "cat /tmp/program.out; ps ax");
        panic!("{id} did not tell {missing}: {output}");
    }
}

/// What a program has told, from a file of any length.
fn told(world: &World, id: &str, name: &str) -> Value {
    let file = world
        .api()
        .get(&format!("/v1/sandboxes/{id}/files?path={TOLD}/{name}"));
    json_of(&file, 200)
}

fn host_seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// Between which two numbers of seconds the guest's wall clock is ahead of the host's.
fn clock_error(world: &World, id: &str) -> (f64, f64) {
    let mut measures = (0..100).map(|_| {
        let before = host_seconds();
        let guest: f64 = world.sh(id, "date +%s.%N").parse().unwrap();
        (guest - host_seconds(), guest - before)
    });
    measures
        .find(|(least, most)| most - least < CLOCK_PRECISION)
        .expect("an exec that is quick enough to tell the time by")
}

/// What a clone's programs saw right after the thaw, and what it is called.
struct Seen {
    id: String,
    values: BTreeMap<&'static str, Vec<String>>,
    /// Host name and machine id.
    identity: Vec<String>,
    epoch: String,
    /// What the hook wrote: an epoch for each time that it ran.
    hook: String,
    clock: Value,
    clock_error: (f64, f64),
    blocked: Value,
    caught: Value,
}

impl Seen {
    fn in_clone(world: &World, id: &str) -> Self {
        await_told(world, id, &SOURCES);
        await_told(world, id, &["clock", "blocked", "caught"]);
        Self {
            id: id.to_owned(),
            values: SOURCES
                .map(|source| (source, values(&told(world, id, source))))
                .into(),
            identity: identity(world, id),
            epoch: epoch(world, id),
            hook: world.sh(id, "cat /var/tmp/hook"),
            clock: told(world, id, "clock"),
            clock_error: clock_error(world, id),
            blocked: told(world, id, "blocked"),
            caught: told(world, id, "caught"),
        }
    }

    fn check(&self) {
        for (source, values) in &self.values {
            assert_eq!(values.len(), 200, "{source} of {}", self.id);
        }
        self.check_clock();
        let epoch = &self.epoch;
        assert_eq!(self.hook, *epoch, "the hook ran once, and saw the epoch");
        assert_eq!(
            self.blocked,
            json!({ "pending": true, "epoch": format!("{epoch}\n") }),
            "the signal and the epoch were there at the first instant"
        );
        assert_eq!(self.caught, json!({ "epoch": format!("{epoch}\n") }));
    }

    fn check_clock(&self) {
        let of = |name: &str| self.clock[name].as_f64().unwrap();
        assert!(
            of("backwards") <= 0.0,
            "the monotonic clock went back: {}",
            self.clock
        );
        // The error now, but for what the clock was set by since the first instant.
        let since = of("latest") - of("after");
        let (least, most) = (self.clock_error.0 - since, self.clock_error.1 - since);
        assert!(
            least <= CLOCK_TOLERANCE && most >= -CLOCK_TOLERANCE,
            "the clock of {} was {least} to {most} s ahead at the first instant: {}",
            self.id,
            self.clock
        );
    }
}

fn values(told: &Value) -> Vec<String> {
    let values = told["values"].as_array().unwrap();
    values
        .iter()
        .map(|value| value.as_str().unwrap().to_owned())
        .collect()
}

fn identity(world: &World, id: &str) -> Vec<String> {
    let words = world.sh(id, "hostname; cat /etc/machine-id");
    words.lines().map(str::to_owned).collect()
}

fn epoch(world: &World, id: &str) -> String {
    let epoch = world.sh(id, "cat /run/pando/epoch");
    assert_eq!(epoch.len(), 16, "{epoch}");
    assert!(
        epoch.bytes().all(|digit| digit.is_ascii_hexdigit()),
        "{epoch}"
    );
    epoch
}

/// What the parent's own processes drew since they were told to remember it.
fn values_of_parent(world: &World, parent: &str, thawed: f64) -> Vec<(&'static str, Vec<String>)> {
    world.sh(parent, "pkill -USR2 '^(draw|wait)-'");
    await_told(world, parent, &SOURCES);
    let tell = |source| {
        let told = told(world, parent, source);
        let until = told["until"].as_f64().unwrap();
        assert!(
            until > thawed,
            "{source} remembers nothing of after the thaw"
        );
        (source, values(&told))
    };
    SOURCES.map(tell).into()
}

/// Runs the same for each, all at once.
fn for_each<T: Send>(ids: &[String], work: impl Fn(&str) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ids.iter().map(|id| scope.spawn(|| work(id))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// A sandbox whose processes spin, with a hook and with a file of a process that is gone.
fn spinning(world: &World) -> String {
    let id = world.create();
    world.sh(
        &id,
        "echo USR1 > /run/pando/notify/4000000
         printf '#!/bin/sh\ncat /run/pando/epoch >> /var/tmp/hook\n' > /tmp/hook
         sudo install -m 755 /tmp/hook /etc/pando/resume.d/50-tell",
    );
    start_program(world, &id, SPIN);
    let ready: Vec<String> = SOURCES
        .iter()
        .chain(&["clock", "blocked", "caught"])
        .map(|name| format!("ready-{name}"))
        .collect();
    await_told(
        world,
        &id,
        &ready.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    // Memory that only the C library's use of the vDSO asks for.
    let droppable = "grep -c '^VmFlags:.* dp' /proc/$(pgrep -x draw-getrandom)/smaps";
    assert_ne!(world.sh(&id, droppable), "0", "getrandom is not the vDSO's");
    id
}

#[test]
fn the_clock_of_the_source_is_right_after_many_pauses() {
    let world = World::start();
    let id = world.create();
    for _ in 0..20 {
        world.ok(["snapshot", &id]);
    }
    let (least, most) = clock_error(&world, &id);
    assert!(
        least < CLOCK_TOLERANCE && most > -CLOCK_TOLERANCE,
        "{least} to {most} s ahead"
    );
}

#[test]
fn what_processes_spin_on_during_a_snapshot_differs_in_every_clone() {
    let world = World::start();
    let parent = spinning(&world);
    let parents_epoch = epoch(&world, &parent);
    let parents_identity = identity(&world, &parent);
    world.sh(&parent, "pkill -HUP '^draw-'");
    let moment = snapshot(&world, &parent);
    let asked = host_seconds();
    let (mut children, durable_s) = fork(&world, &parent, 4);
    let parents_values = values_of_parent(&world, &parent, asked + durable_s);
    parent_was_not_disturbed(&world, &parent, &parents_epoch);
    children.extend([
        from_snapshot(&world, &moment),
        from_snapshot(&world, &moment),
    ]);
    let mut seen = for_each(&children, |id| Seen::in_clone(&world, id));
    for child in &children {
        assert_eq!(
            world.sh(
                child,
                "ls /run/pando/notify | grep -x 4000000 || echo removed"
            ),
            "removed"
        );
        world.ok(["rm", child]);
    }
    roll_back(&world, &parent, &moment);
    let back = Seen::in_clone(&world, &parent);
    assert_eq!(back.identity, parents_identity, "it is the same sandbox");
    let mut names = BTreeSet::from_iter(parents_identity);
    for child in &seen {
        assert_eq!(child.identity[0], child.id);
        for name in &child.identity {
            assert!(names.insert(name.clone()), "two have {name}");
        }
    }
    seen.push(back);
    let mut epochs = BTreeSet::from([parents_epoch]);
    let mut drawn = BTreeMap::new();
    for (source, values) in parents_values {
        remember(&mut drawn, (&parent, source), values);
    }
    for clone in seen {
        clone.check();
        assert!(epochs.insert(clone.epoch), "two have the same epoch");
        for (source, values) in clone.values {
            remember(&mut drawn, (&clone.id, source), values);
        }
    }
}

/// Fails where a value was drawn before, by whomever and from whatever.
fn remember(drawn: &mut BTreeMap<String, String>, (id, source): (&str, &str), values: Vec<String>) {
    for value in values {
        let who = format!("{source} of {id}");
        if let Some(other) = drawn.insert(value.clone(), who.clone()) {
            panic!("{who} and {other} gave {value}");
        }
    }
}

/// A snapshot and a fork are nothing that the parent's programs hear of.
fn parent_was_not_disturbed(world: &World, parent: &str, epoch_before: &str) {
    await_told(world, parent, &["blocked"]);
    assert_eq!(epoch(world, parent), epoch_before);
    assert_eq!(told(world, parent, "blocked"), json!({ "pending": false }));
    let line = format!(
        "ls {TOLD}/caught /var/tmp/hook 2>/dev/null; ls /run/pando/notify | grep -x 4000000"
    );
    assert_eq!(
        world.sh(parent, &line),
        "4000000",
        "no signal, no hook, no tidying"
    );
}

#[test]
fn programs_in_the_middle_of_something_go_on_in_every_clone() {
    let world = World::start();
    let parent = world.create();
    start_program(&world, &parent, BUSY);
    let ready = ["read", "epoll", "select", "repl", "pip"].map(|name| format!("ready-{name}"));
    await_told(&world, &parent, &ready.each_ref().map(String::as_str));
    await_told(&world, &parent, &["committed"]);
    assert_eq!(served(&world, &parent), "served");
    let committed = committed(&world, &parent);
    let moment = snapshot(&world, &parent);
    let (mut all, _) = fork(&world, &parent, 2);
    all.push(from_snapshot(&world, &moment));
    all.push(parent.clone());
    for_each(&all, |id| goes_on(&world, id, committed));
    for child in all.iter().filter(|id| **id != parent) {
        world.ok(["rm", child]);
    }
    roll_back(&world, &parent, &moment);
    goes_on(&world, &parent, committed);
}

/// Feeds what waits, and asks what serves and writes.
fn goes_on(world: &World, id: &str, committed_before: u64) {
    // First, since it also ends the writer, which takes all the time it can get.
    check_rows(world, id, committed_before);
    for name in ["read", "epoll", "select"] {
        world.sh(id, &format!("echo {name}-{id} > /tmp/busy/{name}"));
        await_told(world, id, &[name]);
        assert_eq!(
            world.sh(id, &format!("cat {TOLD}/{name}")),
            format!("{name}-{id}")
        );
    }
    world.sh(id, "touch /tmp/busy/go-on; echo \"kept['answer'] + 1; open('/dev/shm/told/repl-done', 'w').close()\" > /tmp/busy/repl");
    await_told(world, id, &["repl-done"]);
    assert_eq!(world.sh(id, &format!("cat {TOLD}/repl")), "42");
    assert_eq!(served(world, id), "served");
    await_told(world, id, &["pip"]);
    let installed = told(world, id, "pip");
    assert_eq!(
        (&installed[0], &installed[1]),
        (&json!(0), &json!(42)),
        "{installed}"
    );
}

fn served(world: &World, id: &str) -> String {
    world.sh(
        id,
        "curl -sS --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8000/page",
    )
}

fn committed(world: &World, id: &str) -> u64 {
    world
        .sh(id, &format!("cat {TOLD}/committed"))
        .parse()
        .unwrap()
}

/// The writer commits more; killed in the middle, it leaves whole transactions, from the
/// first on.
fn check_rows(world: &World, id: &str, before: u64) {
    let now = committed(world, id);
    assert!(now >= before, "{now} rows, {before} before the snapshot");
    world.sh(id, &format!("for i in $(seq 600); do [ $(cat {TOLD}/committed) -gt {now} ] && break; sleep 0.1; done; pkill -9 -x write_rows"));
    let told = committed(world, id);
    assert!(told > now, "the writer stands still");
    let script = "import sqlite3; d = sqlite3.connect('/tmp/busy/rows.db'); \
        print(d.execute('pragma integrity_check').fetchall(), \
        *d.execute('select count(*), max(number) + 1, sum(square <> number * number) from rows').fetchone())";
    let found = world.sh(id, &format!("python3 -c \"{script}\""));
    let rows: u64 = found.split(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(found, format!("[('ok',)] {rows} {rows} 0"));
    assert!(
        rows >= told && rows.is_multiple_of(20),
        "{rows} rows, {told} committed"
    );
}

#[test]
fn every_spawn_begins_an_epoch_and_nothing_else_does() {
    let world = World::start();
    let id = world.create();
    let first = epoch(&world, &id);
    snapshot(&world, &id);
    assert_eq!(epoch(&world, &id), first, "after a snapshot");
    world.ok(["pause", &id]);
    world.ok(["resume", &id]);
    let second = epoch(&world, &id);
    assert_ne!(second, first, "after a pause");
    world.ok(["stop", &id]);
    world.ok(["start", &id]);
    let third = epoch(&world, &id);
    assert!(third != second && third != first, "after a stop");
    let other = world.create();
    assert!(![first, second, third].contains(&epoch(&world, &other)));
    let listed = world.sh(
        &id,
        "stat -c '%a %U' /run/pando /run/pando/epoch /run/pando/notify",
    );
    assert_eq!(listed, "755 root\n644 root\n1777 root");
}

/// Holds 64 MiB that are all different, and says their checksum; fills the first half anew
/// when it is told to.
const HOLD: &str = "
import hashlib, os, signal
os.makedirs('/dev/shm/told')
held = bytearray(os.urandom(64 << 20))
def tell(*_):
    with open('/dev/shm/told/.sum', 'w') as file: file.write(hashlib.sha256(held).hexdigest())
    os.rename('/dev/shm/told/.sum', '/dev/shm/told/sum')
def fill(*_):
    held[: 32 << 20] = os.urandom(32 << 20)
    tell()
signal.signal(signal.SIGUSR1, tell)
signal.signal(signal.SIGUSR2, fill)
tell()
while True: signal.pause()
";

/// Has the holder say the checksum anew, from what its memory holds now.
fn checksum(world: &World, id: &str, signal: &str) -> String {
    world.sh(id, &format!("rm -f {TOLD}/sum; pkill -{signal} -x python3"));
    await_told(world, id, &["sum"]);
    world.sh(id, &format!("cat {TOLD}/sum"))
}

#[test]
fn pages_that_the_host_has_swapped_out_are_in_the_clone() {
    let world = World::start();
    let swap = SwapFile::on(&world.scratch("swap"), 512);
    let id = world.create();
    start_program(&world, &id, HOLD);
    await_told(&world, &id, &["sum"]);
    // The first snapshot has all of it, the second the half that was written since.
    for (signal, least_mib) in [("USR1", 60), ("USR2", 30)] {
        let expected = checksum(&world, &id, signal);
        let swapped = swap.push_out(world.vmm_pid(&id), "/slot/memory");
        assert!(swapped >= least_mib, "only {swapped} MiB were swapped out");
        let moment = snapshot(&world, &id);
        let clone = from_snapshot(&world, &moment);
        assert_eq!(checksum(&world, &clone, "USR1"), expected);
        world.ok(["rm", &clone]);
    }
    drop(swap);
}

//! Many creates at once, and many one after the other: nobody hangs, nothing is left.

use pando_testkit::{Answer, Footprint, World};
use serde_json::json;
use std::fs;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// How many come at once.
const BURST: usize = 100;

/// All of them, retries included: each is half a second of a CPU without KVM.
const PATIENCE: Duration = Duration::from_secs(280);

/// How one of a burst came to its sandbox.
struct Came {
    /// What its first request was answered with.
    first: u16,
    /// Asked again so often.
    retries: usize,
}

/// Makes a sandbox, asking again as it is told to; uses it and removes it.
fn come(world: &World, begun: Instant) -> Came {
    let api = world.api();
    let mut first = 0;
    let mut retries = 0;
    let made: Answer = loop {
        let answer = api.post("/v1/sandboxes", &json!({}));
        if first == 0 {
            first = answer.status;
        }
        if answer.status == 201 {
            break answer;
        }
        assert_eq!(answer.status, 503, "{}", answer.text);
        let code = answer.json()["error"]["code"].clone();
        assert!(code == "busy" || code == "host_full", "{code}");
        let seconds = answer.header("retry-after").map(str::parse::<u64>);
        let seconds = seconds.expect("a refusal says when").expect("seconds");
        assert!((1..=30).contains(&seconds), "{seconds} s");
        assert!(begun.elapsed() < PATIENCE, "it was never let in");
        std::thread::sleep(Duration::from_secs(seconds));
        retries += 1;
    };
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(world.sh(&id, "echo on"), "on");
    assert_eq!(api.delete(&format!("/v1/sandboxes/{id}")).status, 204);
    Came { first, retries }
}

#[test]
fn a_hundred_creates_at_once_all_come_to_their_sandbox() {
    let world = World::start();
    // What a first sandbox leaves in a daemon is there before.
    come(&world, Instant::now());
    let before = Footprint::of(&world);
    let together = Barrier::new(BURST);
    let begun = Instant::now();
    let all: Vec<Came> = std::thread::scope(|scope| {
        let one = || {
            together.wait();
            come(&world, begun)
        };
        let threads: Vec<_> = (0..BURST).map(|_| scope.spawn(one)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|came| came.expect("it came through")).collect()
    });
    let at_first = all.iter().filter(|came| came.first == 201).count();
    assert!(at_first >= 50, "{at_first} of {BURST} at the first try");
    // The machine that this is for has fewer turns than that, so somebody had to wait.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let retries: usize = all.iter().map(|came| came.retries).sum();
    assert_eq!(retries > 0, at_first < BURST);
    assert!(cpus > 3 || at_first < BURST, "nobody was ever refused");
    assert_eq!(Footprint::of(&world), before);
    let status = world.api().get("/v1/status").json();
    assert_eq!(status["starts_under_way"], 0, "{status}");
}

/// Resident memory of the daemon, in KiB.
fn resident_kib(world: &World) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", world.daemon_pid()));
    let status = status.expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kib.expect("the kernel says it")
}

#[test]
fn rounds_of_create_and_delete_leave_nothing_to_grow() {
    let (first, rounds) = match std::env::var_os("PANDO_TEST_FULL") {
        Some(_) => (50, 1000),
        None => (20, 100),
    };
    let world = World::start();
    let round = || {
        let made = world.api().post("/v1/sandboxes", &json!({}));
        assert_eq!(made.status, 201, "{}", made.text);
        let id = made.json()["id"].as_str().expect("an id").to_owned();
        let path = format!("/v1/sandboxes/{id}");
        assert_eq!(world.api().delete(&path).status, 204);
    };
    // Threads, caches and the allocator come to what they need.
    (0..first).for_each(|_| round());
    let before = (Footprint::of(&world), resident_kib(&world));
    (0..rounds).for_each(|_| round());
    assert_eq!(Footprint::of(&world), before.0);
    let (was, is) = (before.1, resident_kib(&world));
    assert!(
        is <= was + was / 20,
        "the daemon had {was} KiB before {rounds} rounds, and has {is} KiB"
    );
}

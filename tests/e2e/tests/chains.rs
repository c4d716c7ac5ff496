//! Chains of layers do not grow for ever: long ones are made short, and read the same.

use pando_testkit::{Options, World};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// More layers of a kind than this no snapshot has for long.
const LAYERS_MAX: usize = 24;

/// More than this no VM begins with, however quickly its owner goes on.
const SPAWN_LAYERS_MAX: usize = 32;

/// How long a spawn waits for a chain to become short; then it does without.
const SPAWN_PATIENCE: Duration = Duration::from_secs(5);

const ROUNDS: usize = 30;

/// How many layers of the disk and of pages a snapshot's manifest names, if it is still there.
fn layers(manifest: &Path) -> Option<(usize, usize)> {
    let text = std::fs::read_to_string(manifest).ok()?;
    let (_, body) = text.split_once('\n').unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    let count = |kind: &str| body[kind].as_array().unwrap().len();
    Some((count("disks"), count("pages")))
}

/// The manifests of all snapshots.
fn manifests(world: &World) -> Vec<std::path::PathBuf> {
    let dir = world.state_dir().join("v1/snapshots");
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let published = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    published
        .map(|entry| entry.path().join("manifest"))
        .collect()
}

/// Waits until no snapshot has a long chain: that is done in the background, one at a time.
fn await_short(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let chains = manifests(world)
            .into_iter()
            .filter_map(|path| layers(&path));
        let long: Vec<_> = chains
            .filter(|(disks, pages)| *disks.max(pages) > LAYERS_MAX)
            .collect();
        if long.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{long:?}\n{}", world.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a running sandbox is compared with has few layers of pages. Its disk is as it is.
fn assert_parent_is_short(world: &World, id: &str) {
    let parent = world.sandbox_dir(id).join("parent/manifest");
    let (disks, pages) = layers(&parent).unwrap();
    assert_eq!(disks, 2 + ROUNDS);
    assert!(pages <= LAYERS_MAX, "{pages}");
}

/// Nobody waits for the background, so what failed in it is in the log alone.
fn assert_nothing_failed(world: &World) {
    let log = world.log();
    assert!(!log.contains("stays long"), "{log}");
}

/// Leaves a file of 1 MiB on the disk in the place of an older one, a quarter of it over what
/// was in another, and a line in memory.
fn leave_traces(world: &World, id: &str, round: usize) {
    world.sh(
        id,
        &format!(
            "f=file.{}; rm -f $f; head -c 1M /dev/urandom > $f; \
             dd if=$f of=common bs=256K count=1 seek={} conv=notrunc status=none; \
             sha256sum $f > /dev/shm/$f; sha256sum common > /dev/shm/common; \
             echo {round} >> /dev/shm/rounds; sync",
            round % 5,
            round % 3,
        ),
    );
}

/// Every byte that was left until this round is there, read from the disk.
fn check_traces(world: &World, id: &str, rounds: usize) {
    let lines = world.sh(
        id,
        "echo 3 | sudo tee /proc/sys/vm/drop_caches >/dev/null; \
         cat /dev/shm/file.* /dev/shm/common | sha256sum --quiet -c && ls file.* | wc -l && \
         cat /dev/shm/rounds",
    );
    let expected: Vec<String> = std::iter::once(rounds.min(5))
        .chain(1..=rounds)
        .map(|number| number.to_string())
        .collect();
    assert_eq!(lines, expected.join("\n"), "after {rounds} rounds");
}

fn median(mut times: [Duration; 3]) -> Duration {
    times.sort();
    times[1]
}

/// Leaves traces, pauses, and times the resume.
fn timed_round(world: &World, id: &str, round: usize) -> Duration {
    leave_traces(world, id, round);
    world.ok(["pause", id]);
    await_short(world);
    let before = Instant::now();
    world.ok(["resume", id]);
    before.elapsed()
}

#[test]
fn thirty_pauses_lose_nothing_and_the_next_resume_is_as_quick_as_the_third() {
    let world = World::start();
    let old = world.create();
    for round in 1..=ROUNDS {
        leave_traces(&world, &old, round);
        // No time is left for what goes on in the background.
        world.ok(["pause", &old]);
        for (disks, pages) in manifests(&world).iter().filter_map(|path| layers(path)) {
            let most = disks.max(pages);
            assert!(
                most <= SPAWN_LAYERS_MAX + 1,
                "round {round}: {disks} disks, {pages} pages"
            );
        }
        world.ok(["resume", &old]);
    }
    check_traces(&world, &old, ROUNDS);
    // In turns with a young one: what else the machine does, it does to both.
    let young = world.create();
    for round in 1..=2 {
        timed_round(&world, &young, round);
    }
    let pairs = [1, 2, 3].map(|next| {
        let third = timed_round(&world, &young, 2 + next);
        (third, timed_round(&world, &old, ROUNDS + next))
    });
    let third = median(pairs.map(|(third, _)| third));
    let late = median(pairs.map(|(_, late)| late));
    assert!(late < third * 3 / 2, "{pairs:?}");
    check_traces(&world, &old, ROUNDS + 3);
    assert_nothing_failed(&world);
}

#[test]
fn thirty_snapshots_of_a_running_vm_are_what_was_there_at_each() {
    let fault = (
        "PANDO_FAULT".to_owned(),
        "flatten.before_exchange".to_owned(),
    );
    let mut world = World::with(Options {
        env: vec![fault],
        ..Options::default()
    });
    let id = world.create();
    let take = |world: &World, round: usize| {
        leave_traces(world, &id, round);
        world.ok(["snapshot", &id, "--name", &format!("s{round}")]);
    };
    // The template's layer and the bake's, and one for each snapshot.
    let first_long = LAYERS_MAX - 1;
    for round in 1..=first_long {
        take(&world, round);
    }
    await_end(&world);
    world.kill_daemon();
    world.forget_env();
    world.start_daemon();
    // What the dead one did not come to the next one does.
    await_short(&world);
    for round in first_long + 1..=ROUNDS {
        take(&world, round);
    }
    // At once: the last ones are long, and become short meanwhile.
    world.ok(["snapshot", "rm", "s29"]);
    let last = world.ok(["create", "--from", "s30"]);
    check_traces(&world, &last, ROUNDS);
    await_short(&world);
    assert_eq!(
        manifests(&world).len(),
        ROUNDS - 1,
        "the removed one is gone"
    );
    for (name, rounds) in [("s30", ROUNDS), ("s10", 10), ("s23", 23)] {
        let child = world.ok(["create", "--from", name]);
        check_traces(&world, &child, rounds);
    }
    check_traces(&world, &id, ROUNDS);
    assert_parent_is_short(&world, &id);
    // Its own chain is too long to begin with: the resume waits until it is short.
    world.ok(["pause", &id]);
    let before = Instant::now();
    world.ok(["resume", &id]);
    let waited = before.elapsed();
    assert!(waited < SPAWN_PATIENCE, "{waited:?}: it was not made short");
    check_traces(&world, &id, ROUNDS);
    let staged = std::fs::read_dir(world.state_dir().join("v1/snapshots")).unwrap();
    let staged = staged.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.as_encoded_bytes().starts_with(b".staging")
    });
    assert_eq!(staged.count(), 0, "nothing half-made is left");
    assert_nothing_failed(&world);
}

/// Waits until the daemon has died of its fault.
fn await_end(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while world.run(["ls"]).code == 0 {
        assert!(Instant::now() < deadline, "the daemon lives");
        std::thread::sleep(Duration::from_millis(20));
    }
}

//! No whole copies: what it costs to go on from a snapshot does not grow with what was
//! written before it was taken.

use crate::stage::{create_from, entries, remove, remove_all, take};
use pando_testkit::{FileSystem, LoopFs, Options, World};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

/// What was written before a snapshot, in MiB.
const SMALL: u32 = 8;
const LARGE: u32 = 128;

/// How often each is restored.
const ROUNDS: usize = 5;

/// The medians may differ by this much.
const FLAT: f64 = 1.5;

/// What ext4 may take of a processor for a MiB in the first restore. The goal is 1 ms; 1.4 were
/// measured, nearly all of it the host kernel's, which gives QEMU a page for each that is written.
const FIRST_MS_PER_MIB: f64 = 2.0;

fn world_on(fs: &LoopFs, limit_mib: u32) -> World {
    World::with(Options {
        state_dir: Some(fs.state_dir()),
        env: vec![
            ("PANDO_LOG".to_owned(), "info,pando_engine=debug".to_owned()),
            ("PANDO_MATERIALIZED_MIB".to_owned(), limit_mib.to_string()),
        ],
        ..Options::default()
    })
}

/// A snapshot of a sandbox that has just written this much.
fn take_after_writing(world: &World, mib: u32, name: &str) {
    let id = world.create();
    let line = format!("yes {name} | head -c {mib}M > /dev/shm/data");
    world.sh(&id, &line);
    take(world, &id, name);
    remove(world, &id);
}

/// How long a VM took that went on from a snapshot.
struct Restore {
    /// Until QEMU was there: the same work for each, done before anything of the snapshot is
    /// looked at.
    launched_ms: f64,
    /// From then on, until it had its memory and its devices.
    loaded_ms: f64,
    /// What the shim has had of the processors, which writes the pages.
    processor_ms: f64,
}

impl Restore {
    fn of(world: &World, snapshot: &str) -> Self {
        let child = create_from(world, snapshot);
        let log = world.log();
        let spawned = log
            .lines()
            .find(|line| line.contains("spawned") && line.contains(&child));
        let spawned = spawned.unwrap_or_else(|| panic!("nothing of {child} in the log: {log}"));
        let processor_ms = shims_processor_ms(world);
        remove(world, &child);
        let launched_ms = step_ms(spawned, "launched");
        Self {
            launched_ms,
            loaded_ms: step_ms(spawned, "loaded") - launched_ms,
            processor_ms,
        }
    }
}

/// What the only shim of this world has had of the processors.
fn shims_processor_ms(world: &World) -> f64 {
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let is_shim = |pid: &u32| name(pid).is_ok_and(|name| name.trim() == "pando");
    let shim = world.processes().into_iter().find(is_shim);
    let shim = shim.expect("a shim");
    let threads = std::fs::read_dir(format!("/proc/{shim}/task")).expect("its threads");
    let times = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum::<f64>() / 1e6
}

/// A step of `timing_ms={"loaded": 93.1, …}`.
fn step_ms(line: &str, step: &str) -> f64 {
    let (_, rest) = line
        .split_once(&format!("\"{step}\": "))
        .unwrap_or_default();
    let number = rest.split([',', '}']).next().unwrap_or_default();
    number
        .parse()
        .unwrap_or_else(|_| panic!("no `{step}`: {line}"))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Restores both, in turns. All have the same launch in them: its median counts for each,
/// since what else the host does is most of what is seen of it.
fn check_flat(world: &World) {
    let (small, large): (Vec<_>, Vec<_>) = (0..ROUNDS)
        .map(|_| (Restore::of(world, "small"), Restore::of(world, "large")))
        .unzip();
    let launch = median(small.iter().chain(&large).map(|one| one.launched_ms));
    let loaded = |restores: &[Restore]| median(restores.iter().map(|one| one.loaded_ms));
    let (small, large) = (launch + loaded(&small), launch + loaded(&large));
    assert!(
        large <= FLAT * small,
        "{large} ms after {LARGE} MiB, {small} ms after {SMALL} MiB"
    );
}

/// The least of as many first restores: the memory that was put together goes before each.
/// Time on a processor, since it is work: on a busy host it takes as much longer as it may.
fn least_first_processor_ms(world: &World, snapshot: &str) -> f64 {
    let first = |_| {
        for memory in await_materialized(world, |_| true) {
            let path = world.state_dir().join("v1/materialized").join(memory);
            std::fs::remove_file(path).expect("it was there");
        }
        let restored = Restore::of(world, snapshot);
        await_materialized(world, |found| found.len() == 1);
        restored.processor_ms
    };
    (0..ROUNDS).map(first).fold(f64::INFINITY, f64::min)
}

/// What `pando df` says of the memories that were put together.
fn materialized_bytes(world: &World) -> u64 {
    let usage = world.api().get("/v1/df").json();
    let bytes = usage["materialized_bytes"].as_u64();
    bytes.unwrap_or_else(|| panic!("{usage}"))
}

/// The memories that are put together now.
fn materialized(world: &World) -> BTreeSet<String> {
    let names = entries(&world.state_dir().join("v1/materialized"));
    let memories = names
        .into_iter()
        .filter(|name| name != "boot-id" && !name.starts_with('.'));
    memories.collect()
}

/// Waits until as many are there: they are made in the background.
fn await_materialized(world: &World, what: impl Fn(&BTreeSet<String>) -> bool) -> BTreeSet<String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = materialized(world);
        if what(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "still {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn with_reflinks_a_restore_is_flat_from_the_first_one() {
    let fs = LoopFs::new(FileSystem::Xfs, 2500);
    let world = world_on(&fs, 4096);
    take_after_writing(&world, SMALL, "small");
    take_after_writing(&world, LARGE, "large");
    // Nothing was restored from either yet.
    check_flat(&world);
    // Whole memories, of 512 MiB each, of which hardly a block is their own.
    assert_eq!(materialized(&world).len(), 2);
    let own = materialized_bytes(&world);
    assert!(own <= 4 << 20, "{own} bytes");
    remove_all(&world);
}

#[test]
fn without_reflinks_the_first_restore_costs_its_delta_and_later_ones_are_flat() {
    let fs = LoopFs::new(FileSystem::Ext4, 3000);
    let world = world_on(&fs, 4096);
    take_after_writing(&world, SMALL, "small");
    take_after_writing(&world, LARGE, "large");
    let allowed = FIRST_MS_PER_MIB * f64::from(LARGE - SMALL);
    let (small, large) = (
        least_first_processor_ms(&world, "small"),
        least_first_processor_ms(&world, "large"),
    );
    assert!(
        large <= small + allowed,
        "{large} ms after {LARGE} MiB, {small} ms after {SMALL} MiB"
    );
    Restore::of(&world, "small");
    await_materialized(&world, |found| found.len() == 2);
    check_flat(&world);
    remove_all(&world);
}

#[test]
fn memories_that_are_copies_are_kept_within_their_limit_by_use() {
    const LIMIT_MIB: u32 = 400;
    let fs = LoopFs::new(FileSystem::Ext4, 3000);
    let world = world_on(&fs, LIMIT_MIB);
    let within = |world: &World| {
        let dir = world.state_dir().join("v1/materialized");
        let blocks = materialized(world)
            .iter()
            .filter_map(|name| Some(std::fs::metadata(dir.join(name)).ok()?.blocks()))
            .sum::<u64>();
        assert!(
            blocks * 512 <= u64::from(LIMIT_MIB) << 20,
            "{blocks} blocks"
        );
        assert!(materialized_bytes(world) <= u64::from(LIMIT_MIB) << 20);
    };
    // Of about 180 MiB each: two fit.
    let mut made = Vec::new();
    for name in ["one", "two"] {
        take_after_writing(&world, 96, name);
        Restore::of(&world, name);
        let found = await_materialized(&world, |found| found.len() > made.len());
        made.extend(found.into_iter().find(|memory| !made.contains(memory)));
        within(&world);
    }
    // The first is of use again, and so the second is what goes.
    Restore::of(&world, "one");
    take_after_writing(&world, 96, "three");
    Restore::of(&world, "three");
    let found = await_materialized(&world, |found| {
        found.len() == 2 && found.iter().any(|memory| !made.contains(memory))
    });
    within(&world);
    assert!(found.contains(&made[0]), "what was of use last has gone");
    assert!(!found.contains(&made[1]));
    remove_all(&world);
}

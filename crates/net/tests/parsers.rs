//! Readers of hostile bytes: each seed of the fuzz targets and mutations of it. The same
//! properties as the fuzz targets check, in seconds and with a stable compiler.

mod hostile;

use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Mutations of each seed.
const MUTATIONS: u64 = 1000;

/// How long each target goes on with `PANDO_TEST_FULL`; all eight together take an hour.
const FULL: Duration = Duration::from_secs(450);

fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target);
    let mut seeds: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    assert!(!seeds.is_empty());
    seeds.sort();
    check(&[]);
    for seed in &seeds {
        check(seed);
        for end in 0..seed.len() {
            check(&seed[..end]);
        }
    }
    let full = std::env::var_os("PANDO_TEST_FULL").is_some();
    let begin = Instant::now();
    let mut first = 0;
    loop {
        for (number, seed) in seeds.iter().enumerate() {
            let other = &seeds[(number + 1) % seeds.len()];
            for mutation in first..first + MUTATIONS {
                try_mutation(target, check, (seed, other), mutation);
            }
        }
        first += MUTATIONS;
        if !full || begin.elapsed() > FULL {
            return;
        }
    }
}

/// The same on every run, and named when it fails.
fn try_mutation(target: &str, check: fn(&[u8]), (seed, other): (&[u8], &[u8]), mutation: u64) {
    let mut random = StdRng::seed_from_u64(mutation);
    let bytes = mutated(seed, other, &mut random);
    let outcome = std::panic::catch_unwind(|| check(&bytes));
    assert!(
        outcome.is_ok(),
        "{target}, mutation {mutation} of {seed:?}: {bytes:?}"
    );
}

fn mutated(seed: &[u8], other: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.random_range(1..6) {
        if bytes.is_empty() {
            bytes.push(random.random());
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..8) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => {
                let edges = [0, 1, 0x7f, 0x80, 0xff, b'\r', b'\n', b' ', b':'];
                bytes[at] = edges[random.random_range(0..edges.len())];
            }
            3 => bytes.truncate(at),
            4 => bytes.insert(at, random.random()),
            5 => drop(bytes.remove(at)),
            6 => {
                let end = (at + random.random_range(1..20)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let from = random.random_range(0..other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

#[test]
fn frames() {
    run("frame", hostile::frame);
}

#[test]
fn queries() {
    run("dns", hostile::dns);
}

#[test]
fn answers() {
    run("answer", hostile::answer);
}

#[test]
fn hellos() {
    run("tls", hostile::tls);
}

#[test]
fn requests() {
    run("http", hostile::http);
}

#[test]
fn responses() {
    run("response", hostile::response);
}

#[test]
fn maps_of_names() {
    run("names", hostile::names);
}

#[test]
fn rules() {
    run("rule", hostile::rule);
}

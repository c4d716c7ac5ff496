//! `qemu-img` and `qemu-io` write the chains, and say what they read as.

use super::*;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const DISK_MIB: u64 = 80;

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("`{program}`: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A chain as QEMU is told of it: the files name nothing below them.
fn chain(layers: &[PathBuf]) -> String {
    let over = |below: Option<String>, layer: &PathBuf| {
        let backing = below.map_or("null".to_owned(), |below| below);
        Some(format!(
            r#"{{"driver":"qcow2","discard":"unmap","backing":{backing},
                "file":{{"driver":"file","filename":"{}","discard":"unmap"}}}}"#,
            layer.display()
        ))
    };
    format!("json:{}", layers.iter().fold(None, over).unwrap())
}

/// A change of a disk, in units of 4 KiB.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write(u8),
    Zeros,
    ZerosUnmapped,
    Discard,
}

type Stretch = (u64, u64, Change);

fn changes() -> impl Strategy<Value = Vec<Stretch>> {
    let change = prop_oneof![
        3 => (1u8..).prop_map(Change::Write),
        1 => Just(Change::Zeros),
        1 => Just(Change::ZerosUnmapped),
        2 => Just(Change::Discard),
    ];
    // Two places, so that changes meet: the beginning, and what a second table maps.
    let at = prop_oneof![0u64..60, 8180u64..8220, Just(DISK_MIB * 256 - 30)];
    proptest::collection::vec((at, 1u64..30, change), 0..8)
}

/// A new layer of this cluster size on a chain, with these changes.
fn add_layer(dir: &Path, chained: &mut Vec<PathBuf>, cluster_kib: u64, changes: &[Stretch]) {
    let path = dir.join(format!("layer.{}", chained.len()));
    let (size, option) = (
        format!("{DISK_MIB}M"),
        format!("cluster_size={cluster_kib}k"),
    );
    let path_text = path.to_str().unwrap();
    run(
        "qemu-img",
        &[
            "create", "-q", "-f", "qcow2", "-o", &option, path_text, &size,
        ],
    );
    chained.push(path);
    let commands: Vec<String> = changes
        .iter()
        .map(|(at, length, change)| {
            let place = format!("{}k {}k", at * 4, length * 4);
            match change {
                Change::Write(byte) => format!("write -q -P {byte} {place}"),
                Change::Zeros => format!("write -q -z {place}"),
                Change::ZerosUnmapped => format!("write -q -z -u {place}"),
                Change::Discard => format!("discard -q {place}"),
            }
        })
        .collect();
    let mut arguments = vec!["-d", "unmap"];
    for command in &commands {
        arguments.extend(["-c", command]);
    }
    let top = chain(chained);
    arguments.push(&top);
    if !commands.is_empty() {
        run("qemu-io", &arguments);
    }
}

fn merge_files(layers: &[PathBuf], target: &Path) -> Result<(), Qcow2Error> {
    let opened: Vec<File> = layers
        .iter()
        .map(|path| File::open(path).unwrap())
        .collect();
    let target = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(target);
    merge(&opened, &target.unwrap())
}

/// A lowest layer with data wherever others may have holes, and what lies on it.
fn chain_of(dir: &Path, layers: &[(u64, Vec<Stretch>)]) -> Vec<PathBuf> {
    let mut chained = Vec::new();
    let below = [
        (0, 100, Change::Write(201)),
        (8100, 200, Change::Write(202)),
    ];
    add_layer(dir, &mut chained, 16, &below);
    for (cluster_kib, changes) in layers {
        add_layer(dir, &mut chained, *cluster_kib, changes);
    }
    chained
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_merged_layer_reads_as_those_it_was_made_of(
        layers in proptest::collection::vec((prop_oneof![Just(16u64), Just(64)], changes()), 2..6),
        above in changes(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut before = chain_of(dir.path(), &layers);
        add_layer(dir.path(), &mut before, 16, &above);
        let top = before.len() - 1;
        let merged = dir.path().join("merged");
        merge_files(&before[1..top], &merged).unwrap();
        run("qemu-img", &["check", "-q", merged.to_str().unwrap()]);
        let after = [before[0].clone(), merged, before[top].clone()];
        run("qemu-img", &["compare", "-q", &chain(&before), &chain(&after)]);
    }
}

#[test]
fn a_merged_layer_takes_what_is_on_top_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let write = |byte| vec![(0, 1024, Change::Write(byte))];
    let zeros = vec![(0, 512, Change::ZerosUnmapped)];
    let layers = [(16, write(1)), (64, write(2)), (16, write(3)), (16, zeros)];
    let chained = chain_of(dir.path(), &layers);
    let merged = dir.path().join("merged");
    merge_files(&chained[1..], &merged).unwrap();
    let bytes = pando_sys::file::allocated_bytes(&merged).unwrap();
    assert!(
        (2 << 20..(2 << 20) + (128 << 10)).contains(&bytes),
        "{bytes}"
    );
}

#[test]
fn a_disk_whose_tables_need_more_than_one_cluster_of_counts_is_sound() {
    assert_eq!(refcount_clusters(1), (1, 1));
    assert_eq!(refcount_clusters(REFCOUNTS - 2), (1, 1));
    assert_eq!(refcount_clusters(REFCOUNTS - 1), (1, 2));
    let dir = tempfile::tempdir().unwrap();
    // 10,240 clusters of data; a block counts 8,192.
    let path = dir.path().join("large");
    run(
        "qemu-img",
        &[
            "create",
            "-q",
            "-f",
            "qcow2",
            "-o",
            "cluster_size=64k",
            path.to_str().unwrap(),
            "200M",
        ],
    );
    run(
        "qemu-io",
        &["-c", "write -q -P 9 0 160M", path.to_str().unwrap()],
    );
    let merged = dir.path().join("merged");
    merge_files(std::slice::from_ref(&path), &merged).unwrap();
    run("qemu-img", &["check", "-q", merged.to_str().unwrap()]);
    run(
        "qemu-img",
        &[
            "compare",
            "-q",
            path.to_str().unwrap(),
            merged.to_str().unwrap(),
        ],
    );
}

#[test]
fn what_no_layer_of_pandos_has_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let make = |name: &str, options: &[&str]| {
        let path = file(name);
        let mut arguments = vec!["create", "-q", "-f", "qcow2"];
        arguments.extend(options);
        arguments.extend([path.as_str(), "16M"]);
        run("qemu-img", &arguments);
        PathBuf::from(path)
    };
    let small = make("small", &["-o", "cluster_size=4k"]);
    let old = make("old", &["-o", "compat=0.10"]);
    let extended = make("extended", &["-o", "extended_l2=on"]);
    let outside = make("outside", &["-o", &format!("data_file={}", file("data"))]);
    let named = make("named", &["-b", small.to_str().unwrap(), "-F", "qcow2"]);
    let kept = make("kept", &[]);
    run(
        "qemu-img",
        &["snapshot", "-c", "one", kept.to_str().unwrap()],
    );
    let compressed = make("compressed", &[]);
    run(
        "qemu-io",
        &["-c", "write -q -c -P 1 0 64k", compressed.to_str().unwrap()],
    );
    for path in [small, old, extended, outside, named, kept, compressed] {
        let refused = merge_files(std::slice::from_ref(&path), &path.with_extension("merged"));
        assert!(
            matches!(refused, Err(Unsupported(_))),
            "{path:?}: {refused:?}"
        );
    }
    let foreign = dir.path().join("foreign");
    std::fs::write(&foreign, [1; 4096]).unwrap();
    let refused = merge_files(&[foreign], &dir.path().join("none"));
    assert!(matches!(refused, Err(Qcow2Error::Foreign)));
}

/// Layers and where in the uppermost of them the numbers are that a hostile QEMU would change.
struct Victim {
    _dir: TempDir,
    lower: PathBuf,
    bytes: Vec<u8>,
    places: Vec<u64>,
}

fn victim() -> Victim {
    let dir = tempfile::tempdir().unwrap();
    let write = vec![(0, 40, Change::Write(1)), (8190, 8, Change::Write(2))];
    let discard = vec![(2, 20, Change::Write(3)), (8, 8, Change::Discard)];
    let chained = chain_of(dir.path(), &[(16, write), (16, discard)]);
    let bytes = std::fs::read(&chained[2]).unwrap();
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let (l1, refcounts) = (number(40), number(48));
    let tables = [number(l1 as usize) & OFFSET, number(refcounts as usize)];
    let mut places: Vec<u64> = (0..HEADER_BYTES as u64).collect();
    for table in [l1, refcounts].into_iter().chain(tables) {
        places.extend(table..table + 64);
    }
    Victim {
        lower: chained[1].clone(),
        _dir: dir,
        bytes,
        places,
    }
}

/// Merges with changed bytes; whatever comes of it, nothing is larger than the disk.
fn merge_changed(victim: &Victim, changed: &[u8]) -> Result<(), Qcow2Error> {
    let upper = tempfile::tempfile().unwrap();
    upper.write_all_at(changed, 0).unwrap();
    let target = tempfile::tempfile().unwrap();
    let result = merge(&[File::open(&victim.lower).unwrap(), upper], &target);
    let length = target.metadata().unwrap().len();
    assert!(length < (DISK_MIB << 20) + (1 << 20), "{length}");
    result
}

#[test]
fn changed_bytes_are_refused_or_merged_and_never_panic() {
    let victim = victim();
    merge_changed(&victim, &victim.bytes).unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3000));
    let place = 0..victim.places.len();
    let byte = prop_oneof![
        Just(0u8),
        Just(1),
        Just(0x40),
        Just(0x80),
        Just(0xff),
        any::<u8>()
    ];
    let flips = proptest::collection::vec((place, byte), 1..5);
    runner
        .run(&flips, |flips| {
            let mut bytes = victim.bytes.clone();
            for (place, byte) in flips {
                let place = victim.places[place] as usize;
                bytes[place] = byte;
            }
            drop(merge_changed(&victim, &bytes));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_layer_that_uses_a_cluster_twice_or_points_outside_is_refused() {
    let victim = victim();
    let l1 = victim.places[HEADER_BYTES] as usize;
    let l2 = victim.places[HEADER_BYTES + 128] as usize;
    let number = |at: usize| u64::from_be_bytes(victim.bytes[at..at + 8].try_into().unwrap());
    let data = number(l2);
    assert_ne!(data & OFFSET, 0);
    for (at, entry) in [
        (l2 + 8, data),
        (l2 + 8, l1 as u64 | ONE_USER),
        (l2 + 8, ONE_USER),
        (l2 + 8, data + 512),
        (l2 + 8, 1 << 40),
        (l2 + 8, 2),
        (l1 + 8, number(l1)),
        (l1 + 8, 1 << 41),
        (l1 + 8, number(l1) | 1),
    ] {
        let mut bytes = victim.bytes.clone();
        bytes[at..at + 8].copy_from_slice(&entry.to_be_bytes());
        let refused = merge_changed(&victim, &bytes);
        assert!(
            matches!(refused, Err(Malformed(_))),
            "{entry:x} at {at:x}: {refused:?}"
        );
    }
}

/// A file of nothing but holes costs no memory for what it could have.
#[test]
fn a_layer_that_is_longer_than_its_disk_can_make_it_is_refused() {
    let victim = victim();
    let upper = tempfile::tempfile().unwrap();
    upper.write_all_at(&victim.bytes, 0).unwrap();
    upper.set_len(1 << 42).unwrap();
    let refused = merge(&[upper], &tempfile::tempfile().unwrap());
    assert!(matches!(refused, Err(Malformed(_))), "{refused:?}");
}

//! Dying at each named point of a publish: afterwards there is nothing, or all of it. Dying at
//! each of a replacement: there is the old one, or the new one.
//!
//! Without the usual harness: a point aborts its process, so this program runs itself.

use pando_store::{Layer, Machine, Manifest, Merges, SavedState, Snapshots, Verified, fault};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const CHILD: &str = "PANDO_STORE_CRASH_DIR";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            print("a_crash_at_any_point_leaves_nothing_or_all: test\n");
        }
        return;
    }
    match std::env::var_os(CHILD) {
        Some(dir) => {
            let snapshots = publish(Path::new(&dir));
            replace(&snapshots);
        }
        None => {
            a_crash_at_any_point_leaves_nothing_or_all();
            a_crash_in_a_replacement_leaves_the_old_one_or_the_new();
        }
    }
}

fn print(text: &str) {
    use std::io::Write as _;
    std::io::stdout()
        .write_all(text.as_bytes())
        .expect("stdout");
}

fn publish(dir: &Path) -> Snapshots {
    let snapshots = Snapshots::open(dir, &Verified::default()).expect("it opens");
    let staging = snapshots.stage("one").expect("it stages");
    let layer = |file: &str| -> Layer {
        std::fs::write(staging.dir().join(file), file.repeat(1000)).expect("it is written");
        Layer::describe(staging.dir(), file).expect("it is described")
    };
    let manifest = Manifest {
        id: "key".into(),
        kind: SavedState::Ready,
        machine: Machine {
            vmm: "qemu".into(),
            accelerator: "tcg".into(),
            machine: "microvm".into(),
            cpu_model: "max".into(),
            tsc_khz: 0,
            cpus: 1,
            memory_mib: 512,
            devices: "1".into(),
            kernel: "k".into(),
            initrd: "i".into(),
        },
        created_at_ms: 1,
        root: "r".into(),
        disks: vec![layer("disk.0")],
        root_image: None,
        memory: Some(layer("memory")),
        pages: vec![layer("pages.0")],
        device_state: Some(layer("device-state")),
        network: None,
        clean_barrier: true,
    };
    snapshots
        .publish(staging, "key", &manifest)
        .expect("it is published");
    snapshots
}

/// Puts one of another time in its place.
fn replace(snapshots: &Snapshots) {
    let old = snapshots.get("key").expect("it is whole");
    let old = old.expect("it is there");
    let staging = snapshots.stage("two").expect("it stages");
    let manifest = Manifest {
        created_at_ms: 2,
        ..snapshots
            .shorten(&old, staging.dir(), &Merges::default())
            .expect("it is linked")
    };
    drop(old);
    let replaced = snapshots.replace(staging, "key", &manifest, Duration::from_secs(60));
    assert!(replaced.expect("it is replaced"));
}

/// Runs this program in a directory, to this point; whether it came to its end.
fn run(dir: &Path, fault: Option<&str>) -> bool {
    let own = std::env::current_exe().expect("this program");
    let mut command = Command::new(own);
    command.env(CHILD, dir).env_remove("PANDO_FAULT");
    if let Some(fault) = fault {
        command.env("PANDO_FAULT", fault);
    }
    command.output().expect("it runs").status.success()
}

fn a_crash_in_a_replacement_leaves_the_old_one_or_the_new() {
    for (point, time) in [
        ("flatten.before_exchange", 1),
        ("flatten.after_exchange", 2),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!run(dir.path(), Some(point)), "`{point}` is never reached");
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).expect("it opens");
        let found = snapshots.get("key").expect("it is whole");
        let found = found.expect("it is there");
        snapshots.verify(&found).expect("its layers are whole");
        assert_eq!(found.manifest.created_at_ms, time, "{point}");
        let left = std::fs::read_dir(dir.path()).expect("a directory").count();
        assert_eq!(left, 1, "{point}: rests are left");
    }
    print("test a_crash_in_a_replacement_leaves_the_old_one_or_the_new ... ok\n");
}

fn a_crash_at_any_point_leaves_nothing_or_all() {
    for point in fault::POINTS
        .into_iter()
        .filter(|point| point.starts_with("snapshot."))
    {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!run(dir.path(), Some(point)), "`{point}` is never reached");
        let published = point == "snapshot.after_rename";
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).expect("it opens");
        let found = snapshots.get("key").expect("it is whole or absent");
        assert_eq!(found.is_some(), published, "{point}");
        if let Some(snapshot) = found {
            snapshots.verify(&snapshot).expect("its layers are whole");
        }
        let left = std::fs::read_dir(dir.path()).expect("a directory").count();
        assert_eq!(left, usize::from(published), "{point}: rests are left");
        assert!(
            published || run(dir.path(), None),
            "{point}: the next try fails"
        );
    }
    print("test a_crash_at_any_point_leaves_nothing_or_all ... ok\n");
}

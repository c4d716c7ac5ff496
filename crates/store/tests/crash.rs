//! Dying at each named point of a publish: afterwards there is nothing, or all of it.
//!
//! Without the usual harness: a point aborts its process, so this program runs itself.

use pando_store::{Layer, Machine, Manifest, SavedState, Snapshots, Verified, fault};
use std::path::Path;
use std::process::Command;

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
        Some(dir) => publish(Path::new(&dir)),
        None => a_crash_at_any_point_leaves_nothing_or_all(),
    }
}

fn print(text: &str) {
    use std::io::Write as _;
    std::io::stdout()
        .write_all(text.as_bytes())
        .expect("stdout");
}

fn publish(dir: &Path) {
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
        clean_barrier: true,
    };
    snapshots
        .publish(staging, "key", &manifest)
        .expect("it is published");
}

fn a_crash_at_any_point_leaves_nothing_or_all() {
    let own = std::env::current_exe().expect("this program");
    for point in fault::POINTS
        .into_iter()
        .filter(|point| point.starts_with("snapshot."))
    {
        let dir = tempfile::tempdir().expect("a directory");
        let run = |fault: Option<&str>| {
            let mut command = Command::new(&own);
            command.env(CHILD, dir.path()).env_remove("PANDO_FAULT");
            if let Some(fault) = fault {
                command.env("PANDO_FAULT", fault);
            }
            command.output().expect("it runs").status.success()
        };
        assert!(!run(Some(point)), "`{point}` is never reached");
        let published = point == "snapshot.after_rename";
        let snapshots = Snapshots::open(dir.path(), &Verified::default()).expect("it opens");
        let found = snapshots.get("key").expect("it is whole or absent");
        assert_eq!(found.is_some(), published, "{point}");
        if let Some(snapshot) = found {
            snapshots.verify(&snapshot).expect("its layers are whole");
        }
        let left = std::fs::read_dir(dir.path()).expect("a directory").count();
        assert_eq!(left, usize::from(published), "{point}: rests are left");
        assert!(published || run(None), "{point}: the next try fails");
    }
    print("test a_crash_at_any_point_leaves_nothing_or_all ... ok\n");
}

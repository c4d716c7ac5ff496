//! The benchmark measures a daemon of its own and leaves nothing of it.

use pando_testkit::World;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// What the benchmark's directory is called, and so what its processes name.
const MARK: &str = "pando-bench-";

/// Processes and files of benchmarks below this directory.
fn left_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let lines = entries
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let name = directory.join(MARK).display().to_string();
    let processes = lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&name));
    let files = std::fs::read_dir(directory).unwrap();
    let files = files
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(MARK));
    processes.chain(files).collect()
}

/// `pando bench`, with its directory below this one.
fn bench(world: &World, directory: &Path, args: &[&str]) -> Command {
    std::fs::create_dir(directory).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(directory, mode).unwrap();
    let mut command = world.command([&["bench"], args].concat());
    command.env("TMPDIR", directory).stdin(Stdio::null());
    command
}

#[test]
fn a_benchmark_gives_every_sample_and_leaves_nothing() {
    let world = World::start();
    let directory = world.scratch("tmp");
    let output = bench(&world, &directory, &["--only", "ping", "-n", "3", "--json"])
        .output()
        .unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{talk}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    let ping = &report["figures"][0];
    assert_eq!(ping["name"], "ping");
    assert_eq!(ping["measured"]["samples"].as_array().unwrap().len(), 3);
    assert_eq!(ping["baselines"][0]["measured"]["n"], 3);
    assert!(report["machine"]["cores"].as_u64() > Some(0), "{report}");
    assert_eq!(left_in(&directory), [""; 0]);
    assert_eq!(
        world.ok(["ls", "-q"]),
        "",
        "the usual daemon has no part in it"
    );
}

#[test]
fn control_c_in_a_benchmark_leaves_nothing() {
    let world = World::start();
    let directory = world.scratch("tmp");
    let mut child = bench(&world, &directory, &["--only", "idle"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap()).lines();
    let idling = talk.any(|line| line.unwrap().starts_with("idle"));
    assert!(idling, "it says what it does");
    // In the midst of making sandboxes.
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!left_in(&directory).is_empty(), "a daemon and a sandbox");
    let pid = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left_in(&directory), [""; 0]);
}

//! A sandbox's life: create, stop, start, remove, and the daemon's restart in between.

use pando_testkit::{Options, World};
use serde_json::json;

#[test]
fn a_stopped_sandbox_keeps_its_disk_and_boots_anew() {
    let world = World::start();
    let id = world.ok(["create", "--name", "keeper", "-e", "A=1"]);
    world.sh(&id, "echo kept > ~/file; sudo sh -c 'echo root > /etc/mine'; echo gone > /dev/shm/memory; sleep 1000 >/dev/null 2>&1 &");
    let machine_id = world.sh(&id, "cat /etc/machine-id");
    world.ok(["stop", "keeper"]);
    assert_eq!(world.inspect(&id)["state"], "stopped");
    assert!(
        !std::path::Path::new(&format!("/proc/{}", world.shim_pid(&id)))
            .join("exe")
            .exists(),
        "no process is left"
    );
    let refused = world.api().post(
        &format!("/v1/sandboxes/{id}/exec"),
        &json!({ "argv": ["true"] }),
    );
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (409, &json!("wrong_state"))
    );

    world.ok(["start", "keeper"]);
    assert_eq!(world.inspect(&id)["state"], "running");
    assert_eq!(
        world.sh(
            &id,
            "cat ~/file /etc/mine; echo $A; hostname; cat /etc/machine-id"
        ),
        format!("kept\nroot\n1\n{id}\n{machine_id}")
    );
    assert_eq!(
        world.sh(&id, "ls /dev/shm; pgrep -x sleep || echo none"),
        "none"
    );
    // Twice, since the second start has a journal of the first's making.
    world.ok(["stop", &id]);
    world.ok(["start", &id]);
    assert_eq!(world.sh(&id, "cat ~/file"), "kept");
    world.ok(["rm", &id]);
}

#[test]
fn rm_leaves_no_process_no_file_and_no_row() {
    let world = World::start();
    let id = world.create();
    let (shim, vmm) = (world.shim_pid(&id), world.vmm_pid(&id));
    world.ok(["rm", &id]);
    for pid in [shim, vmm] {
        assert!(
            !std::path::Path::new(&format!("/proc/{pid}/exe")).exists(),
            "{pid} lives on"
        );
    }
    assert!(!world.sandbox_dir(&id).exists());
    let again = world.run(["rm", &id]);
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("not found"), "{again:?}");
    assert_eq!(world.ok(["ls", "-q"]), "");
}

#[test]
fn a_killed_daemon_finds_its_sandboxes_again() {
    let mut world = World::start();
    let id = world.create();
    let pid = world.sh(&id, "sleep 1000 >/dev/null 2>&1 & echo $!");
    let stopped = world.create();
    world.ok(["stop", &stopped]);
    let dead = world.create();
    world.kill_daemon();
    drop(
        std::process::Command::new("kill")
            .args(["-9", &world.shim_pid(&dead).to_string()])
            .status(),
    );
    world.start_daemon();
    assert_eq!(world.sh(&id, &format!("cat /proc/{pid}/comm")), "sleep");
    assert_eq!(world.inspect(&stopped)["state"], "stopped");
    let failed = world.inspect(&dead);
    assert_eq!(failed["state"], "failed");
    assert!(
        failed["state_reason"].as_str().unwrap().contains("shim"),
        "{failed}"
    );
    world.ok(["start", &stopped]);
    assert_eq!(world.sh(&stopped, "echo up"), "up");
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused() {
    let world = World::start();
    let second = world.run(["serve", "--listen", "127.0.0.1:0"]);
    assert_ne!(second.code, 0);
    assert!(
        second.stderr.contains("a daemon already runs"),
        "{second:?}"
    );
}

#[test]
fn events_tell_a_sandboxs_life() {
    let world = World::start();
    let id = world.create();
    world.ok(["stop", &id]);
    world.ok(["rm", &id]);
    let events = world.api().get("/v1/events?after=0&limit=100").json();
    let kinds: Vec<_> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["subject"] == *id)
        .map(|event| event["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        kinds,
        [
            "sandbox.creating",
            "sandbox.running",
            "sandbox.stopping",
            "sandbox.stopped",
            "sandbox.removed"
        ],
        "{events}"
    );
}

#[test]
fn a_daemon_that_dies_in_a_create_leaves_nothing_behind() {
    let fault = ("PANDO_FAULT".to_owned(), "sandbox.dir_made".to_owned());
    let mut world = World::with(Options {
        env: vec![fault],
        ..Options::default()
    });
    assert_ne!(world.run(["create"]).code, 0);
    let sandboxes = world.state_dir().join("v1/sandboxes");
    assert_eq!(std::fs::read_dir(&sandboxes).unwrap().count(), 1);
    world.kill_daemon();
    world.forget_env();
    world.start_daemon();
    assert_eq!(std::fs::read_dir(&sandboxes).unwrap().count(), 0);
    assert_eq!(world.ok(["ls", "-q"]), "");
    let id = world.create();
    assert_eq!(world.sh(&id, "echo up"), "up");
}

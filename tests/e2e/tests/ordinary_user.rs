//! Everything without root: the daemon, its shims and VMs run as an ordinary account.

use pando_testkit::{Options, World};

/// `nobody`, on Debian and nearly everywhere.
const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_bakes_runs_stops_and_starts() {
    let world = World::with(Options {
        account: Some(NOBODY),
        env: vec![("PANDO_WARM".to_owned(), "1".to_owned())],
        ..Options::default()
    });
    assert_eq!(world.ok(["run", "--", "python3", "-c", "print(6*7)"]), "42");
    world.await_full_pool();
    let before = world.pool()["claims"]["warm"].as_u64();
    let id = world.create();
    let claims = world.pool()["claims"]["warm"].as_u64();
    assert_eq!(
        claims,
        before.map(|claims| claims + 1),
        "it is a waiting clone"
    );
    for pid in [world.daemon_pid(), world.shim_pid(&id), world.vmm_pid(&id)] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let uid = status
            .lines()
            .find(|line| line.starts_with("Uid:"))
            .unwrap()
            .to_owned();
        assert_eq!(uid.split_whitespace().nth(1), Some("65534"), "{uid}");
    }
    let layers = world.inspect(&id)["isolation"]["layers"].to_string();
    assert!(
        layers.contains("landlock") && layers.contains("seccomp"),
        "{layers}"
    );
    world.sh(&id, "echo kept > ~/file");
    world.ok(["stop", &id]);
    world.ok(["start", &id]);
    assert_eq!(world.sh(&id, "cat ~/file"), "kept");
    world.ok(["rm", &id]);
}

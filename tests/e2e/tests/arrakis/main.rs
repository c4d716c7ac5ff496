//! Clients of Arrakis find what they know: its published Python client in six versions, the
//! requests of its command line and of its MCP server, and none of its faults.

mod faults;
mod reach;
mod replay;

use pando_testkit::{Api, Options, World};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Every published version of the client that does anything.
const VERSIONS: [&str; 6] = ["0.1.0", "0.1.1", "0.1.2", "1.1.2", "1.2.2", "2.0.0"];

/// An API without a key.
fn keyless(world: &World) -> Api {
    Api::new(world.url(), None)
}

/// The native API for whoever has the key of what was made without one.
fn owner(world: &World) -> Api {
    let key = fs::read_to_string(world.state_dir().join("arrakis.key")).unwrap();
    Api::new(world.url(), Some(key.trim().to_owned()))
}

/// A world with a setting.
fn limited(variable: &str, value: &str) -> World {
    World::with(Options {
        env: vec![(variable.to_owned(), value.to_owned())],
        ..Options::default()
    })
}

/// Waits until a condition of the world holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A JSON body's header.
const JSON: (&str, &str) = ("content-type", "application/json");

/// Starts a VM without a key.
fn start(world: &World, name: &str) -> Value {
    let started = keyless(world).post("/v1/vms", &json!({ "vmName": name }));
    assert_eq!(started.status, 200, "{}", started.text);
    started.json()
}

/// What a command of a VM said.
fn run(world: &World, name: &str, command: &str) -> String {
    let ran = keyless(world).post(&format!("/v1/vms/{name}/cmd"), &json!({ "cmd": command }));
    assert_eq!(ran.status, 200, "{}", ran.text);
    let ran = ran.json();
    assert_eq!(ran["error"], "", "{ran}");
    ran["output"].as_str().unwrap().trim_end().to_owned()
}

/// A virtual environment with what all versions of the client need.
fn environment(place: &Path) -> PathBuf {
    let environment = place.join("environment");
    check(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(&environment),
    );
    let python = environment.join("bin/python");
    check(Command::new(&python).args(["-m", "pip", "install", "--quiet", "requests"]));
    python
}

fn check(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [&*output.stdout, &*output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn every_version_of_the_python_client_works_unmodified() {
    let world = World::start();
    let python = environment(&world.scratch("clients"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/arrakis/client.py");
    for version in VERSIONS {
        let place = world.scratch(&format!("py-arrakis-{version}"));
        let package = format!("py-arrakis=={version}");
        check(
            Command::new(&python)
                .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
                .arg(&place)
                .arg(&package),
        );
        let said = check(
            Command::new(&python)
                .env("PYTHONPATH", &place)
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .args([script, &world.url(), version]),
        );
        assert_eq!(said.trim_end(), format!("all of it works with {version}"));
    }
    assert_eq!(world.ok(["ls", "-q"]), "");
}

#[test]
fn with_a_key_the_client_sees_what_is_its_tenants() {
    let mut world = World::start();
    world.kill_daemon();
    world.set_env("PANDO_ARRAKIS_AUTH", "always");
    world.start_daemon();
    assert_eq!(keyless(&world).get("/v1/vms").status, 401);
    let id = world.ok(["create", "--name", "ours"]);
    let nameless = world.create();
    let listed = world.api().get("/v1/vms").json();
    assert_eq!(listed["vms"][0]["vmName"], "ours", "{listed}");
    assert_eq!(listed["vms"].as_array().unwrap().len(), 1, "{listed}");
    // The library under the client finds the key in the user's own file.
    let home = world.scratch("home");
    fs::create_dir(&home).unwrap();
    let netrc = format!("machine 127.0.0.1 login pando password {}\n", world.key());
    fs::write(home.join(".netrc"), netrc).unwrap();
    let python = environment(&world.scratch("clients"));
    check(Command::new(&python).args(["-m", "pip", "install", "--quiet", "py-arrakis==2.0.0"]));
    let script = "import sys\nfrom py_arrakis import SandboxManager\n\
                  [one] = SandboxManager(sys.argv[1]).list_all()\n\
                  print(one.name, one.run_cmd('hostname')['output'], end='')";
    let said = check(
        Command::new(&python)
            .env("HOME", &home)
            .args(["-c", script, &world.url()]),
    );
    assert_eq!(said, format!("ours {id}\n"));
    // What it cannot name it does not destroy.
    assert_eq!(world.api().delete("/v1/vms").status, 200);
    assert_eq!(world.ok(["ls", "-q"]), nameless);
}

#[test]
fn a_desktop_is_what_vms_are_made_from_where_there_is_one() {
    let mut world = World::start();
    let gui = |vm: &Value| {
        let forwards = vm["portForwards"].as_array().unwrap().clone();
        let guest_ports: Vec<_> = forwards
            .iter()
            .map(|one| one["guestPort"].clone())
            .collect();
        (forwards[0].clone(), guest_ports)
    };
    let (_, ports) = gui(&start(&world, "plain"));
    assert_eq!(ports, ["5736", "5737", "5738", "5739", "5740"]);
    // A template of that name; what is in it is another's to test.
    world.end_daemon();
    let rename = "import sqlite3, sys\nindex = sqlite3.connect(sys.argv[1])\n\
                  index.execute(\"INSERT INTO templates SELECT tenant, 'desktop', tag, root, recipe, \
                  created_at_ms, egress FROM templates WHERE name = 'base'\")\nindex.commit()";
    let index = world.state_dir().join("pando.db");
    check(Command::new("python3").args(["-c", rename]).arg(index));
    world.start_daemon();
    let desktop = start(&world, "desktop-1");
    let (first, ports) = gui(&desktop);
    assert_eq!(
        (&first["guestPort"], &first["description"]),
        (&json!("5901"), &json!("gui")),
        "{desktop}"
    );
    assert_eq!(ports.len(), 6, "{desktop}");
    let made = owner(&world).get("/v1/sandboxes/desktop-1").json();
    assert_eq!(made["template"], "desktop");
    // So is what is restored from it; what a setting names comes before.
    let keep = json!({ "snapshotId": "kept" });
    let kept = keyless(&world).post("/v1/vms/desktop-1/snapshots", &keep);
    assert_eq!(kept.status, 200, "{}", kept.text);
    let restore = json!({ "vmName": "desktop-2", "snapshotId": "kept" });
    let restored = keyless(&world).post("/v1/vms", &restore);
    assert_eq!(gui(&restored.json()).1.len(), 6, "{}", restored.text);
    world.end_daemon();
    world.set_env("PANDO_ARRAKIS_TEMPLATE", "base");
    world.start_daemon();
    assert_eq!(gui(&start(&world, "plain-2")).1.len(), 5);
}

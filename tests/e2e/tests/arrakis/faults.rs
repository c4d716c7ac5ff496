//! What went wrong with that API's own server, and does not here.

use super::{JSON, keyless, run, start};
use pando_testkit::{Answer, Footprint, Options, World};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Status of every VM, by name.
fn statuses(world: &World) -> Vec<(String, String)> {
    let listed = keyless(world).get("/v1/vms").json();
    let word = |vm: &Value, key: &str| vm[key].as_str().unwrap().to_owned();
    let vms = listed["vms"].as_array().unwrap().iter();
    vms.map(|vm| (word(vm, "vmName"), word(vm, "status")))
        .collect()
}

/// Waits for the only VM to be in this state; the daemon learns of it by itself.
fn await_status(world: &World, status: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while statuses(world)[0].1 != status {
        assert!(Instant::now() < deadline, "{:?}", statuses(world));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A world in which nothing changes by itself.
fn without_pool() -> World {
    World::with(Options {
        env: vec![("PANDO_WARM".to_owned(), "0".to_owned())],
        ..Options::default()
    })
}

fn send(world: &World, headers: &[(&str, &str)]) -> Answer {
    let body = json!({ "vmName": "stranger" }).to_string();
    keyless(world).send("POST", "/v1/vms", headers, body.as_bytes())
}

#[test]
fn nobody_but_a_program_of_this_machine_passes_without_a_key() {
    let mut world = without_pool();
    let before = Footprint::of(&world);
    for stranger in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("x-forwarded-for", "203.0.113.7"),
        ("forwarded", "for=203.0.113.7"),
        ("via", "1.1 proxy"),
        ("x-real-ip", "203.0.113.7"),
    ] {
        let refused = send(&world, &[JSON, stranger]);
        assert!(
            [401, 403].contains(&refused.status),
            "{stranger:?}: {}",
            refused.text
        );
        assert!(refused.json()["error"]["message"].is_string());
    }
    for form in ["text/plain", "application/x-www-form-urlencoded"] {
        assert_eq!(
            send(&world, &[("content-type", form)]).status,
            401,
            "{form}"
        );
    }
    assert_eq!(send(&world, &[]).status, 415, "no type at all");
    assert_eq!(send(&world, &[JSON, ("host", "evil.example")]).status, 421);
    assert_eq!(Footprint::of(&world), before);
    // Reading is no less.
    let read = keyless(&world).send("GET", "/vms", &[("x-forwarded-for", "203.0.113.7")], b"");
    assert_eq!(read.status, 401);
    // A daemon that others can reach opens to nobody.
    world.kill_daemon();
    world.start_daemon_at("0.0.0.0:0");
    let port = world.url().rsplit_once(':').unwrap().1.to_owned();
    let here = pando_testkit::Api::new(format!("http://127.0.0.1:{port}"), None);
    assert_eq!(here.get("/v1/vms").status, 401);
    assert_eq!(here.get("/v1/health").status, 401);
}

#[test]
fn the_door_sees_and_destroys_only_its_own() {
    let world = World::start();
    let ours = world.ok(["create", "--name", "ours"]);
    start(&world, "theirs");
    assert_eq!(
        statuses(&world),
        [("theirs".to_owned(), "RUNNING".to_owned())]
    );
    let door = keyless(&world);
    for path in ["/v1/vms/ours", &format!("/v1/vms/{ours}")] {
        assert_eq!(door.get(path).status, 404, "{path}");
        assert_eq!(door.delete(path).status, 404, "{path}");
    }
    // An id, or the beginning of one, is no name.
    assert_eq!(door.get("/v1/vms/s").status, 404);
    assert_eq!(door.delete("/v1/vms").status, 200);
    assert_eq!(world.ok(["ls", "-q"]), ours);
}

#[test]
fn no_name_leads_out_of_its_place_and_no_file_of_the_host_in() {
    let world = without_pool();
    start(&world, "one");
    let door = keyless(&world);
    let kept = door.post("/v1/vms/one/snapshots", &json!({ "snapshotId": "kept" }));
    assert_eq!(kept.status, 200, "{}", kept.text);
    let before = Footprint::of(&world);
    for name in [".", "..", "../x", "/etc", "a/b", "a\u{0}b", "ls", "-rf"] {
        let refused = door.post("/v1/vms", &json!({ "vmName": name }));
        assert_eq!(refused.status, 400, "{name:?}: {}", refused.text);
        let refused = door.post("/v1/vms/one/snapshots", &json!({ "snapshotId": name }));
        assert_eq!(refused.status, 400, "{name:?}: {}", refused.text);
        let refused = door.post("/v1/vms", &json!({ "vmName": "one", "snapshotId": name }));
        assert_eq!(refused.status, 404, "{name:?}: {}", refused.text);
    }
    assert_eq!(door.post("/v1/vms", &json!({ "vmName": "" })).status, 400);
    assert_eq!(door.post("/v1/vms", &json!({})).status, 400);
    for name in ["..", "%2e%2e", "..%2fv1", "."] {
        let refused = door.delete(&format!("/v1/vms/{name}"));
        assert!(refused.status >= 400, "{name}: {}", refused.text);
    }
    for field in ["kernel", "initramfs", "rootfs"] {
        let refused = door.post("/v1/vms", &json!({ "vmName": "two", field: "/dev/sda1" }));
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
    assert_eq!(Footprint::of(&world), before);
    // What was there is there.
    let back = door.post("/v1/vms", &json!({ "vmName": "one", "snapshotId": "kept" }));
    assert_eq!(back.status, 200, "{}", back.text);
}

#[test]
fn ports_of_the_host_come_back() {
    let range = ("PANDO_PORT_RANGE".to_owned(), "23700-23704".to_owned());
    let world = World::with(Options {
        env: vec![range],
        ..Options::default()
    });
    for round in 0..3 {
        let vm = start(&world, &format!("round-{round}"));
        assert_eq!(vm["portForwards"].as_array().unwrap().len(), 5, "{vm}");
        // None is left for another, which leaves nothing.
        let refused = keyless(&world).post("/v1/vms", &json!({ "vmName": "too-many" }));
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert_eq!(statuses(&world).len(), 1);
        assert_eq!(keyless(&world).delete("/v1/vms").status, 200);
    }
}

#[test]
fn a_vm_that_died_says_so_and_its_name_can_be_used_again() {
    let world = World::start();
    start(&world, "one");
    let vmm = world.vmm_pid(&run(&world, "one", "hostname"));
    let killed = Command::new("kill").args(["-9", &vmm.to_string()]).status();
    assert!(killed.unwrap().success());
    await_status(&world, "STOPPED");
    assert_eq!(keyless(&world).delete("/v1/vms/one").status, 200);
    start(&world, "one");
    assert_eq!(run(&world, "one", "echo here"), "here");
    let off = json!({ "cmd": "poweroff; sleep 100", "blocking": false });
    assert_eq!(keyless(&world).post("/v1/vms/one/cmd", &off).status, 200);
    await_status(&world, "STOPPED");
    start(&world, "one");
    assert_eq!(run(&world, "one", "echo back"), "back");
}

#[test]
fn two_that_start_the_same_name_make_one() {
    let world = World::start();
    let both: Vec<u16> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let request = json!({ "vmName": "one" });
                    keyless(&world).post("/v1/vms", &request).status
                })
            })
            .collect();
        starting
            .into_iter()
            .map(|one| one.join().unwrap())
            .collect()
    });
    let mut sorted = both.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [200, 409]);
    assert_eq!(statuses(&world), [("one".to_owned(), "RUNNING".to_owned())]);
    assert_eq!(run(&world, "one", "echo lives"), "lives");
}

#[test]
fn a_client_that_hangs_up_leaves_no_vm_standing() {
    let world = World::start();
    start(&world, "one");
    let address = world.url().replace("http://", "");
    let body = json!({ "snapshotId": "cut-off" }).to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = format!(
        "POST /v1/vms/one/snapshots HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    drop(stream);
    assert_eq!(run(&world, "one", "echo lives"), "lives");
    assert_eq!(statuses(&world), [("one".to_owned(), "RUNNING".to_owned())]);
}

#[test]
fn commands_are_neither_cut_off_nor_held_up() {
    let world = World::start();
    start(&world, "one");
    // Longer than that server waits for one.
    let long = std::thread::scope(|scope| {
        let long = scope.spawn(|| run(&world, "one", "sleep 31; echo at last"));
        // Lines longer than its reader takes.
        let lines = "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo > done";
        let started = json!({ "cmd": lines, "blocking": false });
        assert_eq!(
            keyless(&world).post("/v1/vms/one/cmd", &started).status,
            200
        );
        run(&world, "one", "until test -e done; do sleep 0.05; done");
        // What it stops is stopped in order: what was written is on the disk.
        long.join().unwrap()
    });
    assert_eq!(long, "at last");
    run(&world, "one", "echo written > file");
    let stop = json!({ "status": "stopped" }).to_string();
    let stopped = keyless(&world).send("PATCH", "/v1/vms/one", &[JSON], stop.as_bytes());
    assert_eq!(stopped.status, 200, "{}", stopped.text);
    start(&world, "one");
    assert_eq!(run(&world, "one", "cat file"), "written");
}

#[test]
fn several_from_one_snapshot_while_the_list_is_read() {
    let world = World::start();
    start(&world, "one");
    let kept = keyless(&world).post("/v1/vms/one/snapshots", &json!({ "snapshotId": "kept" }));
    assert_eq!(kept.status, 200, "{}", kept.text);
    std::thread::scope(|scope| {
        let world = &world;
        let restoring: Vec<_> = (0..3)
            .map(|number| {
                scope.spawn(move || {
                    let request =
                        json!({ "vmName": format!("from-{number}"), "snapshotId": "kept" });
                    keyless(world).post("/v1/vms", &request)
                })
            })
            .collect();
        while !restoring
            .iter()
            .all(std::thread::ScopedJoinHandle::is_finished)
        {
            assert_eq!(keyless(world).get("/v1/vms").status, 200);
        }
        for restored in restoring {
            let restored = restored.join().unwrap();
            assert_eq!(restored.status, 200, "{}", restored.text);
        }
    });
    assert_eq!(statuses(&world).len(), 4);
    for number in 0..3 {
        assert_eq!(run(&world, &format!("from-{number}"), "echo here"), "here");
    }
}

#[test]
fn what_is_asked_wrongly_is_refused_in_this_apis_words() {
    let world = World::start();
    let door = keyless(&world);
    let missing = door.get("/v1/vms/none");
    assert_eq!(missing.status, 404);
    assert_eq!(
        missing.json()["error"]["message"],
        "sandbox `none` not found"
    );
    let no_route = door.get("/v1/vms/none/other");
    assert_eq!(
        (no_route.status, no_route.text.as_str()),
        (404, "404 page not found\n")
    );
    let wrong = door.send("PUT", "/v1/vms/none", &[], b"");
    assert_eq!((wrong.status, wrong.text.as_str()), (405, ""));
    for (path, body) in [
        ("/v1/vms", json!([])),
        ("/v1/vms", json!({ "vmName": 1 })),
        ("/v1/vms/none/cmd", json!({})),
        ("/v1/vms/none/cmd", json!({ "cmd": "" })),
        ("/v1/vms/none/files", json!({ "files": [] })),
        ("/v1/vms/none/files", json!({ "files": [{ "path": "a" }] })),
        (
            "/v1/vms/none/files",
            json!({ "files": [{ "path": "", "content": "" }] }),
        ),
    ] {
        let refused = door.post(path, &body);
        assert_eq!(refused.status, 400, "{path} {body}: {}", refused.text);
        assert!(
            refused.json()["error"]["message"].is_string(),
            "{}",
            refused.text
        );
    }
    assert_eq!(door.get("/v1/vms/none/files").status, 400);
    let large = json!({ "cmd": "x".repeat(13 << 20) });
    assert_eq!(door.post("/v1/vms/none/cmd", &large).status, 413);
}

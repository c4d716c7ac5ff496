//! What went wrong with that API's own server, and does not here.

use super::{JSON, keyless, limited, owner, run, start, until};
use pando_testkit::{Answer, Footprint, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;

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
    until(status, || statuses(world)[0].1 == status);
}

fn send(world: &World, headers: &[(&str, &str)]) -> Answer {
    let body = json!({ "vmName": "stranger" }).to_string();
    keyless(world).send("POST", "/v1/vms", headers, body.as_bytes())
}

#[test]
fn nobody_but_a_program_of_this_machine_passes_without_a_key() {
    let mut world = World::start();
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
        let refused = send(&world, &[("content-type", form)]);
        assert_eq!(refused.status, 415, "{form}");
    }
    assert_eq!(send(&world, &[]).status, 415, "no type at all");
    let without_body = keyless(&world).send("POST", "/v1/vms", &[], b"");
    assert_eq!(without_body.status, 415, "{}", without_body.text);
    assert_eq!(send(&world, &[JSON, ("host", "evil.example")]).status, 421);
    assert_eq!(Footprint::of(&world), before);
    // What took over a shim or a QEMU is a program of this machine too.
    let port = world.url().rsplit_once(':').unwrap().1.to_owned();
    let ask = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; \
         printf 'GET /v1/vms HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3; \
         head -n 1 <&3"
    );
    for (account, status) in [("1879048199", "401"), ("65534", "200")] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", account, "--regid", account, "--clear-groups"]);
        let said = super::check(command.args(["bash", "-c", &ask]));
        assert!(said.contains(status), "{account}: {said}");
    }
    // Reading is no less.
    let read = keyless(&world).send("GET", "/vms", &[("x-forwarded-for", "203.0.113.7")], b"");
    assert_eq!(read.status, 401);
    // A daemon with a public name has a proxy before it, which may pass requests on as its own.
    for (setting, value) in [
        ("PANDO_PUBLIC_HOSTS", "pando.example"),
        ("PANDO_PUBLIC_URL", "https://*.sandboxes.example"),
    ] {
        world.kill_daemon();
        world.forget_env();
        world.set_env(setting, value);
        world.start_daemon();
        assert_eq!(keyless(&world).get("/v1/vms").status, 401, "{setting}");
    }
    world.kill_daemon();
    world.forget_env();
    // A daemon that others can reach opens to nobody.
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
    // Snapshots are no less apart.
    world.ok(["snapshot", &ours, "--name", "of-ours"]);
    let foreign = door.post(
        "/v1/vms",
        &json!({ "vmName": "x", "snapshotId": "of-ours" }),
    );
    assert_eq!(foreign.status, 404, "{}", foreign.text);
    // Who runs the daemon has a key to what was made without one.
    let id = run(&world, "theirs", "hostname");
    let kept = door.post(
        "/v1/vms/theirs/snapshots",
        &json!({ "snapshotId": "of-theirs" }),
    );
    assert_eq!(kept.status, 200, "{}", kept.text);
    let owner = owner(&world);
    let listed = owner.get("/v1/sandboxes").json();
    assert_eq!(listed["sandboxes"][0]["id"], id, "{listed}");
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(owner.delete("/v1/snapshots/of-theirs").status, 204);
    let gone = door.post(
        "/v1/vms",
        &json!({ "vmName": "x", "snapshotId": "of-theirs" }),
    );
    assert_eq!(gone.status, 404, "{}", gone.text);
    assert_eq!(door.delete("/v1/vms").status, 200);
    assert_eq!(owner.get("/v1/sandboxes").json()["sandboxes"], json!([]));
    assert_eq!(world.ok(["ls", "-q"]), ours);
}

#[test]
fn no_name_leads_out_of_its_place_and_no_file_of_the_host_in() {
    let world = World::start();
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

/// Processes and directories of VMs. A restore may also leave a memory that was put together
/// for all who map it.
fn machines(world: &World) -> (BTreeSet<u32>, BTreeSet<OsString>) {
    let directories = fs::read_dir(world.state_dir().join("v1/sandboxes")).unwrap();
    let names = directories.map(|entry| entry.unwrap().file_name());
    (world.processes(), names.collect())
}

#[test]
fn ports_of_the_host_come_back_and_what_cannot_start_leaves_nothing() {
    let world = limited("PANDO_PORT_RANGE", "23700-23704");
    let door = keyless(&world);
    for round in 0..3 {
        let name = format!("round-{round}");
        let vm = start(&world, &name);
        assert_eq!(vm["portForwards"].as_array().unwrap().len(), 5, "{vm}");
        let kept = door.post(
            &format!("/v1/vms/{name}/snapshots"),
            &json!({ "snapshotId": name }),
        );
        assert_eq!(kept.status, 200, "{}", kept.text);
        // No port is left for another, be it new or from a snapshot.
        let before = machines(&world);
        for request in [
            json!({ "vmName": "too-many" }),
            json!({ "vmName": "too-many", "snapshotId": name }),
        ] {
            let refused = door.post("/v1/vms", &request);
            assert_eq!(refused.status, 503, "{}", refused.text);
        }
        assert_eq!(machines(&world), before);
        assert_eq!(statuses(&world).len(), 1);
        assert_eq!(door.delete("/v1/vms").status, 200);
    }
    // What was refused for them can be had now.
    let restored = door.post(
        "/v1/vms",
        &json!({ "vmName": "too-many", "snapshotId": "round-0" }),
    );
    assert_eq!(restored.status, 200, "{}", restored.text);
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
    let off = json!({ "cmd": "/usr/sbin/poweroff; sleep 100", "blocking": false });
    assert_eq!(keyless(&world).post("/v1/vms/one/cmd", &off).status, 200);
    await_status(&world, "STOPPED");
    start(&world, "one");
    assert_eq!(run(&world, "one", "echo back"), "back");
}

#[test]
fn two_that_start_the_same_name_make_one() {
    let world = World::start();
    let mut both: Vec<u16> = std::thread::scope(|scope| {
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
    both.sort_unstable();
    assert_eq!(both, [200, 409]);
    assert_eq!(statuses(&world), [("one".to_owned(), "RUNNING".to_owned())]);
    assert_eq!(run(&world, "one", "echo lives"), "lives");
}

/// Sends a request and gives the connection, on which nothing was read.
fn begin(world: &World, path: &str, body: &Value) -> TcpStream {
    let address = world.url().replace("http://", "");
    let body = body.to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn a_client_that_hangs_up_leaves_no_vm_standing_and_none_half_made() {
    let world = World::start();
    start(&world, "one");
    let owner = owner(&world);
    drop(begin(
        &world,
        "/v1/vms/one/snapshots",
        &json!({ "snapshotId": "cut-off" }),
    ));
    assert_eq!(run(&world, "one", "echo lives"), "lives");
    assert_eq!(statuses(&world), [("one".to_owned(), "RUNNING".to_owned())]);
    // Taken whole or not at all.
    let kept = owner.get("/v1/snapshots").json();
    if kept["snapshots"] != json!([]) {
        let request = json!({ "vmName": "one", "snapshotId": "cut-off" });
        assert_eq!(keyless(&world).post("/v1/vms", &request).status, 200);
    }
    let before = Footprint::of(&world);
    let starting = begin(&world, "/v1/vms", &json!({ "vmName": "two" }));
    until("it is begun", || statuses(&world).len() == 2);
    drop(starting);
    // Its creator went away: it goes, unless it was there before; then it can be destroyed.
    until("nothing is left of it", || {
        let destroyed = keyless(&world).delete("/v1/vms/two").status;
        assert!([200, 404].contains(&destroyed), "{destroyed}");
        Footprint::of(&world) == before
    });
    start(&world, "two");
    assert_eq!(run(&world, "two", "echo whole"), "whole");
}

#[test]
fn a_snapshot_costs_what_changed_and_a_restored_vm_is_like_any() {
    let world = World::start();
    let door = keyless(&world);
    let keep = |vm: &str, id: &str| {
        let kept = door.post(
            &format!("/v1/vms/{vm}/snapshots"),
            &json!({ "snapshotId": id }),
        );
        assert_eq!(kept.status, 200, "{}", kept.text);
    };
    let restore = |vm: &str, id: &str| {
        let request = json!({ "vmName": vm, "snapshotId": id });
        let restored = door.post("/v1/vms", &request);
        assert_eq!(restored.status, 200, "{}", restored.text);
    };
    start(&world, "v0");
    for generation in 0..3 {
        let (vm, next) = (format!("v{generation}"), format!("v{}", generation + 1));
        run(&world, &vm, &format!("echo {generation} >> generations"));
        keep(&vm, &format!("s{generation}"));
        restore(&next, &format!("s{generation}"));
    }
    assert_eq!(run(&world, "v3", "cat generations"), "0\n1\n2");
    assert_eq!(run(&world, "v0", "cat generations"), "0");
    // The one it came from may go.
    assert_eq!(door.delete("/v1/vms/v0").status, 200);
    restore("v3", "s0");
    assert_eq!(run(&world, "v3", "cat generations"), "0");
    // 512 MiB of memory and a disk of GiB are not copied.
    let kept = owner(&world).get("/v1/snapshots").json();
    for snapshot in kept["snapshots"].as_array().unwrap() {
        let bytes = snapshot["bytes"].as_u64().unwrap();
        assert!(bytes > 0 && bytes < 64 << 20, "{snapshot}");
    }
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
    // What is null is left out, as in that API.
    let request = json!({ "vmName": "one", "snapshotId": null, "kernel": null });
    let started = door.post("/v1/vms", &request);
    assert_eq!(started.status, 200, "{}", started.text);
    // VMs are spoken of by their names.
    let again = door.post("/v1/vms", &json!({ "vmName": "one" }));
    assert_eq!(
        (again.status, &again.json()["error"]["message"]),
        (409, &json!("sandbox `one` is running: cannot start it"))
    );
    // What is too long to be shown is cut and says so.
    let long = json!({ "cmd": "head -c 9000000 /dev/zero | tr '\\0' y" });
    let ran = door.post("/v1/vms/one/cmd", &long).json();
    let output = ran["output"].as_str().unwrap();
    assert!(output.len() < 9_000_000, "{}", output.len());
    assert!(output.ends_with("y\n[the rest of the output was dropped]"));
    let command = json!({ "cmd": "truncate -s 65M /large; rm -rf /tmp/server_files; touch /tmp/server_files" });
    assert_eq!(door.post("/v1/vms/one/cmd", &command).status, 200);
    let ran = door
        .post("/v1/vms/one/cmd", &json!({ "cmd": "echo" }))
        .json();
    assert_eq!(ran["error"], "exit status 1", "{ran}");
    assert!(
        ran["output"].as_str().unwrap().contains("server_files"),
        "{ran}"
    );
    // What is no file of text says so in its place, and the others are read.
    let files = door
        .get("/v1/vms/one/files?paths=/dev/zero,/etc,/etc/hostname,/large")
        .json();
    let error = |at: usize| files["files"][at]["error"].as_str().unwrap().to_owned();
    assert!(error(0).starts_with("Failed to read file: "), "{files}");
    assert!(error(1).starts_with("Failed to read file: "), "{files}");
    assert_eq!(error(2), "", "{files}");
    assert!(error(3).contains("at most 64 MiB"), "{}", error(3));
    let stop = json!({ "status": "stopped" }).to_string();
    let stopped = door.send("PATCH", "/v1/vms/one", &[JSON], stop.as_bytes());
    assert_eq!(stopped.status, 200, "{}", stopped.text);
    for refused in [
        door.get("/v1/vms/one/files?paths=/etc/hostname"),
        door.post("/v1/vms/one/cmd", &json!({ "cmd": "id" })),
        door.post("/v1/vms/one/snapshots", &json!({})),
        door.send("PATCH", "/v1/vms/one", &[JSON], br#"{"status":"resume"}"#),
    ] {
        assert_eq!(refused.status, 409, "{}", refused.text);
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains("`one` is stopped"), "{message}");
    }
    let large = json!({ "cmd": "x".repeat(13 << 20) });
    assert_eq!(door.post("/v1/vms/none/cmd", &large).status, 413);
}

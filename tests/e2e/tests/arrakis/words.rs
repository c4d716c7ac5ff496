//! What is wrong, missing or too much, in the words of this API.

use super::{JSON, keyless, start};
use pando_testkit::World;
use serde_json::json;

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

#[test]
fn what_cannot_be_done_now_names_the_vm_as_its_client_does() {
    let world = World::start();
    let door = keyless(&world);
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
}

#[test]
fn what_cannot_be_shown_says_so_in_its_place() {
    let world = World::start();
    start(&world, "one");
    let door = keyless(&world);
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
}

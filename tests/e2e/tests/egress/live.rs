//! A policy that changes while connections are open.

use crate::stage::Stage;
use serde_json::{Value, json};

#[test]
fn a_new_policy_cuts_what_it_forbids_and_nothing_else() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    guest.tries_to(&json!(["name", "echo.test.example"])).good();
    guest.hold(&[
        "cut talk 203.0.113.5 7",
        "cut-idle wait 203.0.113.5 7007",
        "kept talk 203.0.113.77 7",
        "named talk 198.51.100.30 7",
    ]);
    assert_eq!(stage.lab.echo.open(), 4);

    guest.patch(&json!({ "default": "allow", "deny": ["203.0.113.5"] }));
    for name in ["cut", "cut-idle"] {
        assert_eq!(guest.await_cut(name).0, "ECONNRESET", "{name}");
    }
    stage.lab.echo.await_open(2);
    guest.await_talk("kept");
    guest.await_talk("named");
    guest.tries_to(&json!(["tcp", "203.0.113.5", 7])).refused();
    let egress = stage.world.inspect(&guest.id)["egress"].clone();
    assert_eq!(egress["deny"], json!(["203.0.113.5"]), "{egress}");

    guest.patch(&json!({ "default": "deny", "allow": ["echo.test.example"] }));
    assert_eq!(guest.await_cut("kept").0, "ECONNRESET");
    // Its address was asked for by that name.
    guest.await_talk("named");
    stage.lab.echo.await_open(1);

    guest.patch(&json!({ "default": "deny" }));
    assert_eq!(guest.await_cut("named").0, "ECONNRESET");
    stage.lab.echo.await_open(0);
    guest
        .tries_to(&json!(["name", "echo.test.example"]))
        .refused();

    guest.patch(&json!({}));
    guest
        .tries_to(&json!(["say", "203.0.113.5", 7, "hello"]))
        .said("hello");
    guest.greeted_by("allowed.test.example", "https://allowed.test.example/");
}

#[test]
fn a_policy_outlives_what_happens_to_its_sandbox() {
    let mut stage = Stage::new();
    let policy = json!({ "default": "deny", "allow": ["203.0.113.5:7"] });
    let id = stage.guest(&policy).id;
    for way in ["daemon", "stop", "pause"] {
        match way {
            "daemon" => {
                stage.world.kill_daemon();
                stage.world.start_daemon();
            }
            "stop" => {
                stage.world.ok(["stop", &id]);
                stage.world.ok(["start", &id]);
            }
            _ => {
                stage.world.ok(["pause", &id]);
                stage.world.ok(["resume", &id]);
            }
        }
        let guest = stage.prepared(id.clone());
        guest
            .tries_to(&json!(["say", "203.0.113.5", 7, "hello"]))
            .said("hello");
        guest.tries_to(&json!(["tcp", "203.0.113.77", 7])).refused();
    }
    let child = stage.world.api().fork(&id, &json!({ "count": 1 }));
    assert_eq!(child.status, 201, "{}", child.text);
    let child = child.json()["children"][0]["sandbox"]["id"].clone();
    let child = stage.copy(child.as_str().unwrap());
    child
        .tries_to(&json!(["say", "203.0.113.5", 7, "hello"]))
        .said("hello");
    child.tries_to(&json!(["tcp", "203.0.113.77", 7])).refused();
}

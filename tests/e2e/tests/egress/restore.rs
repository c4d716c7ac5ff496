//! Sandboxes that come back: their old connections end at once, and new ones work at once.

use crate::stage::{Guest, Stage};
use pando_testkit::Answer;
use serde_json::{Value, json};

/// By how much a program may notice its new life later than the end of a connection: without
/// KVM a look at a file takes that long.
const NOTICED_MS: i64 = 100;

/// A connection from before is reset within this, in milliseconds of the guest.
const RESET_MS: i64 = 1000;

/// Connections of a program that talks and of one that waits.
const HELD: [&str; 2] = ["talks talk 203.0.113.5 7", "waits wait 203.0.113.77 7007"];

fn json_of(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text);
    answer.json()
}

fn children(forked: &Value) -> Vec<String> {
    let children = forked["children"].as_array().unwrap();
    children
        .iter()
        .map(|child| child["sandbox"]["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Names and connections work, now; connections from before are reset soon.
fn works_at_once_and_forgets(guest: &Guest<'_>, way: &str) {
    let outcomes = guest.tries(&json!([
        ["name", "allowed.test.example"],
        ["say", "203.0.113.5", 7, way],
        ["udp", "203.0.113.5", 7, way],
    ]));
    for outcome in &outcomes {
        outcome.good();
        assert!(outcome.ms() < 2000.0, "{way}: {outcome:?}");
    }
    outcomes[1].said(way);
    outcomes[2].said(way);
    for name in ["talks", "waits"] {
        let (error, after) = guest.await_cut(name);
        println!("{way}, {name}: {error} after {after} ms");
        assert_eq!(error, "ECONNRESET", "{way}, {name}");
        assert!(
            (-NOTICED_MS..RESET_MS).contains(&after),
            "{way}, {name}: {after} ms"
        );
    }
    guest.greeted_by("allowed.test.example", "https://allowed.test.example/");
}

#[test]
fn connections_from_before_are_reset_and_new_ones_work_at_once() {
    let stage = Stage::new();
    let api = stage.world.api();
    let guest = stage.guest(&Value::Null);
    let id = &guest.id;
    guest.hold(&HELD);
    let taken = json_of(&api.snapshot(id, &json!({})), 201);
    let snapshot = taken["id"].as_str().unwrap();
    // Nothing happens to the source of a snapshot, nor of a fork.
    guest.await_talk("talks");
    let forked = json_of(&api.fork(id, &json!({ "count": 2 })), 201);
    for child in children(&forked) {
        works_at_once_and_forgets(&stage.copy(&child), "fork");
        json_of_removed(&api.delete(&format!("/v1/sandboxes/{child}")));
    }
    guest.await_talk("talks");
    let made = stage.world.ok(["create", "--from", snapshot]);
    works_at_once_and_forgets(&stage.copy(&made), "create --from");
    stage.world.ok(["rm", &made]);
    guest.await_talk("talks");

    json_of(&api.roll_back(id, &json!({ "snapshot": snapshot })), 200);
    works_at_once_and_forgets(&guest, "rollback");
    guest.sh("rm -r /dev/shm/held");
    guest.hold(&HELD);
    json_of(&api.pause(id), 200);
    // The world is not left with half of a connection.
    stage.lab.echo.await_open(0);
    json_of(&api.resume(id), 200);
    works_at_once_and_forgets(&guest, "resume");
}

fn json_of_removed(answer: &Answer) {
    assert!((200..300).contains(&answer.status), "{}", answer.text);
}

#[test]
fn two_forks_with_the_same_address_work_at_the_same_time() {
    let stage = Stage::new();
    let api = stage.world.api();
    let guest = stage.guest(&Value::Null);
    let forked = json_of(&api.fork(&guest.id, &json!({ "count": 2 })), 201);
    let hash = stage.lab.web.bulk_sha256();
    let children = children(&forked);
    let guests: Vec<Guest<'_>> = children.iter().map(|id| stage.copy(id)).collect();
    std::thread::scope(|scope| {
        for guest in &guests {
            let hash = &hash;
            scope.spawn(move || {
                let address = guest.sh("ip -4 -o addr show eth0 | grep -o 'inet [0-9./]*'");
                assert_eq!(address, "inet 10.0.2.15/24");
                // The same ports on both sides, too.
                let fetch = "curl -sS --max-time 60 --local-port 50000 -o /tmp/bulk \
                             http://other.test.example/bulk && sha256sum < /tmp/bulk";
                let fetched = guest.sh(fetch);
                assert!(fetched.starts_with(hash.as_str()), "{fetched}");
                let said = guest.tries_to(&json!(["say", "203.0.113.5", 7, guest.id]));
                said.said(&guest.id);
            });
        }
    });
    // The parent is as it was.
    guest.greeted_by("allowed.test.example", "https://allowed.test.example/");
}

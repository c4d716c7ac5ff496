//! Rules by name, zone, range, port and protocol.

use crate::stage::{Guest, Stage};
use pando_testkit::World;
use serde_json::{Value, json};

/// Tries things that must work.
fn all_good(guest: &Guest<'_>, what: &Value) {
    for outcome in guest.tries(what) {
        outcome.good();
    }
}

/// Tries things that must be refused.
fn all_refused(guest: &Guest<'_>, what: &Value) {
    for outcome in guest.tries(what) {
        outcome.refused();
    }
}

fn no_packet_to_evil(stage: &Stage) {
    for address in ["198.51.100.66", "2001:db8:66::66"] {
        assert_eq!(stage.lab.packets_to(address.parse().unwrap()), []);
    }
}

#[test]
fn with_default_deny_only_what_is_named_is_reached() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({ "default": "deny", "allow": [
        "allowed.test.example", "*.wild.example", "alias.test.example", "other.test.example:80",
        "echo.test.example", "203.0.113.0/26", "203.0.113.77:7007", "198.51.100.27/tcp",
        "198.51.100.30:7/udp",
    ] }));
    guest.greeted_by("allowed.test.example", "-4 http://allowed.test.example/");
    guest.greeted_by("allowed.test.example", "-4 https://allowed.test.example/");
    guest.greeted_by("allowed.test.example", "-6 https://allowed.test.example/");
    guest.greeted_by("wild.example", "http://deep.zone.wild.example/");
    // An allowed name is an alias of one that is not.
    guest.greeted_by("real.elsewhere.example", "http://alias.test.example/");
    guest.greeted_by("other.test.example", "http://other.test.example/");
    assert!(guest.curl("https://other.test.example/").is_err());
    all_good(
        &guest,
        &json!([
            ["say", "203.0.113.5", 7, "hello, you"],
            ["say", "203.0.113.5", 7007, "hello, you"],
            ["udp", "203.0.113.5", 7],
            ["ping", "203.0.113.5"],
            ["say", "203.0.113.77", 7007, "hello, you"],
            ["udp", "203.0.113.77", 7007],
            ["udp", "198.51.100.30", 7],
            ["name", "echo.test.example", 6],
            ["say", "2001:db8::30", 7, "hello, you"],
            ["tcp", "198.51.100.27", 22],
        ]),
    );
    all_refused(
        &guest,
        &json!([
            ["name", "evil.bad.example"],
            ["name", "real.elsewhere.example"],
            ["name", "wild.example"],
            ["name", "below.allowed.test.example"],
            ["tcp", "198.51.100.66", 443],
            ["tcp", "2001:db8:66::66", 443],
            ["udp", "198.51.100.66", 443],
            ["ping", "198.51.100.66"],
            ["tcp", "203.0.113.77", 7],
            ["udp", "203.0.113.77", 7],
            ["ping", "203.0.113.77"],
            ["udp", "198.51.100.27", 22],
        ]),
    );
    no_packet_to_evil(&stage);
    for name in [
        "bad.example",
        ".elsewhere.example",
        "below.allowed.test.example",
    ] {
        assert_eq!(stage.lab.names.queries_below(name), Vec::<String>::new());
    }
}

#[test]
fn a_rule_for_datagrams_lets_no_connection_through() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({ "default": "deny", "allow": [
        "198.51.100.30:7/udp", "203.0.113.5:7/tcp", "203.0.113.77/icmp", "[2001:db8::30]:7",
    ] }));
    all_good(
        &guest,
        &json!([
            ["udp", "198.51.100.30", 7],
            ["say", "203.0.113.5", 7, "hello, you"],
            ["ping", "203.0.113.77"],
            ["say", "2001:db8::30", 7, "hello, you"],
            ["udp", "2001:db8::30", 7],
        ]),
    );
    all_refused(
        &guest,
        &json!([
            ["tcp", "198.51.100.30", 7],
            ["udp", "198.51.100.30", 7007],
            ["ping", "198.51.100.30"],
            ["udp", "203.0.113.5", 7],
            ["tcp", "203.0.113.5", 7007],
            ["tcp", "203.0.113.77", 7],
            ["udp", "203.0.113.77", 7],
            ["tcp", "2001:db8::30", 7007],
        ]),
    );
    assert_eq!(stage.lab.echo.accepted(), 2);
    let datagrams = stage.lab.echo.datagrams();
    assert_eq!(datagrams.len(), 2, "{datagrams:?}");
}

#[test]
fn what_is_denied_is_refused_and_all_else_is_reached() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({
        "allow": ["203.0.113.77"],
        "deny": ["evil.bad.example", "*.wild.example", "203.0.113.64/26", "198.51.100.30:7007"],
    }));
    assert_eq!(stage.world.inspect(&guest.id)["egress"]["default"], "allow");
    guest.greeted_by("allowed.test.example", "https://allowed.test.example/");
    all_good(
        &guest,
        &json!([
            ["say", "203.0.113.5", 7, "hello"],
            ["say", "198.51.100.30", 7, "hello"],
            ["udp", "198.51.100.30", 7],
            ["name", "wild.example"],
        ]),
    );
    all_refused(
        &guest,
        &json!([
            ["name", "evil.bad.example"],
            ["name", "a.b.wild.example"],
            // Denied first: that it is allowed too changes nothing.
            ["tcp", "203.0.113.77", 7],
            ["udp", "203.0.113.77", 7],
            ["tcp", "198.51.100.30", 7007],
            ["udp", "198.51.100.30", 7007],
        ]),
    );
    assert_eq!(
        stage.lab.names.queries_below("bad.example"),
        Vec::<String>::new()
    );
    // The site's address is known to the guest all the same.
    for address in ["198.51.100.66", "[2001:db8:66::66]"] {
        for (scheme, port) in [("http", 80), ("https", 443)] {
            let there = format!("--resolve evil.bad.example:{port}:{address}");
            let said = guest.curl(&format!("{there} {scheme}://evil.bad.example/"));
            assert!(said.is_err(), "{there}: {said:?}");
        }
    }
    assert_eq!(stage.lab.web.requests_for("evil.bad.example"), []);
}

#[test]
fn the_command_line_sets_a_policy_and_shows_what_came_of_it() {
    let stage = Stage::new();
    let world: &World = &stage.world;
    let id = world.ok([
        "create",
        "--egress",
        "deny",
        "--allow",
        "allowed.test.example",
        "--allow",
        "203.0.113.5:7/tcp",
        "--deny",
        "203.0.113.5:7007",
    ]);
    let egress = world.inspect(&id)["egress"].clone();
    assert_eq!(egress["default"], "deny", "{egress}");
    assert_eq!(
        egress["allow"],
        json!(["allowed.test.example", "203.0.113.5:7/tcp"])
    );
    assert_eq!(egress["deny"], json!(["203.0.113.5:7007"]));
    let guest = stage.prepared(id);
    guest.hold(&["kept talk 203.0.113.5 7"]);
    guest.tries_to(&json!(["tcp", "203.0.113.77", 7])).refused();
    guest
        .tries_to(&json!(["name", "evil.bad.example"]))
        .refused();

    let net: Value = serde_json::from_str(&world.ok(["net", &guest.id, "--json"])).unwrap();
    assert_eq!(net["egress"], egress);
    let connections = net["connections"].as_array().unwrap();
    let kept = connections
        .iter()
        .find(|found| found["remote"] == "203.0.113.5:7")
        .unwrap_or_else(|| panic!("{net:#}"));
    assert_eq!(kept["protocol"], "tcp");
    for bytes in ["sent_bytes", "received_bytes"] {
        assert!(kept[bytes].as_u64().unwrap() >= 9, "{kept}");
    }
    let refusals = net["refusals"].to_string();
    for told in ["203.0.113.77", "evil.bad.example", "default deny"] {
        assert!(refusals.contains(told), "{told}: {refusals}");
    }
    let table = world.ok(["net", &guest.id]);
    for told in ["203.0.113.5:7", "203.0.113.77", "evil.bad.example"] {
        assert!(table.contains(told), "{told}: {table}");
    }
}

#[test]
fn a_template_says_what_its_sandboxes_may_reach_that_say_nothing_themselves() {
    let stage = Stage::new();
    let world = &stage.world;
    let policy = |id: &str| world.inspect(id)["egress"].clone();
    let all = json!({ "default": "allow", "allow": [], "deny": [] });
    let few = json!({ "default": "deny", "allow": ["203.0.113.77"], "deny": [] });
    assert_eq!(policy(&world.create()), all);
    let set = [
        "template",
        "net",
        "base",
        "--egress",
        "deny",
        "--allow",
        "203.0.113.77",
    ];
    assert_eq!(world.ok(set), "allow 203.0.113.77\ndefault deny");
    let guest = stage.guest(&Value::Null);
    assert_eq!(policy(&guest.id), few);
    let outcomes = guest.tries(&json!([
        ["tcp", "203.0.113.77", 7007],
        ["tcp", "203.0.113.5", 7],
    ]));
    outcomes[0].good();
    outcomes[1].refused();
    let snapshot = world.ok(["snapshot", &guest.id]);
    world.ok(["template", "net", "base", "--egress", "allow"]);
    assert_eq!(policy(&world.create()), all);
    // What is made of what there was before keeps what that might.
    assert_eq!(policy(&world.ok(["create", "--from", &snapshot])), few);
    assert_eq!(policy(&world.ok(["fork", &guest.id])), few);
}

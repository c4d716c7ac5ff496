//! What no sandbox reaches unless a rule says that very place: the host, its networks, its
//! cloud, the API and other sandboxes.

use crate::stage::{Guest, Stage};
use pando_testkit::lab::{FORBIDDEN, FORBIDDEN_ALIASES, FORBIDDEN_PORTS};
use pando_testkit::{Answer, Api};
use serde_json::{Value, json};

/// The guest's kernel keeps these for itself or for the link: only frames carry them out.
fn only_in_frames(address: &str) -> bool {
    let hidden = ["127.", "0.", "239.", "255.", "::", "fe80"];
    hidden.iter().any(|start| address.starts_with(start))
}

fn everything_forbidden() -> Vec<&'static str> {
    let addresses = FORBIDDEN.iter().map(|(address, _)| *address);
    addresses.chain(FORBIDDEN_ALIASES).collect()
}

/// Tries to reach all of it in every way; each way that has an answer has a refusal for one.
fn nothing_is_reached(stage: &Stage, guest: &Guest<'_>) {
    let addresses = everything_forbidden();
    let mut ways = Vec::new();
    for address in addresses.iter().filter(|address| !only_in_frames(address)) {
        for port in FORBIDDEN_PORTS {
            ways.push(json!(["tcp", address, port]));
            ways.push(json!(["udp", address, port]));
        }
        ways.push(json!(["ping", address]));
    }
    for outcome in guest.tries(&Value::Array(ways)) {
        outcome.refused();
    }
    let mut ways: Vec<Value> = addresses
        .iter()
        .map(|address| json!(["frame", address, 8080]))
        .collect();
    ways.push(json!(["throw", "239.1.2.3", 5000]));
    ways.push(json!(["throw", "255.255.255.255", 5000]));
    for outcome in guest.tries(&Value::Array(ways)) {
        assert_ne!(outcome.found["answer"], "accepted", "{outcome:?}");
    }
    // The gateway takes frames one by one: what came before this answer was dealt with.
    guest.greeted_by("allowed.test.example", "https://allowed.test.example/");
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

#[test]
fn without_a_policy_no_protected_address_is_reached_in_any_way() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    nothing_is_reached(&stage, &guest);
    for (address, _) in FORBIDDEN {
        if only_in_frames(address) {
            continue;
        }
        // The list is of the newest refusals.
        guest.tries_to(&json!(["tcp", address, 8080])).refused();
        let refusals = guest.refusals_of(address);
        let protected = |refusal: &Value| refusal["rule"].to_string().contains("protected");
        assert!(refusals.iter().any(protected), "{address}: {refusals:?}");
    }
}

#[test]
fn rules_as_wide_as_the_world_open_nothing() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({ "default": "allow", "allow": [
        "0.0.0.0/0", "::/0", "8.0.0.0/5", "rebind.test.example", "metadata.test.example",
        "loopback.test.example", "host.test.example", "*.test.example",
    ] }));
    nothing_is_reached(&stage, &guest);
    names_lead_nowhere(&guest);
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

#[test]
fn names_that_lead_to_protected_addresses_lead_nowhere() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    names_lead_nowhere(&guest);
    let refusals = guest.refusals_of("rebind.test.example");
    let protected = |refusal: &Value| refusal["rule"].to_string().contains("protected");
    assert!(refusals.iter().any(protected), "{:#}", guest.network());
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

fn names_lead_nowhere(guest: &Guest<'_>) {
    for name in [
        "rebind", "rebind6", "metadata", "loopback", "host", "mapped",
    ] {
        let name = format!("{name}.test.example");
        guest.tries_to(&json!(["name", name])).refused();
        let said = guest.curl(&format!("http://{name}:8080/"));
        assert!(said.is_err(), "{name}: {said:?}");
    }
    let mixed = guest.tries_to(&json!(["name", "mixed.test.example"]));
    assert_eq!(
        mixed.found["addresses"],
        json!(["198.51.100.10"]),
        "{mixed:?}"
    );
}

#[test]
fn a_rule_that_names_a_place_inside_a_protected_range_opens_that_place_alone() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({ "allow": [
        "10.9.1.1:8080", "172.16.0.0/12", "169.254.169.254:80/tcp", "[fd00:8::1]:8080",
    ] }));
    for outcome in guest.tries(&json!([
        ["say", "10.9.1.1", 8080, "hello"],
        ["udp", "10.9.1.1", 8080],
        ["say", "172.16.5.1", 22, "hello"],
        ["say", "169.254.169.254", 80, "hello"],
        ["say", "fd00:8::1", 8080, "hello"],
    ])) {
        outcome.good();
    }
    assert!(!stage.lab.packets_to("10.9.1.1".parse().unwrap()).is_empty());
    stage.lab.forget_trespasses();
    for outcome in guest.tries(&json!([
        ["tcp", "10.9.1.1", 80],
        ["ping", "10.9.1.1"],
        ["tcp", "192.168.77.1", 8080],
        ["udp", "169.254.169.254", 80],
        ["tcp", "fd00:8::1", 80],
        ["tcp", "fd00:ec2::254", 80],
    ])) {
        outcome.refused();
    }
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

/// `GET /healthz` of the daemon, by one of the host's addresses.
fn health(address: &str, port: &str) -> Answer {
    Api::new(format!("http://{address}:{port}"), None).get("/healthz")
}

#[test]
fn the_api_and_other_sandboxes_are_reached_by_no_address() {
    let mut stage = Stage::new();
    stage.world.kill_daemon();
    stage.world.start_daemon_at("0.0.0.0:0");
    let url = stage.world.url();
    let port = url.rsplit(':').next().unwrap();
    let (guest, other) = (stage.guest(&Value::Null), stage.guest(&Value::Null));
    let answers = "HTTP/1.1 200 OK\\r\\n\\r\\nsecret";
    other.sh(&format!(
        "setsid python3 -c 'import socket\nfor s in [socket.create_server((\"::\", 8080), family=socket.AF_INET6, dualstack_ipv6=True)]:\n  while True:\n    c, _ = s.accept(); c.sendall(b\"{answers}\"); c.close()' \
         > /dev/null 2>&1 < /dev/null & \
         until curl -sS --max-time 5 http://10.0.2.15:8080/ | grep -q secret; do :; done"
    ));
    let api: u16 = port.parse().unwrap();
    // The host answers there.
    for address in ["198.51.100.2", "10.9.0.2", "127.0.0.1"] {
        assert_eq!(health(address, port).status, 200, "{address}");
    }
    let mut ways = Vec::new();
    for address in [
        "198.51.100.2",
        "10.9.0.2",
        "10.0.2.2",
        "10.0.2.15",
        "10.0.2.16",
    ] {
        ways.push(json!(["tcp", address, api]));
        ways.push(json!(["tcp", address, 8080]));
    }
    for address in ["fd70:616e:646f::2", "fd70:616e:646f::15"] {
        ways.push(json!(["tcp", address, api]));
        ways.push(json!(["tcp", address, 8080]));
    }
    for outcome in guest.tries(&Value::Array(ways)) {
        outcome.refused();
    }
    // Neighbours' addresses, and those that the guest's own kernel keeps.
    let frames: Vec<Value> = [
        "127.0.0.1",
        "0.0.0.0",
        "::1",
        "::ffff:127.0.0.1",
        "198.51.100.2",
    ]
    .iter()
    .chain(&["10.0.2.16", "10.0.2.15", "10.0.2.2", "fd70:616e:646f::16"])
    .flat_map(|address| {
        [
            json!(["frame", address, api]),
            json!(["frame", address, 8080]),
        ]
    })
    .collect();
    for outcome in guest.tries(&Value::Array(frames)) {
        assert_ne!(outcome.found["answer"], "accepted", "{outcome:?}");
    }
    let name = guest.curl(&format!("http://host.test.example:{port}/healthz"));
    assert!(name.is_err(), "{name:?}");
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

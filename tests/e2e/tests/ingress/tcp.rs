//! TCP ports of the host that lead into sandboxes.

use super::guest::{Guest, ask};
use super::http::Connection;
use super::{pattern, sha256};
use serde_json::json;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn a_tcp_port_leads_into_the_guest_and_stays_the_sandboxs() {
    let mut guest = Guest::start();
    let raw = guest.raw(5901);
    assert_eq!(guest.raw(5901), raw, "asked again, it is the same");
    let port: u16 = raw.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
    assert!((20_000..30_000).contains(&port));
    let body = pattern(8 << 20);
    assert_eq!(
        ask(&raw, &body).unwrap(),
        sha256(&body) + "\n",
        "a half-closed connection stays one"
    );

    let closed = guest.raw(81);
    assert_ne!(closed, raw);
    let begun = Instant::now();
    let refused = ask(&closed, b"").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );

    let short = sha256(b"x") + "\n";
    let snapshot = guest.snapshot();
    let mut open = Connection::to(&raw);
    open.send(b"half");
    let mut events = guest.connect();
    events.send(format!(
        "GET /events HTTP/1.1\r\nHost: {}\r\n\r\n",
        guest.host(8080)
    ));
    assert_eq!(events.head().status, 200);
    assert_eq!(events.chunk(), b"data: one\n\n");
    let rolled_back = guest
        .world
        .api()
        .roll_back(&guest.id, &json!({ "snapshot": snapshot }));
    assert_eq!(rolled_back.status, 200, "{}", rolled_back.text);
    assert_eq!(
        open.rest().unwrap_err().kind(),
        ErrorKind::ConnectionReset,
        "what was open before is cut"
    );
    // Without the chunk that ends a body.
    let rest = events.rest().unwrap_or_default();
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    assert_eq!(ask(&raw, b"x").unwrap(), short, "after a rollback");
    assert_eq!(guest.heard("")["line"], "GET / HTTP/1.1");

    guest
        .world
        .ok(["port", &guest.id, "8123", "--access", "token"]);
    let child = guest.world.api().fork(&guest.id, &json!({})).json();
    let child = child["children"][0]["sandbox"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let ports = guest
        .world
        .api()
        .get(&format!("/v1/sandboxes/{child}/ports"))
        .json();
    let raws: Vec<_> = ports["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| &port["raw"])
        .collect();
    assert!(
        raws.len() >= 2 && raws.iter().all(|raw| raw.is_null()),
        "{ports}"
    );

    let is_token = |port: &&serde_json::Value| port["port"] == 8123;
    let told = ports["ports"].as_array().unwrap().iter().find(is_token);
    assert_eq!(told.unwrap()["access"], "token", "{ports}");

    guest.world.ok(["pause", &guest.id]);
    assert_eq!(
        ask(&raw, b"x").unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    guest.world.ok(["resume", &guest.id]);
    assert_eq!(ask(&raw, b"x").unwrap(), short, "after a pause");

    guest.world.kill_daemon();
    assert!(TcpStream::connect(&raw).is_err());
    guest.world.start_daemon();
    assert_eq!(ask(&raw, b"x").unwrap(), short, "under another daemon");

    guest.world.ok(["port", "--rm", &guest.id, "81"]);
    assert!(TcpStream::connect(&closed).is_err());
    assert_eq!(guest.world.run(["port", "--rm", &guest.id, "81"]).code, 1);
    guest.world.ok(["rm", &guest.id]);
    assert!(
        TcpStream::connect(&raw).is_err(),
        "it goes with the sandbox"
    );
}

#[test]
fn a_port_of_the_range_that_is_taken_is_passed_over() {
    // Two neighbours that are free now, the first of which is taken here.
    let (taken, first) = (20_000..29_000)
        .rev()
        .filter_map(|port| Some((TcpListener::bind(("127.0.0.1", port)).ok()?, port)))
        .find(|(_, port)| TcpListener::bind(("127.0.0.1", port + 1)).is_ok())
        .unwrap();
    let range = format!("{first}-{}", first + 1);
    let guest = Guest::with(&[("PANDO_PORT_RANGE", &range)]);
    assert_eq!(guest.raw(5901), format!("127.0.0.1:{}", first + 1));
    let refused = guest.world.run(["port", &guest.id, "8080"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused
            .stderr
            .contains(&format!("no port of {first} to {}", first + 1)),
        "{refused:?}"
    );
    drop(taken);
    assert_eq!(guest.raw(8080), format!("127.0.0.1:{first}"));
}

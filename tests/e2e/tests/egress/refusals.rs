//! What is refused is refused at once, and is told.

use crate::stage::{Guest, Outcome, Stage, median};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A refused connection has its reset within this, in milliseconds. It is measured by the
/// program in the guest, so Python and the guest's own kernel are in it.
const REFUSED_MS: f64 = 50.0;

/// How often each thing is tried, after once for the code that is translated then.
const TRIES: usize = 20;

/// How long an event may take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

fn often(guest: &Guest<'_>, what: &Value) -> Vec<Outcome> {
    let ways = vec![what.clone(); TRIES + 1];
    guest.tries(&Value::Array(ways)).split_off(1)
}

#[test]
fn nothing_that_is_refused_hangs() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({ "default": "deny", "allow": ["allowed.test.example"] }));
    for what in [
        json!(["tcp", "203.0.113.5", 7]),
        json!(["tcp", "2001:db8::30", 7]),
        json!(["tcp", "10.9.1.1", 8080]),
        json!(["udp", "203.0.113.5", 7]),
        json!(["udp", "2001:db8::30", 7]),
        json!(["ping", "203.0.113.5"]),
        json!(["ping", "2001:db8::30"]),
        json!(["name", "evil.bad.example"]),
    ] {
        let outcomes = often(&guest, &what);
        for outcome in &outcomes {
            outcome.refused();
        }
        let median = median(&outcomes);
        println!("{what}: {median:.1} ms");
        assert!(median < REFUSED_MS, "{what}: {median} ms");
    }
    assert_eq!(stage.lab.echo.accepted(), 0);
    assert_eq!(stage.lab.echo.datagrams(), Vec::<String>::new());
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

/// The texts of the sandbox's events of refusals so far.
fn events(stage: &Stage, id: &str) -> Vec<String> {
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let page = stage
            .world
            .api()
            .get(&format!("/v1/events?after={after}&limit=100"));
        let page = page.json();
        let events = page["events"].as_array().unwrap();
        let Some(last) = events.last() else {
            return found;
        };
        after = last["sequence"]
            .as_u64()
            .unwrap_or_else(|| panic!("{last}"));
        let ours = events
            .iter()
            .filter(|event| event["kind"] == "network.refused" && event["subject"] == id);
        found.extend(ours.map(Value::to_string));
    }
}

/// Waits for an event that tells all of this.
fn await_event(stage: &Stage, id: &str, told: &[&str]) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        let events = events(stage, id);
        if events
            .iter()
            .any(|event| told.iter().all(|word| event.contains(word)))
        {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "no event of {told:?}: {events:#?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn refusals_are_events_with_destination_name_and_rule_and_a_flood_of_them_is_few() {
    let stage = Stage::new();
    let guest = stage.guest(&json!({
        "default": "deny", "allow": ["good.cdn.example"], "deny": ["203.0.113.77"],
    }));
    guest.tries_to(&json!(["tcp", "203.0.113.5", 7])).refused();
    guest
        .tries_to(&json!(["tcp", "203.0.113.77", 7007]))
        .refused();
    guest
        .tries_to(&json!(["tcp", "192.168.77.1", 80]))
        .refused();
    guest
        .tries_to(&json!(["name", "evil.bad.example"]))
        .refused();
    guest.tries_to(&json!(["name", "good.cdn.example"])).good();
    assert!(
        guest
            .curl("-k --resolve bad.cdn.example:443:198.51.100.20 https://bad.cdn.example/")
            .is_err()
    );
    let id = &guest.id;
    await_event(&stage, id, &["203.0.113.5", "default deny"]);
    await_event(&stage, id, &["203.0.113.77", "7007", "deny 203.0.113.77"]);
    await_event(&stage, id, &["192.168.77.1", "protected", "192.168.0.0/16"]);
    await_event(&stage, id, &["evil.bad.example", "default deny"]);
    await_event(&stage, id, &["198.51.100.20", "443", "bad.cdn.example"]);

    let before = events(&stage, id).len();
    let flood = vec![json!(["tcp", "203.0.113.5", 7007]); 300];
    for outcome in guest.tries(&Value::Array(flood)) {
        outcome.refused();
    }
    await_event(&stage, id, &["203.0.113.5", "7007"]);
    let more = events(&stage, id).len() - before;
    assert!(more < 30, "{more} events of 300 refusals");
    let counted: u64 = guest
        .refusals_of("203.0.113.5")
        .iter()
        .filter(|refusal| refusal["port"] == 7007)
        .map(|refusal| refusal["count"].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 300, "{:#}", guest.network());
}

#[test]
fn where_the_host_forbids_pings_they_are_refused_and_doctor_names_the_switch() {
    let stage = Stage::new();
    stage.lab.forbid_ping();
    let guest = stage.guest(&Value::Null);
    guest.tries_to(&json!(["ping", "203.0.113.5"])).refused();
    guest
        .tries_to(&json!(["say", "203.0.113.5", 7, "hello"]))
        .said("hello");
    let doctor = stage.world.run(["doctor"]);
    assert!(
        doctor.stdout.contains("net.ipv4.ping_group_range"),
        "{doctor:?}"
    );
}

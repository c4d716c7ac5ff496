//! The journal, followed.

use pando_testkit::World;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Lines, Read};
use std::process::{Child, ChildStdout, Stdio};

/// A page of the journal.
fn page(world: &World, query: &str) -> Vec<Value> {
    let answer = world.api().get(&format!("/v1/events?{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["events"].as_array().unwrap().clone()
}

fn number(event: &Value) -> u64 {
    event["sequence"].as_u64().unwrap()
}

fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().map(number).collect()
}

/// The messages of a stream of server-sent events.
struct Messages<R>(Lines<BufReader<R>>);

impl<R: Read> Messages<R> {
    fn of(body: R) -> Self {
        Self(BufReader::new(body).lines())
    }

    /// The next event's id and data; `None` when the stream ends.
    fn next(&mut self) -> Option<(u64, Value)> {
        let mut id = None;
        loop {
            let line = self.0.next()?.ok()?;
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.parse().ok();
            } else if let Some(text) = line.strip_prefix("data: ") {
                return Some((
                    id.expect("it has an id"),
                    serde_json::from_str(text).unwrap(),
                ));
            } else {
                let other = line.is_empty() || line.starts_with([':', 'r']);
                assert!(other, "an unknown line: {line}");
            }
        }
    }
}

/// A policy change, which is an event and nothing else.
fn change(world: &World, id: &str) {
    let body = json!({ "egress": { "default": "allow" } });
    let headers = [("content-type", "application/json")];
    let path = format!("/v1/sandboxes/{id}");
    let answer = world
        .api()
        .send("PATCH", &path, &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text);
}

fn followed(world: &World, args: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = world
        .command([&["events", "--follow", "--json"], args].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

#[test]
fn a_follower_over_restarts_loses_no_event_and_gets_none_twice() {
    let mut world = World::start();
    let port = world.url().rsplit(':').next().unwrap().to_owned();
    let (mut child, lines) = followed(&world, &[]);
    let id = world.create();
    for killed in [true, false] {
        change(&world, &id);
        match killed {
            true => world.kill_daemon(),
            false => world.end_daemon(),
        }
        world.start_daemon_at(&format!("127.0.0.1:{port}"));
        change(&world, &id);
    }
    world.ok(["rm", &id]);
    let mut seen = Vec::new();
    for line in lines {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let last = event["kind"] == "sandbox.removed";
        seen.push(event);
        if last {
            break;
        }
    }
    assert_eq!(seen, page(&world, "after=0&limit=1000"));
    child.kill().unwrap();
    child.wait().unwrap();
    // It was told of the daemon's end, and did not have to be cut off.
    assert!(!world.log().contains("cut connections"), "{}", world.log());
}

#[test]
fn a_stream_goes_on_after_the_last_event_that_was_seen_however_late_it_is_read() {
    let world = World::start();
    let id = world.create();
    let stream =
        |path: &str, headers: &[(&str, &str)]| Messages::of(world.api().open_with(path, headers));
    // Nobody reads it for now; more than one page of what is to come.
    let mut late = stream("/v1/events?follow=true", &[]);
    for _ in 0..250 {
        change(&world, &id);
    }
    let all = page(&world, "limit=1000");
    assert!(all.len() > 250, "{}", all.len());
    for event in &all {
        assert_eq!(late.next().unwrap(), (number(event), event.clone()));
    }

    let middle = number(&all[120]);
    let last = middle.to_string();
    let accept = ("accept", "text/event-stream");
    // What a browser sends when it comes back: its first address, and where it was.
    let mut again = stream("/v1/events?after=3", &[accept, ("last-event-id", &last)]);
    let mut after = stream(&format!("/v1/events?after={middle}"), &[accept]);
    for event in &all[121..] {
        assert_eq!(again.next().unwrap().0, number(event));
        assert_eq!(after.next().unwrap().0, number(event));
    }
    // All three wait now, and hear the next one.
    change(&world, &id);
    let next = late.next().unwrap();
    assert!(next.0 > number(&all[all.len() - 1]));
    assert_eq!(again.next().unwrap(), next);
    assert_eq!(after.next().unwrap(), next);
}

#[test]
fn events_of_one_sandbox_or_one_kind_are_told_alone() {
    let world = World::start();
    let (one, other) = (world.ok(["create", "--name", "one"]), world.create());
    let (mut child, mut lines) = followed(&world, &["--sandbox", "one", "--kind", "sandbox."]);
    change(&world, &other);
    change(&world, &one);
    world.ok(["stop", &other]);
    world.ok(["stop", "one"]);
    let all = page(&world, "limit=1000");
    let wanted: Vec<_> = all
        .iter()
        .filter(|event| event["subject"] == *one)
        .filter(|event| event["kind"].as_str().unwrap().starts_with("sandbox."))
        .cloned()
        .collect();
    assert_eq!(wanted.last().unwrap()["kind"], "sandbox.stopped");
    for event in &wanted {
        let line = lines.next().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), *event);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(page(&world, "sandbox=one&kind=sandbox."), wanted);
    assert_eq!(page(&world, "sandbox=nobody"), [] as [Value; 0]);
    let stopped: Vec<_> = all
        .iter()
        .filter(|event| event["kind"] == "sandbox.stopped")
        .cloned()
        .collect();
    assert_eq!(
        numbers(&page(&world, "kind=sandbox.stopped")),
        numbers(&stopped)
    );
}

#[test]
fn a_question_about_events_that_makes_no_sense_is_refused() {
    let world = World::with(pando_testkit::Options {
        without_template: true,
        ..Default::default()
    });
    let long = "k".repeat(129);
    let accept = [("accept", "text/event-stream")];
    for query in [
        "follow=yes",
        "follow=true&limit=5",
        "sandbox=",
        "kind=",
        &format!("kind={long}"),
        &format!("sandbox={long}"),
        "after=-1",
        "after=99999999999999999999",
        "limit=0",
        "limit=1001",
        "since=1",
    ] {
        let answer = world.api().get(&format!("/v1/events?{query}"));
        assert_eq!(answer.status, 400, "{query}: {}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "invalid_request", "{query}");
    }
    for id in ["x", "", "-1", "1.5", "99999999999999999999"] {
        let headers = [accept[0], ("last-event-id", id)];
        let answer = world.api().send("GET", "/v1/events", &headers, b"");
        assert_eq!(answer.status, 400, "{id}: {}", answer.text);
    }
    let nobody = pando_testkit::Api::new(world.url(), None);
    let refused = nobody.send("GET", "/v1/events?follow=true", &accept, b"");
    assert_eq!(refused.status, 401);
}

//! What the command line and the MCP server of that API send, request by request.

use super::{JSON, keyless};
use pando_testkit::World;
use serde_json::Value;

/// One request and what its sender reads of the answer: each key of `reads` must be there, and
/// be as it says, where it says something.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    what: String,
    method: String,
    path: String,
    #[serde(default)]
    body: Option<Value>,
    status: u16,
    #[serde(default)]
    reads: serde_json::Map<String, Value>,
}

/// Replays a file's requests; their paths begin with `prefix`.
fn replay(world: &World, prefix: &str, steps: &str) {
    let steps: Vec<Step> = serde_json::from_str(steps).unwrap();
    let api = keyless(world);
    for step in steps {
        let body = step.body.as_ref().map(Value::to_string).unwrap_or_default();
        let headers: &[_] = match step.body {
            Some(_) => &[JSON],
            None => &[],
        };
        let answer = api.send(
            &step.method,
            &format!("{prefix}{}", step.path),
            headers,
            body.as_bytes(),
        );
        let what = format!("{}: {} {}", step.what, answer.status, answer.text);
        assert_eq!(answer.status, step.status, "{what}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{what}"
        );
        let json = answer.json();
        assert!(json.is_object() && answer.text.ends_with("}\n"), "{what}");
        for (pointer, expected) in &step.reads {
            let found = json.pointer(pointer);
            let found = found.unwrap_or_else(|| panic!("{what}: no {pointer}"));
            assert!(expected.is_null() || found == expected, "{what}: {pointer}");
        }
    }
}

#[test]
fn the_command_lines_requests_are_answered_as_it_reads_them() {
    replay(&World::start(), "/v1", include_str!("command_line.json"));
}

#[test]
fn the_mcp_servers_requests_are_answered_as_it_reads_them() {
    let world = World::start();
    let steps = include_str!("mcp_server.json");
    // By the client that it is pinned to, and by the newest that it may have.
    for (prefix, second) in [("", "20260101-000000"), ("/v1", "20260101-000001")] {
        replay(&world, prefix, &steps.replace("20260101-000000", second));
    }
}

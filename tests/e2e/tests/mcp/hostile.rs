//! What comes to `/mcp` and to `pando mcp` that no well-behaved client sends.

use crate::{INITIALIZE, tool_call, without_template};
use pando_testkit::{Answer, Api, World};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// Messages that no server should answer with a result, or fall over.
fn malformed() -> Vec<String> {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let call = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{params}}}"#)
    };
    vec![
        "this is no JSON".to_owned(),
        "[1,2".to_owned(),
        "\u{0}\u{7f}\u{feff}".to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        format!(
            "[{},{}]",
            tool_call(2, "tree", &json!({})),
            tool_call(3, "tree", &json!({}))
        ),
        deep.clone(),
        r#"{"jsonrpc":"2.0","id":2}"#.to_owned(),
        r#"{"jsonrpc":"1.0","id":2,"method":"tools/list"}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":{"a":1},"method":"tools/list"}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":2,"method":7}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/destroy"}"#.to_owned(),
        call(r#""run""#),
        call(r#"{"name":["tree"]}"#),
        call(r#"{"name":"tree","arguments":[]}"#),
        call(&format!(
            r#"{{"name":"tree","arguments":{{"skip":{deep}}}}}"#
        )),
    ]
}

/// A session of `/mcp`.
struct Door {
    api: Api,
    key: String,
    session: String,
}

impl Door {
    fn open(world: &World) -> Self {
        let mut door = Self {
            api: Api::new(world.url(), None),
            key: format!("Bearer {}", world.key()),
            session: String::new(),
        };
        let answer = door.post(&[], INITIALIZE);
        assert_eq!(answer.status, 200, "{}", answer.text);
        door.session = answer.header("mcp-session-id").unwrap().to_owned();
        door
    }

    fn post(&self, more: &[(&str, &str)], body: &str) -> Answer {
        self.send("POST", more, body)
    }

    fn send(&self, method: &str, more: &[(&str, &str)], body: &str) -> Answer {
        let usual = [
            ("authorization", &*self.key),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-session-id", &*self.session),
        ];
        let other = |header: &&(&str, &str)| {
            !header.1.is_empty() && more.iter().all(|each| each.0 != header.0)
        };
        let headers: Vec<_> = usual.iter().filter(other).chain(more).copied().collect();
        self.api.send(method, "/mcp", &headers, body.as_bytes())
    }

    /// Fails unless a call is answered as ever.
    fn assert_well(&self, after: &str) {
        let answer = self.post(&[], &tool_call(9, "list_sandboxes", &json!({})));
        assert_eq!(answer.status, 200, "after {after}: {}", answer.text);
        assert!(
            answer.text.contains("\"sandboxes\":[]"),
            "after {after}: {}",
            answer.text
        );
    }
}

/// The beginning of a message, for failures.
fn beginning(message: &str) -> String {
    message.chars().take(60).collect()
}

#[test]
fn malformed_messages_over_http_are_refused_and_the_session_goes_on() {
    let world = without_template();
    let door = Door::open(&world);
    for message in malformed() {
        let answer = door.post(&[], &message);
        let said = format!(
            "{}: {} {}",
            beginning(&message),
            answer.status,
            beginning(&answer.text)
        );
        assert!((200..500).contains(&answer.status), "{said}");
        assert!(!answer.text.contains("\"result\""), "{said}");
        assert!(
            answer.status >= 400 || answer.text.contains("\"error\""),
            "{said}"
        );
    }
    door.assert_well("malformed messages");
    let huge = tool_call(2, "write_file", &json!({ "content": "x".repeat(5 << 20) }));
    assert_eq!(door.post(&[], &huge).status, 413);
    assert_eq!(
        door.post(&[("accept", "text/html")], INITIALIZE).status,
        406
    );
    assert_eq!(
        door.post(&[("mcp-protocol-version", "1999-01-01")], INITIALIZE)
            .status,
        400
    );
    assert_eq!(
        door.post(&[("mcp-session-id", "\u{fc}")], INITIALIZE)
            .status,
        404
    );
    assert_eq!(door.send("PUT", &[], INITIALIZE).status, 405);
    // Where an answer that nobody waits for any more would go on: an empty stream.
    let nothing = door.send("GET", &[("last-event-id", "9/9/9")], "");
    assert_eq!((nothing.status, &*nothing.text), (200, ""));
    door.assert_well("requests that make no sense");
    assert!(door.send("DELETE", &[], "").status < 300);
    assert_eq!(
        door.post(&[], &tool_call(2, "tree", &json!({}))).status,
        404
    );
}

/// A conversation with `pando mcp`.
struct Conversation {
    program: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Conversation {
    fn begin(world: &World) -> Self {
        let mut program = world
            .command(["mcp"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut conversation = Self {
            stdin: program.stdin.take(),
            stdout: BufReader::new(program.stdout.take().unwrap()),
            program,
        };
        conversation.say(INITIALIZE);
        assert_eq!(conversation.hear()["id"], 1);
        conversation.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        conversation
    }

    fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Calls a tool; what was answered to other messages meanwhile must be errors.
    fn call(&mut self, id: u32, tool: &str, arguments: &Value) -> Value {
        self.say(&tool_call(id, tool, arguments));
        loop {
            let answer = self.hear();
            if answer["id"] == id {
                return answer["result"].clone();
            }
            assert!(answer["error"].is_object(), "{answer}");
        }
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.program.wait().unwrap().success());
    }
}

#[test]
fn malformed_messages_on_stdin_are_refused_and_the_session_goes_on() {
    let world = without_template();
    let mut conversation = Conversation::begin(&world);
    for (index, message) in malformed().iter().enumerate() {
        conversation.say(message);
        let id = 100 + u32::try_from(index).unwrap();
        let listed = conversation.call(id, "list_sandboxes", &json!({}));
        let sandboxes = &listed["structuredContent"]["sandboxes"];
        assert_eq!(
            *sandboxes,
            json!([]),
            "after {}: {listed}",
            beginning(message)
        );
    }
    let content = "x".repeat(3 << 20);
    let large = json!({ "sandbox": "web", "path": "large", "content": content });
    let refused = conversation.call(200, "write_file", &large);
    assert_eq!(refused["isError"], true);
    assert!(
        refused["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("too_large"),
        "{refused}"
    );
    // More than a line may have: nothing is answered, and the next one is.
    conversation.say(&tool_call(
        201,
        "write_file",
        &json!({ "content": "x".repeat(17 << 20) }),
    ));
    let listed = conversation.call(202, "list_sandboxes", &json!({}));
    assert_eq!(
        listed["structuredContent"]["sandboxes"],
        json!([]),
        "{listed}"
    );
    conversation.end();
}

#[test]
fn a_client_that_says_nothing_or_nonsense_at_first_is_left() {
    let world = without_template();
    let silent = world.run_with_input(["mcp"], b"");
    assert_eq!((silent.code, &*silent.stdout), (0, ""), "{silent:?}");
    let hasty = world.run_with_input(["mcp"], b"{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n");
    assert_ne!(hasty.code, 0, "{hasty:?}");
    assert!(
        hasty.stderr.contains("did not begin a session"),
        "{hasty:?}"
    );
}

#[test]
fn a_server_that_was_started_before_the_daemon_finds_it_and_its_key() {
    let mut world = without_template();
    let address = world.url().replace("http://", "");
    world.kill_daemon();
    let (key, hidden) = (
        world.state_dir().join("admin.key"),
        world.scratch("hidden.key"),
    );
    // As before the daemon's first start, which makes the key.
    std::fs::rename(&key, &hidden).unwrap();
    let mut conversation = Conversation::begin(&world);
    let refused = conversation.call(2, "list_sandboxes", &json!({}));
    let said = refused["content"][0]["text"].as_str().unwrap();
    assert!(
        said.contains("not_reachable") && said.contains("`pando serve -d`"),
        "{said}"
    );
    std::fs::rename(&hidden, &key).unwrap();
    world.start_daemon_at(&address);
    let listed = conversation.call(3, "list_sandboxes", &json!({}));
    assert_eq!(
        listed["structuredContent"]["sandboxes"],
        json!([]),
        "{listed}"
    );
    conversation.end();
}

//! MCP, with the official clients: the Python one, the inspector's command line, and what
//! they are for, a demonstration with two browsers.
//!
//! The clients come from their own registries, in pinned versions, once per target directory.

mod hostile;

use pando_testkit::{Options, World, pando};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The official Python client, <https://pypi.org/project/mcp/>.
const PYTHON_CLIENT: &str = "mcp==2.3.0";

/// The official inspector, <https://www.npmjs.com/package/@modelcontextprotocol/inspector>.
const INSPECTOR: &str = "@modelcontextprotocol/inspector@2.12.0";

/// The Node that the inspector needs; Debian's is older.
const NODE: &str = "node@22.23.3";

/// A directory that is made once, by whichever test comes first.
fn made_once(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let directory = parent.join(name);
    let lock = File::create(parent.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let done = directory.join("complete");
    if !done.exists() {
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        make(&directory);
        File::create(done).unwrap();
    }
    directory
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n--- stdout\n{stdout}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

/// The Python that has the official client.
fn python() -> PathBuf {
    let name = PYTHON_CLIENT.replace("==", "-python-");
    let made = made_once(&name, |directory| {
        succeed(Command::new("python3").args(["-m", "venv"]).arg(directory));
        let pip = ["-m", "pip", "install", "--quiet", PYTHON_CLIENT];
        succeed(Command::new(directory.join("bin/python")).args(pip));
    });
    made.join("bin/python")
}

/// Runs one of the scripts beside this file against a world.
fn script(world: &World, name: &str, arguments: &[&str]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/mcp")
        .join(name);
    let mut command = Command::new(python());
    succeed(
        command
            .arg(file)
            .args(arguments)
            .env("PANDO_PROGRAM", pando())
            .env("PANDO_URL", world.url())
            .env("PANDO_STATE_DIR", world.state_dir())
            .env("KEY", world.key()),
    )
}

#[test]
fn the_official_python_client_over_stdio() {
    let said = script(&World::start(), "clients.py", &["stdio"]);
    assert!(
        said.contains("has_resources"),
        "the tour was cut short: {said}"
    );
}

#[test]
fn the_official_python_client_over_http() {
    let said = script(&World::start(), "clients.py", &["http"]);
    assert!(said.contains("protocol 2026-07-28"), "{said}");
}

#[test]
fn the_official_python_client_over_http_with_a_session() {
    let said = script(&World::start(), "clients.py", &["http-session"]);
    assert!(said.contains("protocol 2025-"), "{said}");
}

#[test]
fn two_browsers_edit_one_page_that_is_changed_and_rolled_back() {
    script(&World::start(), "demo.py", &[]);
}

#[test]
fn the_official_inspector_lists_calls_and_reads() {
    let world = World::start();
    let modules = made_once("mcp-inspector", |directory| {
        let packages = ["install", "--no-audit", "--no-fund", NODE, INSPECTOR];
        succeed(Command::new("npm").args(packages).current_dir(directory));
    });
    let programs = modules.join("node_modules/.bin");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let inspect = |target: &[&str], arguments: &[&str]| -> Value {
        let mut command = Command::new(programs.join("mcp-inspector"));
        command.arg("--cli").args(target).args(arguments);
        command.env("PATH", &path).current_dir(&modules);
        command
            .env("PANDO_URL", world.url())
            .env("PANDO_STATE_DIR", world.state_dir());
        let said = succeed(&mut command);
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let (program, url) = (
        pando().display().to_string(),
        format!("{}/mcp", world.url()),
    );
    let key = format!("Authorization: Bearer {}", world.key());
    let state_dir = format!("PANDO_STATE_DIR={}", world.state_dir().display());
    let daemon = format!("PANDO_URL={}", world.url());
    let id = world.create();
    for target in [
        &["-e", &*state_dir, "-e", &*daemon, &*program, "mcp"][..],
        &[&*url, "--transport", "http", "--header", &*key],
    ] {
        let listed = inspect(target, &["--method", "tools/list"]);
        let tools = listed["tools"].as_array().unwrap();
        assert!(
            tools.iter().any(|tool| tool["name"] == "restore_snapshot"),
            "{listed}"
        );
        let named = format!("sandbox={id}");
        let ran = inspect(
            target,
            &[
                "--method",
                "tools/call",
                "--tool-name",
                "run_command",
                "--tool-arg",
                &named,
                "--tool-arg",
                "cmd=echo $((6*7))",
            ],
        );
        assert_eq!(ran["structuredContent"]["stdout"], "42\n", "{ran}");
        let read = inspect(
            target,
            &["--method", "resources/read", "--uri", "pando://sandboxes"],
        );
        assert!(
            read["contents"][0]["text"].as_str().unwrap().contains(&id),
            "{read}"
        );
    }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;

/// A call as a message.
fn tool_call(id: u32, tool: &str, arguments: &Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
}

/// A world for tests that make no sandbox.
fn without_template() -> World {
    World::with(Options {
        without_template: true,
        ..Options::default()
    })
}

#[test]
fn strangers_stay_outside_the_door() {
    let world = without_template();
    let key = format!("Bearer {}", world.key());
    let ask = |method: &str, headers: &[(&str, &str)]| {
        let usual = [
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        let other = |name: &str| headers.iter().all(|header| header.0 != name);
        let usual = usual.into_iter().filter(|header| other(header.0));
        let all: Vec<_> = usual.chain(headers.iter().copied()).collect();
        let api = pando_testkit::Api::new(world.url(), None);
        api.send(method, "/mcp", &all, INITIALIZE.as_bytes()).status
    };
    let own = ("authorization", &*key);
    assert_eq!(ask("POST", &[]), 401);
    assert_eq!(ask("GET", &[]), 401);
    assert_eq!(ask("POST", &[("authorization", "Bearer pando_wrong")]), 401);
    assert_eq!(ask("POST", &[own, ("x-api-key", "pando_other")]), 401);
    assert_eq!(ask("POST", &[own, ("origin", "https://evil.example")]), 403);
    assert_eq!(ask("POST", &[own, ("host", "evil.example")]), 421);
    assert_eq!(ask("POST", &[own, ("mcp-session-id", "guessed")]), 404);
    assert_eq!(ask("DELETE", &[own, ("mcp-session-id", "guessed")]), 404);
    assert_eq!(ask("POST", &[own, ("content-type", "text/plain")]), 415);
    assert_eq!(ask("POST", &[own]), 200);
}

#[test]
fn nothing_but_the_protocol_comes_on_stdout() {
    let mut world = without_template();
    world.set_env("PANDO_LOG", "debug,rmcp=trace");
    let lines = [
        INITIALIZE.to_owned(),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string(),
        "this is no JSON".to_owned(),
        r#"{"jsonrpc":"2.0","id":2}"#.to_owned(),
        "[1,2".to_owned(),
        "\u{0}\u{7f}\u{feff}".to_owned(),
        tool_call(3, "list_sandboxes", &json!({ "surprise": 1 })),
        tool_call(4, "list_sandboxes", &json!({})),
    ];
    let conversation = |world: &World| {
        let ran = world.run_with_input(["mcp"], (lines.join("\n") + "\n").as_bytes());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(!ran.stderr.contains(&world.key()), "the key is in the log");
        let answers: Vec<Value> = ran
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
            .collect();
        let answer = |id: u32| {
            let found = answers.iter().find(|answer| answer["id"] == id);
            found.unwrap_or_else(|| panic!("no answer to {id}: {ran:?}"))["result"].clone()
        };
        assert_eq!(answer(3)["isError"], true);
        answer(4)
    };
    let answer = conversation(&world);
    assert_eq!(
        answer["structuredContent"],
        json!({ "sandboxes": [], "left_out": 0 }),
        "{answer}"
    );
    world.kill_daemon();
    let answer = conversation(&world);
    let said = answer["content"][0]["text"].as_str().unwrap();
    assert!(
        said.contains("not_reachable") && said.contains("pando serve"),
        "{said}"
    );
}

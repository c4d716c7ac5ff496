//! A world, and sandboxes in it that sleep.

use pando_testkit::{Api, World};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

/// Far above what anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a sandbox by REST.
pub(crate) fn make(world: &World, request: &Value) -> String {
    let made = world.api().post("/v1/sandboxes", request);
    assert_eq!(made.status, 201, "{}", made.text);
    text(&made.json(), "id")
}

/// Starts `server.py` in it.
pub(crate) fn serve(world: &World, id: &str) {
    let put = world.api().put(
        &format!("/v1/sandboxes/{id}/files?path=server.py"),
        include_bytes!("server.py"),
    );
    assert_eq!(put.status, 200, "{}", put.text);
    let start =
        "setsid python3 server.py >server.log 2>&1 & until [ -e /dev/shm/up ]; do sleep 0.05; done";
    world.sh(id, start);
}

/// Changes it by REST.
pub(crate) fn change(world: &World, id: &str, request: &Value) -> Value {
    let path = format!("/v1/sandboxes/{id}");
    let headers = [("content-type", "application/json")];
    let body = request.to_string();
    let changed = world.api().send("PATCH", &path, &headers, body.as_bytes());
    assert_eq!(changed.status, 200, "{}", changed.text);
    changed.json()
}

/// A field that is text.
pub(crate) fn text(value: &Value, field: &str) -> String {
    value[field]
        .as_str()
        .unwrap_or_else(|| panic!("`{field}` of {value}"))
        .to_owned()
}

/// Seconds since 1970 of a field that is a time.
pub(crate) fn time(value: &Value, field: &str) -> f64 {
    let text = text(value, field);
    // `2026-01-02T03:04:05.678Z`
    let number = |from: usize, to: usize| text[from..to].parse::<i64>().expect("a number");
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    // Days since 1970, by the calendar that begins each year in March.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 719_469;
    let seconds = days * 86_400 + number(11, 13) * 3600 + number(14, 16) * 60 + number(17, 19);
    seconds as f64 + number(20, 23) as f64 / 1000.0
}

/// The same of this moment.
pub(crate) fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970").as_secs_f64()
}

/// A sandbox's events of a kind, oldest first.
pub(crate) fn events(api: &Api, id: &str, kind: &str) -> Vec<Value> {
    let all = api.get("/v1/events?limit=1000").json();
    let all = all["events"].as_array().expect("a list").iter();
    let fits = |event: &&Value| event["subject"] == id && event["kind"] == kind;
    all.filter(fits).cloned().collect()
}

/// Waits for the sandbox's event of a kind with this number, counted from 1.
pub(crate) fn await_event(world: &World, id: &str, kind: &str, number: usize) -> Value {
    let (api, begun) = (world.api(), Instant::now());
    loop {
        let found = events(&api, id, kind);
        if let Some(event) = found.get(number - 1) {
            return event.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "no {number}. {kind}: {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An HTTP request to a port of its: status and body.
pub(crate) fn get_port(world: &World, id: &str, port: u16) -> (u16, String) {
    let mut stream = connect(world.url().trim_start_matches("http://"));
    let request =
        format!("GET / HTTP/1.1\r\nHost: {port}-{id}.localhost:7000\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// Sends bytes through a TCP port that echoes, and reads them back.
pub(crate) fn echo(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(back, bytes);
    Ok(())
}

/// A TCP connection whose reads end in time.
pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is set");
    stream
}

/// An exec that prints `awake`: status and body.
pub(crate) fn exec(world: &World, id: &str) -> (u16, String) {
    let path = format!("/v1/sandboxes/{id}/exec");
    let answer = world.api().post(&path, &json!({ "shell": "echo awake" }));
    (answer.status, answer.text)
}

/// An error's code.
pub(crate) fn code(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    text(&body["error"], "code")
}

//! The daemon as a service manager sees it.

use pando_testkit::{Options, World};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

/// Far above what a start takes, so that a message that never comes is a failed test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// The next message's lines.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).expect("a message");
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// Nothing more was sent.
    fn heard_all(&self) {
        self.0.set_nonblocking(true).unwrap();
        assert!(self.0.recv(&mut [0; 16]).is_err(), "there is more");
        self.0.set_nonblocking(false).unwrap();
    }
}

/// The status line of `GET /healthz`, asked this moment and once.
fn health(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_service_manager_is_told_when_the_daemon_answers_and_when_it_ends() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("notify");
    let manager = Manager::at(&path);
    let mut world = World::with(Options {
        without_template: true,
        env: vec![("NOTIFY_SOCKET".to_owned(), path.display().to_string())],
        ..Options::default()
    });
    assert_eq!(
        manager.next(),
        ["STATUS=starting: looks at the host and takes over what runs"]
    );
    let ready = manager.next();
    let address = ready[1].strip_prefix("STATUS=serving at http://").unwrap();
    assert_eq!(ready[0], "READY=1");
    assert_eq!(health(address), "HTTP/1.1 200 OK");
    assert_eq!(format!("http://{address}"), world.url());

    world.end_daemon();
    assert_eq!(
        manager.next(),
        ["STOPPING=1", "STATUS=ending; sandboxes run on"]
    );
    manager.heard_all();
}

#[test]
fn readiness_is_told_once_sandboxes_are_taken_over_and_shims_hear_nothing_of_the_manager() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("notify");
    let mut world = World::with(Options {
        env: vec![("NOTIFY_SOCKET".to_owned(), path.display().to_string())],
        ..Options::default()
    });
    // Nobody listened so far: that is no reason not to serve.
    let id = world.create();
    let environment = std::fs::read(format!("/proc/{}/environ", world.shim_pid(&id))).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("NOTIFY_SOCKET"));
    world.kill_daemon();
    let manager = Manager::at(&path);
    world.start_daemon();
    assert!(manager.next()[0].starts_with("STATUS=starting"));
    assert_eq!(manager.next()[0], "READY=1");
    assert_eq!(world.sh(&id, "echo up"), "up");
}

#[test]
fn metrics_tell_what_was_done_how_long_it_took_and_what_came_of_it() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, "true");
    let missing = serde_json::json!({ "argv": ["/no/such/program"] });
    let path = format!("/v1/sandboxes/{id}/exec");
    assert_eq!(world.api().post(&path, &missing).status, 422);
    world.ok(["pause", &id]);
    world.ok(["resume", &id]);
    let answer = world.api().get("/metrics");
    assert!(
        answer
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let text = answer.text;
    let labels = |operation: &str, source: &str, result: &str| {
        format!("{{operation=\"{operation}\",source=\"{source}\",result=\"{result}\"}}")
    };
    for (operation, source, result, count) in [
        ("create", "none", "ok", 1),
        // The create's own, and the resume's.
        ("spawn", "", "ok", 2),
        ("exec", "", "ok", 1),
        ("exec", "", "refused", 1),
        ("pause", "", "ok", 1),
        ("resume", "", "ok", 1),
    ] {
        let labels = labels(operation, source, result);
        let line = format!("pando_operation_duration_seconds_count{labels} {count}");
        assert!(
            text.lines().any(|found| found == line),
            "{line} is missing in:\n{text}"
        );
    }
    let number = |name: &str| -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in:\n{text}"))
    };
    let create = number(&format!(
        "pando_operation_duration_seconds_sum{}",
        labels("create", "none", "ok")
    ));
    assert!(create > 0.01 && create < 60.0, "{create} s");
    for operation in ["create", "exec", "pause", "resume"] {
        let name = format!("pando_operations_in_flight{{operation=\"{operation}\"}}");
        assert_eq!(number(&name), 0.0, "{operation}");
    }
    for name in [
        "pando_host_memory_available_bytes",
        "pando_host_cpus",
        "pando_state_disk_available_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(number(name) >= 1.0, "{name}");
    }
    assert!(number("pando_host_memory_available_bytes") <= number("pando_host_memory_total_bytes"));
    assert_eq!(number("pando_sandboxes{state=\"running\"}"), 1.0);
}

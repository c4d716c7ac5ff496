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

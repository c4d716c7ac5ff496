//! Calls that are under way when a sandbox is put elsewhere are told what was done.

use crate::outcome;
use pando_testkit::{Answer, World};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// Calls that are under way in a sandbox.
struct InFlight<'s> {
    exec: ScopedJoinHandle<'s, Answer>,
    stream: Child,
    upload: TcpStream,
}

/// What came of them.
struct CameOf {
    exec: Answer,
    /// Exit code of `pando exec`, and all that it wrote.
    stream: (i32, String),
    /// Status line and body.
    upload: String,
}

const UPLOAD_BYTES: usize = 8 << 20;

impl<'s> InFlight<'s> {
    /// Begins an exec and a stream, which wait to be told to go on, and an upload that sends
    /// half of its bytes. When this returns the guest is at work on all of them.
    fn begin(scope: &'s Scope<'s, '_>, world: &'s World, id: &'s str) -> Self {
        world.sh(id, "rm -f begun one two upload; mkfifo begun one two");
        let exec = scope.spawn(move || {
            let waits = json!({ "shell": "echo > begun; cat one" });
            world
                .api()
                .post(&format!("/v1/sandboxes/{id}/exec"), &waits)
        });
        world.sh(id, "cat begun");
        let mut stream = world
            .command(["exec", id, "--", "sh", "-c", "echo begun; cat two"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(stream.stdout.as_mut().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        let upload = begin_upload(world, id);
        world.sh(id, "until test -s upload; do sleep 0.01; done");
        Self {
            exec,
            stream,
            upload,
        }
    }

    /// Lets them end by themselves.
    fn let_go(&mut self, world: &World, id: &str) {
        world.sh(id, "echo first > one; echo second > two");
        self.upload.write_all(&vec![7; UPLOAD_BYTES / 2]).unwrap();
    }

    fn end(mut self) -> CameOf {
        let mut upload = String::new();
        // What was answered before the connection broke is an answer.
        drop(self.upload.read_to_string(&mut upload));
        let exec = self.exec.join().unwrap();
        let output = self.stream.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        CameOf {
            exec,
            stream: (
                output.status.code().unwrap_or(-1),
                String::from_utf8_lossy(&said).into_owned(),
            ),
            upload,
        }
    }
}

/// An upload of which half is sent.
fn begin_upload(world: &World, id: &str) -> TcpStream {
    let address = world.url().replace("http://", "");
    let mut upload = TcpStream::connect(&address).unwrap();
    upload
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let head = format!(
        "PUT /v1/sandboxes/{id}/files?path=/home/user/upload HTTP/1.1\r\nHost: {address}\r\n\
         Authorization: Bearer {}\r\nContent-Length: {UPLOAD_BYTES}\r\nConnection: close\r\n\r\n",
        world.key()
    );
    upload.write_all(head.as_bytes()).unwrap();
    upload.write_all(&vec![7; UPLOAD_BYTES / 2]).unwrap();
    upload
}

#[test]
fn calls_in_flight_are_told_what_cut_them_off() {
    let world = World::start();
    let id = world.create();
    let kept = world.ok(["snapshot", &id]);
    let acts = [
        (vec!["rollback", &id, &kept], None, "rolled_back"),
        (vec!["pause", &id], Some("resume"), "paused"),
        (vec!["stop", &id], Some("start"), "stopped"),
        (vec!["rm", &id], None, "removed"),
    ];
    let mut wrong = Vec::new();
    for (act, undo, code) in acts {
        let came_of = std::thread::scope(|scope| {
            let calls = InFlight::begin(scope, &world, &id);
            world.ok(&act);
            calls.end()
        });
        let words = code.replace('_', " ");
        let (exit, said) = &came_of.stream;
        if outcome(&came_of.exec) != format!("409 {code}") {
            wrong.push(format!("{code}, exec: {}", came_of.exec.text));
        }
        if *exit != 125 || !said.contains(&words) {
            wrong.push(format!("{code}, stream: exit {exit}, {said}"));
        }
        if !came_of.upload.starts_with("HTTP/1.1 409") || !came_of.upload.contains(code) {
            wrong.push(format!("{code}, upload: {}", came_of.upload));
        }
        if let Some(undo) = undo {
            world.ok([undo, &id]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn calls_in_flight_go_on_through_a_snapshot_and_a_fork() {
    let world = World::start();
    let id = world.create();
    for act in [
        vec!["snapshot", &id],
        vec!["snapshot", &id, "--disk"],
        vec!["fork", &id],
    ] {
        let came_of = std::thread::scope(|scope| {
            let mut calls = InFlight::begin(scope, &world, &id);
            world.ok(&act);
            calls.let_go(&world, &id);
            calls.end()
        });
        let answer = came_of.exec.json();
        assert_eq!(
            (&answer["exit_code"], &answer["stdout"]),
            (&json!(0), &json!("first\n")),
            "{act:?}: {answer}"
        );
        assert_eq!(came_of.stream, (0, "second\n".to_owned()), "{act:?}");
        assert!(
            came_of.upload.starts_with("HTTP/1.1 200"),
            "{act:?}: {}",
            came_of.upload
        );
        assert_eq!(
            world.sh(&id, "stat -c %s upload; tr -d '\\7' < upload | wc -c"),
            format!("{UPLOAD_BYTES}\n0")
        );
    }
}

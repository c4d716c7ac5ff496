//! A world with a sandbox in which `server.py` runs.

use super::http::{Connection, Head};
use pando_testkit::{Options, World};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) struct Guest {
    pub(crate) world: World,
    pub(crate) id: String,
}

impl Guest {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// With settings of the daemon's.
    pub(crate) fn with(env: &[(&str, &str)]) -> Self {
        let env = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let world = World::with(Options {
            env: env.collect(),
            ..Options::default()
        });
        let id = world.create();
        let guest = Self { world, id };
        let put = guest.world.api().put(
            &format!("/v1/sandboxes/{}/files?path=server.py", guest.id),
            include_bytes!("server.py"),
        );
        assert_eq!(put.status, 200, "{}", put.text);
        guest.world.sh(&guest.id, "rm -f /dev/shm/up; setsid python3 server.py >server.log 2>&1 & until [ -e /dev/shm/up ]; do sleep 0.05; done");
        guest
    }

    /// `ADDRESS:PORT` of the daemon.
    pub(crate) fn address(&self) -> String {
        self.world.url().trim_start_matches("http://").to_owned()
    }

    pub(crate) fn host(&self, port: u16) -> String {
        host(&self.id, port)
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::to(&self.address())
    }

    /// `GET path` of a port, with more headers, each ended.
    pub(crate) fn get(&self, port: u16, path: &str, headers: &str) -> (Head, String) {
        get(&self.world, &self.host(port), path, headers)
    }

    /// What the server heard of a `GET /` with these headers.
    pub(crate) fn heard(&self, headers: &str) -> Value {
        let (head, body) = self.get(8080, "/", headers);
        assert_eq!(head.status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) fn ports(&self) -> Value {
        let answer = self
            .world
            .api()
            .get(&format!("/v1/sandboxes/{}/ports", self.id));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// The host's `ADDRESS:PORT` that leads to a port, by the command line.
    pub(crate) fn raw(&self, port: u16) -> String {
        self.world.ok(["port", &self.id, &port.to_string()])
    }

    pub(crate) fn snapshot(&self) -> String {
        let taken = self.world.api().snapshot(&self.id, &json!({}));
        assert_eq!(taken.status, 201, "{}", taken.text);
        taken.json()["id"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn host(id: &str, port: u16) -> String {
    format!("{port}-{id}.localhost:7000")
}

pub(crate) fn get(world: &World, host: &str, path: &str, headers: &str) -> (Head, String) {
    let mut connection = Connection::to(world.url().trim_start_matches("http://"));
    connection.send(format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"
    ));
    connection.answer()
}

/// Sends bytes to a TCP port, ends that side, and gives what comes back.
pub(crate) fn ask(address: &str, bytes: &[u8]) -> std::io::Result<String> {
    let mut connection = Connection::to(address);
    connection
        .stream
        .set_read_timeout(Some(Duration::from_secs(30)))?;
    std::io::Write::write_all(&mut connection.stream, bytes)?;
    connection.stream.shutdown(std::net::Shutdown::Write)?;
    Ok(String::from_utf8_lossy(&connection.rest()?).into_owned())
}

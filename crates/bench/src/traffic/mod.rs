//! The other ends of a guest's traffic: a server that it connects to, and a client of its
//! ports.

mod client;
mod peer;

pub(crate) use client::{BULK_BYTES, Connection, PortClient};
pub(crate) use peer::{Job, Listening, Peer};

/// The program that a guest connects with, and the one that it serves with.
pub(crate) const CLIENT: &str = include_str!("../../guest/client.py");
pub(crate) const SERVER: &str = include_str!("../../guest/server.py");

/// What starts a program in a guest and does not wait for its end.
pub(crate) fn detached<'a>(script: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    let shell = "\"$@\" </dev/null >/dev/null 2>/tmp/bench.log &";
    let mut argv = vec!["/bin/sh", "-c", shell, "sh", "python3", "-c", script];
    argv.extend(arguments);
    argv
}

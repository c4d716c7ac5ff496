//! How fast the gateway is, without a VM: the guest is a stack in this process, on a
//! thread of its own. `cargo run --release -p pando-net --example throughput`.
#![allow(clippy::print_stdout, reason = "it is a program for people")]

#[path = "../tests/guest/mod.rs"]
mod guest;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use guest::{LOCAL, Settings, World};
use pando_net::GatewayLimits;

const BULK: usize = 512 << 20;
const CONNECTIONS: usize = 10_000;
const OPEN: usize = 500;

fn world(mtu: usize) -> World {
    let mut settings = Settings::with(&["allow 127.0.0.1"]);
    settings.mtu = mtu;
    settings.limits = GatewayLimits {
        new_connections_per_second: 1_000_000,
        ..GatewayLimits::default()
    };
    World::start(settings)
}

fn server(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming() {
            serve(socket.unwrap());
        }
    });
    address
}

fn source(mut socket: TcpStream) {
    let bytes = vec![7; 1 << 20];
    let mut left = BULK;
    while left > 0 {
        let count = left.min(bytes.len());
        if socket.write_all(&bytes[..count]).is_err() {
            return;
        }
        left -= count;
    }
}

fn sink(mut socket: TcpStream) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(1..) = socket.read(&mut bytes) {}
    let _ = socket.write_all(b"!");
}

fn rate(bytes: usize, started: Instant) -> f64 {
    bytes as f64 / started.elapsed().as_secs_f64() / 1e6
}

fn download(mtu: usize) -> f64 {
    let mut world = world(mtu);
    world.guest.window = 1 << 20;
    let address = server(source);
    let connection = world.guest.connect(address).unwrap();
    let started = Instant::now();
    let mut received = 0;
    world.guest.until_slowly("the bulk", |guest| {
        let socket = guest.tcp(connection);
        while socket.can_recv() {
            received += socket.recv(|part| (part.len(), part.len())).unwrap();
        }
        (received == BULK).then_some(())
    });
    rate(BULK, started)
}

fn upload(mtu: usize) -> f64 {
    let mut world = world(mtu);
    world.guest.window = 1 << 20;
    let address = server(sink);
    let connection = world.guest.connect(address).unwrap();
    let started = Instant::now();
    let mut sent = 0;
    world.guest.until_slowly("the bulk", |guest| {
        let socket = guest.tcp(connection);
        while sent < BULK && socket.can_send() {
            sent += socket
                .send(|room| (room.len().min(BULK - sent), room.len().min(BULK - sent)))
                .unwrap();
        }
        if sent == BULK {
            socket.close();
        }
        socket.can_recv().then_some(())
    });
    rate(BULK, started)
}

fn connects() {
    let mut world = world(1500);
    world.guest.window = 2048;
    let address = server(drop);
    for _ in 0..2 {
        let (memory, files) = (resident(), descriptors());
        let started = Instant::now();
        for _ in 0..CONNECTIONS {
            let connection = world.guest.connect(address).unwrap();
            world.guest.close(connection);
        }
        let rate = CONNECTIONS as f64 / started.elapsed().as_secs_f64();
        println!("{CONNECTIONS} connections, one after the other: {rate:.0} per second");
        world.guest.until("the end of the last", |_| {
            world.handle.report().connections.is_empty().then_some(())
        });
        println!(
            "memory before and after: {memory:.1} and {:.1} MiB; descriptors {files} and {}",
            resident(),
            descriptors()
        );
    }
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let memory = resident();
    let mut kept = Vec::new();
    for _ in 0..OPEN {
        let connection = world.guest.connect(address).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        world.guest.send(connection, b"hello");
        socket.read_exact(&mut [0; 5]).unwrap();
        socket.write_all(b"hello").unwrap();
        world.guest.receive(connection, 5);
        kept.push(socket);
    }
    println!("{OPEN} open connections: {:.1} MiB", resident() - memory);
}

fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages / 256.0
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |what: &str| only.as_deref().is_none_or(|only| only == what);
    if wanted("connects") {
        connects();
    }
    for mtu in [1500, 4000, 9000, 16_000, 32_000, 65_535] {
        if wanted("bulk") || only == Some(mtu.to_string()) {
            println!(
                "packets of {mtu}: download {:.0} MB/s, upload {:.0} MB/s",
                download(mtu),
                upload(mtu)
            );
        }
    }
}

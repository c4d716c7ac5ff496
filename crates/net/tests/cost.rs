//! What connections cost. One test alone, since it measures its process.

mod guest;

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use guest::{LOCAL, Settings, World};
use pando_net::GatewayLimits;
use smoltcp::iface::SocketHandle;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Both ends of a connection over which a word has gone.
fn one(world: &mut World, listener: &TcpListener) -> (SocketHandle, TcpStream) {
    let address = listener.local_addr().unwrap();
    let connection = world.guest.connect(address).unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    socket.write_all(b"word").unwrap();
    assert_eq!(world.guest.receive(connection, 4), b"word");
    (connection, socket)
}

fn end(world: &mut World, (connection, socket): (SocketHandle, TcpStream)) {
    drop(socket);
    world.guest.close(connection);
}

fn all_ended(world: &mut World) {
    world.guest.until("the end of the last", |_| {
        world.handle.report().connections.is_empty().then_some(())
    });
}

#[test]
fn open_connections_are_cheap_and_past_ones_are_free() {
    const OPEN: usize = 500;
    const PAST: usize = 2000;
    let mut settings = Settings::with(&["allow 127.0.0.1"]);
    settings.limits = GatewayLimits {
        new_connections_per_second: 1_000_000,
        ..GatewayLimits::default()
    };
    let mut world = World::start(settings);
    // The guest's and the server's ends are in this process, too.
    world.guest.window = 2048;
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let in_a_row = |world: &mut World, count: usize| {
        for _ in 0..count {
            let both = one(world, &listener);
            end(world, both);
        }
        all_ended(world);
    };
    in_a_row(&mut world, 200);
    let (memory, files) = (resident(), descriptors());
    in_a_row(&mut world, PAST);
    assert_eq!(descriptors(), files);
    let grown = resident().saturating_sub(memory);
    assert!(grown <= memory / 20, "{memory} grew by {grown}");

    let memory = resident();
    let open: Vec<_> = (0..OPEN).map(|_| one(&mut world, &listener)).collect();
    let grown = resident().saturating_sub(memory);
    assert!(grown <= 16 << 20, "{OPEN} connections cost {grown}");
    for both in open {
        end(&mut world, both);
    }
    all_ended(&mut world);
    assert_eq!(descriptors(), files);
}

//! Connections of a guest, carried to real servers on this host's loopback.

mod guest;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use guest::{LOCAL, Settings, World, policy};
use pando_net::{ConnectionState, GatewayLimits};
use smoltcp::socket::tcp::State;

const OPEN: &[&str] = &["allow 127.0.0.1"];

fn listener() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Bytes that are not the same everywhere.
fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}

fn echo(mut socket: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = socket.read(&mut bytes) {
        socket.write_all(&bytes[..count]).unwrap();
    }
}

#[test]
fn bulk_arrives_equal_in_both_directions_and_halves_close_alone() {
    for mtu in [1500, 9000, 65535] {
        let mut settings = Settings::with(OPEN);
        settings.mtu = mtu;
        let mut world = World::start(settings);
        let (listener, address) = listener();
        let sent = pattern(4_000_000);
        let expected = sent.clone();
        let server = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            socket.read_to_end(&mut received).unwrap();
            // The guest's half is closed; ours is not.
            socket.write_all(&received).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            received.len()
        });
        let guest = &mut world.guest;
        let connection = guest.connect(address).unwrap();
        guest.send(connection, &sent);
        guest.tcp(connection).close();
        let received = guest.receive(connection, sent.len());
        assert!(received == expected, "mtu {mtu}");
        assert_eq!(server.join().unwrap(), sent.len());
        guest.until("the end", |guest| {
            matches!(
                guest.tcp(connection).state(),
                State::TimeWait | State::Closed
            )
            .then_some(())
        });
        let totals = world.handle.report().totals;
        assert_eq!(
            (totals.sent_bytes, totals.received_bytes),
            (4_000_000, 4_000_000)
        );
    }
}

#[test]
fn ipv6_is_carried_too() {
    let mut world = World::new(&["allow ::1"]);
    let listener = TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || echo(listener.accept().unwrap().0));
    let guest = &mut world.guest;
    let connection = guest.connect(address);
    let connection = connection.unwrap_or_else(|| panic!("{:?}", world.handle.report()));
    let sent = pattern(500_000);
    let mut received = Vec::new();
    for part in sent.chunks(100_000) {
        guest.send(connection, part);
        received.extend(guest.receive(connection, part.len()));
    }
    assert!(received == sent);
    guest.close(connection);
    server.join().unwrap();
    world.handle.set_policy(policy(&[]));
    assert!(world.guest.connect(address).is_none());
}

#[test]
fn the_report_shows_a_connection_while_it_lives() {
    let mut world = World::new(OPEN);
    let (listener, address) = listener();
    let server = thread::spawn(move || echo(listener.accept().unwrap().0));
    let guest = &mut world.guest;
    let connection = guest.connect(address).unwrap();
    guest.send(connection, b"hello");
    assert_eq!(guest.receive(connection, 5), b"hello");
    let report = world.handle.report();
    let [live] = &report.connections[..] else {
        panic!("{report:?}");
    };
    assert_eq!((live.remote, live.state), (address, ConnectionState::Open));
    assert_eq!((live.sent_bytes, live.received_bytes), (5, 5));
    guest.close(connection);
    server.join().unwrap();
    guest.until("the end of its task", |_| {
        world.handle.report().connections.is_empty().then_some(())
    });
}

#[test]
fn a_refusal_by_the_server_is_one_for_the_guest() {
    let mut world = World::new(OPEN);
    let (listener, address) = listener();
    drop(listener);
    let started = Instant::now();
    assert!(world.guest.connect(address).is_none());
    assert!(
        started.elapsed() < Duration::from_millis(50),
        "{:?}",
        started.elapsed()
    );
    assert!(world.handle.report().refusals.is_empty());
}

#[test]
fn a_refusal_by_policy_is_fast_and_remembered() {
    for (rules, rule) in [
        (&[][..], "protected range 127.0.0.0/8"),
        (&["deny 127.0.0.1", "allow 127.0.0.1"][..], "deny 127.0.0.1"),
        (
            &["allow 127.0.0.1:1", "default deny"][..],
            "protected range 127.0.0.0/8",
        ),
    ] {
        let mut world = World::new(rules);
        let (listener, address) = listener();
        listener.set_nonblocking(true).unwrap();
        let newest = world.handle.refused();
        let started = Instant::now();
        assert!(world.guest.connect(address).is_none());
        assert!(
            started.elapsed() < Duration::from_millis(50),
            "{:?}",
            started.elapsed()
        );
        assert!(listener.accept().is_err(), "the server saw it");
        let refusals = world.handle.report().refusals;
        assert_eq!((refusals.len(), &refusals[0].rule[..]), (1, rule));
        assert_eq!(
            (refusals[0].destination, refusals[0].port),
            (LOCAL.into(), address.port())
        );
        assert_eq!(*newest.borrow(), 1);
    }
}

#[test]
fn a_reset_passes_from_the_guest_to_the_server() {
    let mut world = World::new(OPEN);
    let (listener, address) = listener();
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.read_exact(&mut [0; 2]).unwrap();
        socket.read(&mut [0; 2]).unwrap_err().kind()
    });
    let guest = &mut world.guest;
    let connection = guest.connect(address).unwrap();
    guest.send(connection, b"hi");
    guest.until("the acknowledgement", |guest| {
        (guest.tcp(connection).send_queue() == 0).then_some(())
    });
    guest.tcp(connection).abort();
    guest.poll(Duration::ZERO);
    assert_eq!(server.join().unwrap(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_reset_passes_from_the_server_to_the_guest() {
    let mut world = World::new(OPEN);
    let (listener, address) = listener();
    let connection = world.guest.connect(address).unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    world.guest.send(connection, b"hi");
    // Closed with bytes unread, a socket resets.
    socket.read_exact(&mut [0; 1]).unwrap();
    drop(socket);
    world.guest.is_reset(connection);
}

#[test]
fn a_segment_of_an_unknown_connection_is_reset() {
    let mut before = World::new(OPEN);
    let (listener, address) = listener();
    let connection = before.guest.connect(address).unwrap();
    let _socket = listener.accept().unwrap();
    // The same guest behind another gateway, as after a spawn.
    let mut after = World::new(OPEN);
    after.guest.swap_card(&mut before.guest);
    let guest = &mut before.guest;
    guest.send(connection, b"are you there");
    let started = Instant::now();
    guest.is_reset(connection);
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_new_policy_cuts_what_it_forbids_and_nothing_else() {
    let mut world = World::new(OPEN);
    let (first, first_address) = listener();
    let (second, second_address) = listener();
    let guest = &mut world.guest;
    let kept = guest.connect(first_address).unwrap();
    let cut = guest.connect(second_address).unwrap();
    let (first, _) = first.accept().unwrap();
    let (mut second, _) = second.accept().unwrap();
    let rule = format!("allow 127.0.0.1:{}", first_address.port());
    world.handle.set_policy(policy(&[&rule]));
    guest.is_reset(cut);
    let seen = second.read(&mut [0; 1]).unwrap_err().kind();
    assert_eq!(seen, std::io::ErrorKind::ConnectionReset);
    let server = thread::spawn(move || echo(first));
    guest.send(kept, b"still here");
    assert_eq!(guest.receive(kept, 10), b"still here");
    guest.close(kept);
    server.join().unwrap();
}

#[test]
fn a_reader_that_stops_holds_up_its_own_connection_only() {
    let mut world = World::new(OPEN);
    let (listener, address) = listener();
    let guest = &mut world.guest;
    let slow = guest.connect(address).unwrap();
    let (mut source, _) = listener.accept().unwrap();
    let flood = thread::spawn(move || {
        let _ = source.write_all(&pattern(16_000_000));
    });
    guest.until("a full window", |guest| {
        (guest.tcp(slow).recv_queue() > 200_000).then_some(())
    });
    let other = guest.connect(address).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let server = thread::spawn(move || echo(socket));
    guest.send(other, b"hello");
    assert_eq!(guest.receive(other, 5), b"hello");
    guest.close(other);
    server.join().unwrap();
    let received = guest.receive(slow, 16_000_000);
    assert!(received == pattern(16_000_000));
    flood.join().unwrap();
}

#[test]
fn connections_are_limited_and_come_back() {
    let mut settings = Settings::with(OPEN);
    settings.limits = GatewayLimits {
        connections: 3,
        ..GatewayLimits::default()
    };
    let mut world = World::start(settings);
    let (listener, address) = listener();
    let guest = &mut world.guest;
    let open: Vec<_> = (0..3).map(|_| guest.connect(address).unwrap()).collect();
    assert!(guest.connect(address).is_none());
    assert_eq!(world.handle.report().refusals[0].rule, "connection limit");
    drop(listener.accept().unwrap());
    guest.close(open[0]);
    guest.until("room for another", |_| {
        (world.handle.report().connections.len() == 2).then_some(())
    });
    assert!(guest.connect(address).is_some());
}

#[test]
fn bandwidth_is_limited() {
    let mut settings = Settings::with(OPEN);
    settings.limits.bandwidth_bytes_per_second = Some(1_000_000);
    let mut world = World::start(settings);
    let (listener, address) = listener();
    let guest = &mut world.guest;
    let connection = guest.connect(address).unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    let source = thread::spawn(move || socket.write_all(&pattern(600_000)));
    let started = Instant::now();
    assert_eq!(guest.receive(connection, 600_000).len(), 600_000);
    // An eighth of a second's worth comes at once.
    assert!(
        started.elapsed() > Duration::from_millis(400),
        "{:?}",
        started.elapsed()
    );
    source.join().unwrap().unwrap();
}

#[test]
fn bandwidth_is_limited_while_the_gateway_runs() {
    let mut world = World::start(Settings::with(OPEN));
    let (listener, address) = listener();
    let guest = &mut world.guest;
    let connection = guest.connect(address).unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    world.handle.limit_bandwidth(1_000_000);
    // The first that is said stays.
    world.handle.limit_bandwidth(1_000_000_000);
    let source = thread::spawn(move || socket.write_all(&pattern(600_000)));
    let started = Instant::now();
    assert_eq!(guest.receive(connection, 600_000).len(), 600_000);
    // An eighth of a second's worth comes at once.
    assert!(
        started.elapsed() > Duration::from_millis(400),
        "{:?}",
        started.elapsed()
    );
    source.join().unwrap().unwrap();
}

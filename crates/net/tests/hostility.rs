//! A guest that means harm: it gains nothing, and others of its connections go on.

mod guest;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use guest::{GUEST_MAC, LOCAL, Settings, World};
use pando_net::{FRAME_BYTES, GATEWAY_MAC, GUEST_ADDRESS, GatewayLimits};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

const OPEN: &[&str] = &["allow 127.0.0.1"];

struct Segment {
    to: (Ipv4Addr, u16),
    from_port: u16,
    control: TcpControl,
    seq: i32,
    ack: Option<i32>,
    window: u16,
    payload: &'static [u8],
}

impl Segment {
    fn opening(to: SocketAddr, from_port: u16) -> Self {
        let SocketAddr::V4(to) = to else {
            panic!("{to}");
        };
        Self {
            to: (*to.ip(), to.port()),
            from_port,
            control: TcpControl::Syn,
            seq: 1000,
            ack: None,
            window: 1000,
            payload: b"",
        }
    }

    fn frame(&self) -> Vec<u8> {
        let checksums = ChecksumCapabilities::default();
        let segment = TcpRepr {
            src_port: self.from_port,
            dst_port: self.to.1,
            control: self.control,
            seq_number: TcpSeqNumber(self.seq),
            ack_number: self.ack.map(TcpSeqNumber),
            window_len: self.window,
            window_scale: None,
            max_seg_size: (self.control == TcpControl::Syn).then_some(1),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: self.payload,
        };
        let (from, to) = (GUEST_ADDRESS.into(), self.to.0.into());
        let header = IpRepr::new(from, to, IpProtocol::Tcp, segment.buffer_len(), 64);
        let mut frame = [&GATEWAY_MAC[..], &GUEST_MAC, &[8, 0]].concat();
        frame.resize(14 + header.buffer_len(), 0);
        header.emit(&mut frame[14..], &checksums);
        let at = 14 + header.header_len();
        segment.emit(
            &mut TcpPacket::new_unchecked(&mut frame[at..]),
            &from,
            &to,
            &checksums,
        );
        frame
    }
}

/// An honest connection to a server that echoes.
fn works(world: &mut World, listener: &TcpListener) {
    let address = listener.local_addr().unwrap();
    let connection = world.guest.connect(address).unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    let echo = thread::spawn(move || {
        let mut bytes = vec![0; 100_000];
        socket.read_exact(&mut bytes).unwrap();
        socket.write_all(&bytes).unwrap();
    });
    let sent: Vec<u8> = (0..100_000).map(|at| (at % 253) as u8).collect();
    world.guest.send(connection, &sent);
    assert!(world.guest.receive(connection, sent.len()) == sent);
    echo.join().unwrap();
    world.guest.close(connection);
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_flood_of_openings_is_bounded_and_passes() {
    let mut settings = Settings::with(OPEN);
    settings.limits = GatewayLimits {
        connections: 100,
        new_connections_per_second: 100_000,
        ..GatewayLimits::default()
    };
    let mut world = World::start(settings);
    let honest = TcpListener::bind((LOCAL, 0)).unwrap();
    works(&mut world, &honest);
    let flooded = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = flooded.local_addr().unwrap();
    // Somebody must take what is really opened.
    thread::spawn(move || flooded.incoming().for_each(drop));
    let memory = resident();
    for round in 0..20_u16 {
        for port in 0..500 {
            world
                .guest
                .inject(&Segment::opening(address, 1000 + round * 500 + port).frame());
        }
        assert!(world.handle.report().connections.len() <= 100);
        world.guest.poll(Duration::from_millis(1));
    }
    assert!(resident().saturating_sub(memory) < 16 << 20);
    let refusals = world.handle.report().refusals;
    assert!(
        refusals
            .iter()
            .any(|refusal| refusal.rule == "connection limit")
    );
    // Openings that nobody follows up end by themselves.
    world.guest.until("the end of the flood", |_| {
        world.handle.report().connections.is_empty().then_some(())
    });
    works(&mut world, &honest);
}

#[test]
fn refusals_of_a_scan_are_all_counted_and_the_last_are_kept() {
    let mut world = World::new(&["default deny"]);
    for number in 0..5000 {
        let to = SocketAddr::from(([198, 51, 100, 1], 1 + number % 500));
        world.guest.inject(&Segment::opening(to, 1000).frame());
        if number % 50 == 0 {
            world.guest.poll(Duration::ZERO);
        }
    }
    world.guest.until("the last refusal", |_| {
        (world.handle.report().totals.refused == 5000).then_some(())
    });
    assert_eq!(world.handle.report().refusals.len(), 128);
}

#[test]
fn noise_changes_nothing() {
    let mut world = World::new(OPEN);
    let honest = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = honest.local_addr().unwrap();
    let mut random = StdRng::seed_from_u64(5);
    let opening = Segment::opening(address, 999).frame();
    for number in 0..30_000 {
        let mut frame = if number % 3 == 0 {
            let mut bytes = vec![0; random.random_range(0..200)];
            random.fill(&mut bytes[..]);
            bytes
        } else {
            let mut frame = opening.clone();
            // Not the addresses: noise for the honest server would be an honest connection.
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..frame.len());
                if !(26..38).contains(&at) {
                    frame[at] = random.random();
                }
            }
            frame[36] = 0;
            frame.truncate(random.random_range(20..=frame.len()));
            frame
        };
        if number % 1000 == 0 {
            frame.resize(FRAME_BYTES + 100, 7);
        }
        if !frame.is_empty() {
            world.guest.inject(&frame);
        }
        if number % 50 == 0 {
            world.guest.poll(Duration::ZERO);
        }
    }
    works(&mut world, &honest);
}

/// Segments of one connection with random numbers, flags and lengths: the stack behind it
/// must survive them, and so must everything else.
#[test]
fn a_connection_of_nonsense_is_its_own_problem() {
    let mut world = World::new(OPEN);
    let honest = TcpListener::bind((LOCAL, 0)).unwrap();
    works(&mut world, &honest);
    let target = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = target.local_addr().unwrap();
    thread::spawn(move || {
        for socket in target.incoming() {
            let mut socket = socket.unwrap();
            thread::spawn(move || {
                let _ = socket.write_all(&[1; 100_000]);
                while let Ok(1..) = socket.read(&mut [0; 1000]) {}
            });
        }
    });
    world
        .guest
        .catch(|frame| frame[12..14] == [8, 0] && frame[23] == 6 && frame[47] & 0x12 == 0x12);
    let mut random = StdRng::seed_from_u64(7);
    for connection in 0..60_u16 {
        let from_port = 40_000 + connection;
        let mut opening = Segment::opening(address, from_port);
        opening.window = random.random();
        world.guest.inject(&opening.frame());
        let answer = world.guest.until("an answer", |guest| guest.caught().pop());
        let theirs = i32::from_be_bytes(answer[38..42].try_into().unwrap());
        for _ in 0..100 {
            let near = |random: &mut StdRng, base: i32| {
                base.wrapping_add(match random.random_range(0..4) {
                    0 => 0,
                    1 => random.random_range(-3..3),
                    2 => random.random_range(-100_000..300_000),
                    _ => random.random(),
                })
            };
            let control = [
                TcpControl::None,
                TcpControl::None,
                TcpControl::Psh,
                TcpControl::Fin,
                TcpControl::Syn,
                TcpControl::Rst,
            ][random.random_range(0..6)];
            let segment = Segment {
                from_port,
                control,
                seq: near(&mut random, 1001),
                ack: (random.random_range(0..5) > 0)
                    .then(|| near(&mut random, theirs.wrapping_add(1))),
                window: random.random(),
                payload: &[5; 1400][..random.random_range(0..1400)],
                ..Segment::opening(address, from_port)
            };
            world.guest.inject(&segment.frame());
        }
        world.guest.poll(Duration::ZERO);
    }
    world.guest.catch(|_| false);
    works(&mut world, &honest);
}

/// The guest's window is one byte, or none, and segments carry a byte each.
#[test]
fn tiny_segments_and_closed_windows_hold_up_nobody() {
    let mut world = World::new(OPEN);
    let honest = TcpListener::bind((LOCAL, 0)).unwrap();
    works(&mut world, &honest);
    let target = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = target.local_addr().unwrap();
    world
        .guest
        .catch(|frame| frame[12..14] == [8, 0] && frame[23] == 6 && frame[47] & 0x12 == 0x12);
    let mut servers = Vec::new();
    for connection in 0..50_u16 {
        let from_port = 41_000 + connection;
        let mut segment = Segment::opening(address, from_port);
        segment.window = connection % 2;
        world.guest.inject(&segment.frame());
        let answer = world.guest.until("an answer", |guest| guest.caught().pop());
        let theirs = i32::from_be_bytes(answer[38..42].try_into().unwrap());
        let (mut socket, _) = target.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.write(&[9; 1_000_000]);
        servers.push(socket);
        for byte in 0..100 {
            let one = Segment {
                control: TcpControl::None,
                seq: 1001 + byte,
                ack: Some(theirs.wrapping_add(1)),
                window: connection % 2,
                payload: b"x",
                ..Segment::opening(address, from_port)
            };
            world.guest.inject(&one.frame());
        }
    }
    world.guest.catch(|_| false);
    works(&mut world, &honest);
}

/// The card is not read at all while others write to it.
#[test]
fn a_guest_that_reads_nothing_costs_a_frame_per_connection() {
    let mut world = World::new(OPEN);
    let honest = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = honest.local_addr().unwrap();
    let mut open = Vec::new();
    for _ in 0..50 {
        let connection = world.guest.connect(address).unwrap();
        let (mut socket, _) = honest.accept().unwrap();
        open.push((
            connection,
            thread::spawn(move || socket.write_all(&[3; 500_000])),
        ));
    }
    // Resets that are not read either.
    let gateway = Segment::opening(([10, 0, 2, 2], 1).into(), 7).frame();
    let deadline = Instant::now() + guest::PATIENCE;
    while world.handle.report().totals.unsent == 0 {
        assert!(Instant::now() < deadline, "there is room for everything");
        world.guest.inject(&gateway);
    }
    for (connection, source) in open {
        assert_eq!(world.guest.receive(connection, 500_000).len(), 500_000);
        source.join().unwrap().unwrap();
    }
}

/// Queries that nobody answers fill what there is for queries, and nothing else.
#[test]
fn a_flood_of_queries_holds_up_no_connection() {
    let silent = std::net::UdpSocket::bind((LOCAL, 0)).unwrap();
    let mut settings = Settings::with(OPEN);
    settings.resolvers = vec![silent.local_addr().unwrap()];
    let mut world = World::start(settings);
    let honest = TcpListener::bind((LOCAL, 0)).unwrap();
    let socket = world.guest.udp();
    let query = b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
    world.guest.send_to(socket, query, ([10, 0, 2, 2], 53));
    let memory = resident();
    for number in 0..5000 {
        world.guest.send_to(socket, query, ([10, 0, 2, 2], 53));
        if number % 1000 == 0 {
            works(&mut world, &honest);
        }
    }
    works(&mut world, &honest);
    assert!(resident().saturating_sub(memory) < 16 << 20);
    let totals = world.handle.report().totals;
    assert!(totals.names > 0 && totals.names <= 5001, "{totals:?}");
}

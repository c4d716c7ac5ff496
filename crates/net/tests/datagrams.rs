//! Datagrams and pings of a guest.

mod guest;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use guest::{GUEST_MAC, LOCAL, Settings, World, policy};
use pando_net::{
    GATEWAY_ADDRESS, GATEWAY_ADDRESS_V6, GATEWAY_MAC, GUEST_ADDRESS, GUEST_ADDRESS_V6,
    GatewayLimits, Protocol,
};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, IpRepr};

const OPEN: &[&str] = &["allow 127.0.0.1", "allow ::1"];

fn server() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((LOCAL, 0)).unwrap();
    socket.set_read_timeout(Some(guest::PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Frames that carry ICMP errors.
fn is_icmp_error(frame: &[u8]) -> bool {
    let v4 = frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 3;
    let v6 = frame[12..14] == [0x86, 0xdd] && frame[20] == 58 && frame[54] == 1;
    v4 || v6
}

/// Type and code of the next ICMP error, and the packet that it is about.
fn icmp_error(world: &mut World) -> (u8, u8, Vec<u8>) {
    let frame = world
        .guest
        .until("an ICMP error", |guest| guest.caught().pop());
    let at = if frame[12] == 8 { 34 } else { 54 };
    (frame[at], frame[at + 1], frame[at + 8..].to_vec())
}

#[test]
fn datagrams_pass_both_ways_up_to_the_longest() {
    let mut settings = Settings::with(OPEN);
    settings.mtu = 65535;
    let mut world = World::start(settings);
    let (server, address) = server();
    let socket = world.guest.udp();
    for length in [1, 0, 1472, 9000, 65507] {
        let sent = vec![length as u8; length];
        world.guest.send_to(socket, &sent, address);
        let mut received = vec![0; 65535];
        let (count, from) = server.recv_from(&mut received).unwrap();
        assert!(received[..count] == sent, "{length}");
        server.send_to(&received[..count], from).unwrap();
        let (back, by) = world.guest.receive_from(socket);
        assert!(back == sent && by == address.ip(), "{length}");
    }
    let report = world.handle.report();
    assert_eq!(report.connections.len(), 1);
    assert_eq!(report.connections[0].protocol, Protocol::Udp);
    assert_eq!(
        report.connections[0].sent_bytes,
        report.connections[0].received_bytes
    );
}

#[test]
fn a_stranger_cannot_answer() {
    let mut world = World::new(OPEN);
    let ((server, address), (stranger, _)) = (server(), server());
    let socket = world.guest.udp();
    world.guest.send_to(socket, b"to the server", address);
    let (_, from) = server.recv_from(&mut [0; 100]).unwrap();
    stranger.send_to(b"from a stranger", from).unwrap();
    server.send_to(b"from the server", from).unwrap();
    assert_eq!(world.guest.receive_from(socket).0, b"from the server");
}

#[test]
fn a_refused_datagram_is_prohibited_at_once() {
    let mut world = World::new(&["deny 198.51.100.0/24", "deny 2001:db8::/32"]);
    world.guest.catch(is_icmp_error);
    let socket = world.guest.udp();
    // The first has the neighbour asked for.
    let _ = world.guest.udp();
    let target: SocketAddr = ([198, 51, 100, 1], 9).into();
    let started = Instant::now();
    world.guest.send_to(socket, b"hello", target);
    let (kind, code, about) = icmp_error(&mut world);
    assert_eq!((kind, code), (3, 13));
    assert_eq!(
        &about[12..24],
        [10, 0, 2, 15, 198, 51, 100, 1, about[20], about[21], 0, 9]
    );
    assert!(
        started.elapsed() < Duration::from_millis(50),
        "{:?}",
        started.elapsed()
    );
    let target: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
    world.guest.send_to(socket, b"hello", target);
    let (kind, code, about) = icmp_error(&mut world);
    assert_eq!((kind, code), (1, 1));
    assert_eq!(&about[8..24], GUEST_ADDRESS_V6.octets());
    let rules: Vec<_> = world
        .handle
        .report()
        .refusals
        .into_iter()
        .map(|refusal| refusal.rule)
        .collect();
    assert_eq!(rules, ["deny 198.51.100.0/24", "deny 2001:db8::/32"]);
}

#[test]
fn a_closed_port_is_told() {
    let mut world = World::new(OPEN);
    world.guest.catch(is_icmp_error);
    let (server, address) = server();
    drop(server);
    let socket = world.guest.udp();
    world.guest.send_to(socket, b"hello", address);
    let (kind, code, about) = icmp_error(&mut world);
    assert_eq!((kind, code), (3, 3));
    assert_eq!(&about[12..20], [10, 0, 2, 15, 127, 0, 0, 1]);
    assert_eq!(about[22..24], address.port().to_be_bytes());
}

#[test]
fn domain_rules_refuse_quic_and_other_name_servers() {
    let mut world = World::new(&["allow *.example.org"]);
    world.guest.catch(is_icmp_error);
    let socket = world.guest.udp();
    for (port, rule) in [
        (443, "UDP/443 under domain rules"),
        (53, "another name server under domain rules"),
    ] {
        let target: SocketAddr = ([198, 51, 100, 1], port).into();
        world.guest.send_to(socket, b"hello", target);
        let (kind, code, _) = icmp_error(&mut world);
        assert_eq!((kind, code), (3, 13));
        assert_eq!(world.handle.report().refusals.last().unwrap().rule, rule);
    }
    let target: SocketAddr = ([198, 51, 100, 1], 53).into();
    assert!(world.guest.connect(target).is_none());
}

#[test]
fn flows_are_limited_and_the_longest_unused_goes() {
    let mut settings = Settings::with(OPEN);
    settings.limits = GatewayLimits {
        udp_flows: 3,
        ..GatewayLimits::default()
    };
    let mut world = World::start(settings);
    let (server, address) = server();
    let mut froms = Vec::new();
    for number in 0..5_u8 {
        let socket = world.guest.udp();
        world.guest.send_to(socket, &[number], address);
        let mut byte = [0];
        froms.push((socket, server.recv_from(&mut byte).unwrap().1));
        assert_eq!(byte, [number]);
    }
    assert_eq!(world.handle.report().connections.len(), 3);
    let (socket, from) = froms[4];
    server.send_to(b"last", from).unwrap();
    assert_eq!(world.guest.receive_from(socket).0, b"last");
}

#[test]
fn a_new_policy_cuts_flows() {
    let mut world = World::new(OPEN);
    world.guest.catch(is_icmp_error);
    let (server, address) = server();
    let socket = world.guest.udp();
    world.guest.send_to(socket, b"1", address);
    let (_, from) = server.recv_from(&mut [0; 1]).unwrap();
    world.handle.set_policy(policy(&[]));
    world.guest.until("the end of the flow", |_| {
        world.handle.report().connections.is_empty().then_some(())
    });
    world.guest.send_to(socket, b"2", address);
    assert_eq!(icmp_error(&mut world).0, 3);
    server.send_to(b"late", from).unwrap();
    let refusal = world.handle.report().refusals[0].clone();
    assert_eq!((refusal.protocol, refusal.count), (Protocol::Udp, 2));
}

/// A ping as a frame, and whether a frame is its reply.
fn ping(to: IpAddr) -> Vec<u8> {
    let checksums = ChecksumCapabilities::default();
    let mut frame = [&GATEWAY_MAC[..], &GUEST_MAC].concat();
    let mut body = |from: IpAddr, protocol, length| {
        let header = IpRepr::new(from.into(), to.into(), protocol, length, 64);
        frame.extend(if to.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
        frame.resize(14 + header.buffer_len(), 0);
        header.emit(&mut frame[14..], &checksums);
        (std::mem::take(&mut frame), 14 + header.header_len())
    };
    match to {
        IpAddr::V4(_) => {
            let ping = Icmpv4Repr::EchoRequest {
                ident: 7,
                seq_no: 3,
                data: b"pando",
            };
            let (mut frame, at) = body(GUEST_ADDRESS.into(), IpProtocol::Icmp, ping.buffer_len());
            ping.emit(
                &mut Icmpv4Packet::new_unchecked(&mut frame[at..]),
                &checksums,
            );
            frame
        }
        IpAddr::V6(to) => {
            let ping = Icmpv6Repr::EchoRequest {
                ident: 7,
                seq_no: 3,
                data: b"pando",
            };
            let (mut frame, at) = body(
                GUEST_ADDRESS_V6.into(),
                IpProtocol::Icmpv6,
                ping.buffer_len(),
            );
            ping.emit(
                &GUEST_ADDRESS_V6,
                &to,
                &mut Icmpv6Packet::new_unchecked(&mut frame[at..]),
                &checksums,
            );
            frame
        }
    }
}

fn is_echo_reply(frame: &[u8]) -> bool {
    let v4 = frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 0;
    let v6 = frame[12..14] == [0x86, 0xdd] && frame[20] == 58 && frame[54] == 129;
    v4 || v6
}

#[test]
fn the_gateway_answers_pings() {
    let mut world = World::new(&["default deny"]);
    world.guest.catch(is_echo_reply);
    for address in [IpAddr::from(GATEWAY_ADDRESS), GATEWAY_ADDRESS_V6.into()] {
        world.guest.inject(&ping(address));
        let reply = world.guest.until("a reply", |guest| guest.caught().pop());
        assert!(reply.ends_with(b"\0\x07\0\x03pando"));
    }
}

/// The kernel lets this user ping or it does not; both have one right answer.
#[test]
fn pings_go_out_where_the_host_lets_them_and_are_prohibited_elsewhere() {
    let mut world = World::new(OPEN);
    if pando_net::ping_allowed() {
        world.guest.catch(is_echo_reply);
        for address in [IpAddr::from(LOCAL), Ipv6Addr::LOCALHOST.into()] {
            world.guest.inject(&ping(address));
            let reply = world.guest.until("a reply", |guest| guest.caught().pop());
            assert!(reply.ends_with(b"\0\x07\0\x03pando"));
        }
    } else {
        world.guest.catch(is_icmp_error);
        world.guest.inject(&ping(LOCAL.into()));
        assert_eq!(icmp_error(&mut world).1, 13);
        assert_eq!(
            world.handle.report().refusals[0].rule,
            "the host does not allow pings"
        );
    }
}

#[test]
fn a_ping_is_refused_by_rule() {
    let mut world = World::new(&["deny 198.51.100.0/24/icmp"]);
    world.guest.catch(is_icmp_error);
    world
        .guest
        .inject(&ping(Ipv4Addr::new(198, 51, 100, 1).into()));
    let (kind, code, _) = icmp_error(&mut world);
    assert_eq!((kind, code), (3, 13));
    let refusal = &world.handle.report().refusals[0];
    assert_eq!((refusal.protocol, refusal.port), (Protocol::Icmp, 0));
}

#[test]
fn a_first_fragment_is_prohibited_and_the_rest_is_dropped() {
    let mut world = World::new(&[]);
    world.guest.catch(is_icmp_error);
    let mut fragment = ping(Ipv4Addr::new(198, 51, 100, 1).into());
    fragment[20] = 0x20;
    world.guest.inject(&fragment);
    assert_eq!(icmp_error(&mut world).1, 13);
    fragment[21] = 1;
    world.guest.inject(&fragment);
    world
        .guest
        .inject(&ping(Ipv4Addr::new(192, 168, 0, 1).into()));
    let errors = world.guest.until("the next error", |guest| {
        let caught = guest.caught();
        (!caught.is_empty()).then_some(caught)
    });
    assert_eq!(errors.len(), 1);
    assert_eq!(world.handle.report().refusals.len(), 1);
}

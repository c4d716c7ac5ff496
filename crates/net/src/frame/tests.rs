use std::net::SocketAddr;

use super::*;
use crate::address::{GATEWAY_ADDRESS, GATEWAY_MAC, GUEST_ADDRESS};

const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x70, 0x61, 0x6e];

/// A datagram between two IPv4 ends, as a frame to the gateway.
fn datagram(from: &str, to: &str) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let mut frame = [&GATEWAY_MAC[..], &GUEST_MAC, &[8, 0]].concat();
    udp(from, to, b"hello", &mut frame).unwrap();
    frame
}

#[test]
fn a_datagram_is_read_as_it_was_written() {
    let frame = datagram("10.0.2.15:5353", "198.51.100.7:123");
    let (mac, Frame::Ip(packet)) = read(&frame).unwrap() else {
        panic!("{frame:?}");
    };
    assert_eq!((mac, packet.source), (GUEST_MAC, GUEST_ADDRESS.into()));
    let expected = Payload::Udp {
        source_port: 5353,
        destination_port: 123,
        data: b"hello",
    };
    assert_eq!((packet.payload, packet.bytes.len()), (expected, 33));
    // Padding behind the packet is no part of it.
    let padded = [&frame[..], &[0; 30]].concat();
    assert_eq!(read(&padded), read(&frame));
}

#[test]
fn only_the_guest_is_carried_and_only_to_one_host() {
    for (from, to) in [
        ("10.0.2.16:1", "198.51.100.7:1"),
        ("127.0.0.1:1", "198.51.100.7:1"),
        ("10.0.2.2:1", "198.51.100.7:1"),
        ("10.0.2.15:1", "255.255.255.255:1"),
        ("10.0.2.15:1", "10.0.2.255:1"),
        ("10.0.2.15:1", "224.0.0.251:5353"),
        ("10.0.2.15:1", "0.0.0.0:1"),
        ("10.0.2.15:0", "198.51.100.7:1"),
        ("10.0.2.15:1", "198.51.100.7:0"),
    ] {
        assert_eq!(read(&datagram(from, to)), None, "{from} {to}");
    }
    let mut elsewhere = datagram("10.0.2.15:1", "198.51.100.7:1");
    elsewhere[5] ^= 1;
    assert_eq!(read(&elsewhere), None);
    let mut from_many = datagram("10.0.2.15:1", "198.51.100.7:1");
    from_many[6] |= 1;
    assert_eq!(read(&from_many), None);
}

#[test]
fn every_stump_of_a_frame_is_nothing() {
    let frame = datagram("10.0.2.15:5353", "198.51.100.7:123");
    for end in 0..frame.len() {
        assert_eq!(read(&frame[..end]), None, "{end}");
    }
}

#[test]
fn a_refusal_names_who_refuses() {
    let frame = datagram("10.0.2.15:5353", "198.51.100.7:123");
    for (why, speaker, code) in [
        (Unreachable::Prohibited, GATEWAY_ADDRESS.octets(), 13),
        (Unreachable::Host, GATEWAY_ADDRESS.octets(), 1),
        (Unreachable::Port, [198, 51, 100, 7], 3),
    ] {
        let mut out = Vec::new();
        unreachable(why, &frame[14..], &mut out).unwrap();
        assert_eq!(
            (&out[12..16], &out[16..20]),
            (&speaker[..], &GUEST_ADDRESS.octets()[..])
        );
        assert_eq!((out[20], out[21], &out[28..56]), (3, code, &frame[14..42]));
    }
    assert_eq!(
        unreachable(Unreachable::Host, &[0x45; 10], &mut Vec::new()),
        None
    );
    assert_eq!(unreachable(Unreachable::Host, &[], &mut Vec::new()), None);
}

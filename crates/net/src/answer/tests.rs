use proptest::prelude::*;

use smoltcp::wire::Icmpv4Message;

use super::*;

const GUEST_MAC: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0x70, 0x61, 0x6e]);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);

fn ethernet(to: EthernetAddress, ethertype: EthernetProtocol, payload: &[u8]) -> Vec<u8> {
    let header = EthernetRepr {
        src_addr: GUEST_MAC,
        dst_addr: to,
        ethertype,
    };
    let mut frame = vec![0; header.buffer_len() + payload.len()];
    header.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
    frame[header.buffer_len()..].copy_from_slice(payload);
    frame
}

fn ipv4(to: Ipv4Addr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let header = Ipv4Repr {
        src_addr: GUEST_ADDRESS,
        dst_addr: to,
        next_header: protocol,
        payload_len: payload.len(),
        hop_limit: 64,
    };
    let mut packet = vec![0; header.buffer_len() + payload.len()];
    header.emit(
        &mut Ipv4Packet::new_unchecked(&mut packet),
        &ChecksumCapabilities::default(),
    );
    packet[header.buffer_len()..].copy_from_slice(payload);
    ethernet(
        EthernetAddress(GATEWAY_MAC),
        EthernetProtocol::Ipv4,
        &packet,
    )
}

fn tcp(to: Ipv4Addr, control: TcpControl, ack_number: Option<i32>) -> Vec<u8> {
    let segment = TcpRepr {
        src_port: 40000,
        dst_port: 443,
        control,
        seq_number: TcpSeqNumber(1000),
        ack_number: ack_number.map(TcpSeqNumber),
        window_len: 1000,
        window_scale: None,
        max_seg_size: Some(1460),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let mut bytes = vec![0; segment.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    let mut packet = TcpPacket::new_unchecked(&mut bytes[..]);
    segment.emit(&mut packet, &GUEST_ADDRESS.into(), &to.into(), &checksums);
    ipv4(to, IpProtocol::Tcp, &bytes)
}

fn udp(to: Ipv4Addr, port: u16, payload: &[u8]) -> Vec<u8> {
    let header = UdpRepr {
        src_port: 5353,
        dst_port: port,
    };
    let mut bytes = vec![0; header.header_len() + payload.len()];
    header.emit(
        &mut UdpPacket::new_unchecked(&mut bytes[..]),
        &GUEST_ADDRESS.into(),
        &to.into(),
        payload.len(),
        |target| target.copy_from_slice(payload),
        &ChecksumCapabilities::default(),
    );
    ipv4(to, IpProtocol::Udp, &bytes)
}

fn icmp(to: Ipv4Addr, message: &Icmpv4Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    let mut packet = Icmpv4Packet::new_unchecked(&mut bytes[..]);
    message.emit(&mut packet, &ChecksumCapabilities::default());
    ipv4(to, IpProtocol::Icmp, &bytes)
}

fn arp(target: Ipv4Addr, operation: ArpOperation) -> Vec<u8> {
    let request = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: GUEST_MAC,
        source_protocol_addr: GUEST_ADDRESS,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: target,
    };
    let mut bytes = vec![0; request.buffer_len()];
    request.emit(&mut ArpPacket::new_unchecked(&mut bytes));
    ethernet(EthernetAddress::BROADCAST, EthernetProtocol::Arp, &bytes)
}

/// The answer to a frame, with the packet behind its Ethernet header.
fn ask(frame: &[u8]) -> (Answer, Vec<u8>) {
    let mut out = Vec::new();
    let answer = answer(frame, &mut out);
    if answer == Answer::Silence {
        assert!(out.is_empty());
        return (answer, out);
    }
    let reply = EthernetFrame::new_checked(&out[..]).unwrap();
    assert_eq!(reply.dst_addr(), GUEST_MAC);
    assert_eq!(reply.src_addr(), EthernetAddress(GATEWAY_MAC));
    (answer, reply.payload().to_vec())
}

/// The source and payload of an IPv4 packet to the guest, checksum verified.
fn unwrap_ipv4(packet: &[u8]) -> (Ipv4Addr, &[u8]) {
    let packet = Ipv4Packet::new_checked(packet).unwrap();
    assert!(packet.verify_checksum());
    assert_eq!(packet.dst_addr(), GUEST_ADDRESS);
    (packet.src_addr(), packet.payload())
}

#[test]
fn the_gateway_alone_is_found_by_arp() {
    let (said, reply) = ask(&arp(GATEWAY_ADDRESS, ArpOperation::Request));
    assert_eq!(said, Answer::Arp);
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(&reply[..]).unwrap()).unwrap()
    else {
        panic!("no ARP");
    };
    assert_eq!(operation, ArpOperation::Reply);
    assert_eq!(source_hardware_addr, EthernetAddress(GATEWAY_MAC));
    assert_eq!(source_protocol_addr, GATEWAY_ADDRESS);
    let other = Ipv4Addr::new(10, 0, 2, 3);
    assert_eq!(ask(&arp(other, ArpOperation::Request)).0, Answer::Silence);
    assert_eq!(
        ask(&arp(GATEWAY_ADDRESS, ArpOperation::Reply)).0,
        Answer::Silence
    );
}

#[test]
fn a_connection_attempt_is_reset_by_whom_it_was_meant_for() {
    for to in [ELSEWHERE, GATEWAY_ADDRESS, Ipv4Addr::LOCALHOST] {
        let (said, reply) = ask(&tcp(to, TcpControl::Syn, None));
        assert_eq!(said, Answer::Reset);
        let (from, reply) = unwrap_ipv4(&reply);
        assert_eq!(from, to);
        let reply = TcpPacket::new_checked(reply).unwrap();
        assert!(reply.verify_checksum(&to.into(), &GUEST_ADDRESS.into()));
        assert!(reply.rst() && reply.ack());
        assert_eq!((reply.src_port(), reply.dst_port()), (443, 40000));
        assert_eq!(reply.ack_number(), TcpSeqNumber(1001), "the SYN counts");
    }
}

#[test]
fn a_segment_of_an_old_connection_is_reset_where_its_sender_is() {
    let (said, reply) = ask(&tcp(ELSEWHERE, TcpControl::None, Some(7777)));
    assert_eq!(said, Answer::Reset);
    let (_, reply) = unwrap_ipv4(&reply);
    let reply = TcpPacket::new_checked(reply).unwrap();
    assert!(reply.rst() && !reply.ack());
    assert_eq!(reply.seq_number(), TcpSeqNumber(7777));
}

#[test]
fn errors_are_never_answered() {
    assert_eq!(
        ask(&tcp(ELSEWHERE, TcpControl::Rst, None)).0,
        Answer::Silence
    );
    let refused = ask(&udp(ELSEWHERE, 443, b"hello")).1;
    let quoted = unwrap_ipv4(&refused).1;
    let echoed = ipv4(ELSEWHERE, IpProtocol::Icmp, quoted);
    assert_eq!(ask(&echoed).0, Answer::Silence);
}

#[test]
fn a_datagram_is_prohibited_with_its_first_bytes_quoted() {
    let frame = udp(ELSEWHERE, 443, b"hello");
    let (said, reply) = ask(&frame);
    assert_eq!(said, Answer::Prohibited);
    let (from, reply) = unwrap_ipv4(&reply);
    assert_eq!(from, GATEWAY_ADDRESS);
    let reply = Icmpv4Packet::new_checked(reply).unwrap();
    assert!(reply.verify_checksum());
    assert_eq!(reply.msg_type(), Icmpv4Message::DstUnreachable);
    assert_eq!(
        reply.msg_code(),
        u8::from(Icmpv4DstUnreachable::CommProhibited)
    );
    let (header, data) = reply.data().split_at(20);
    let header = Ipv4Packet::new_unchecked(header);
    assert_eq!(
        (header.src_addr(), header.dst_addr()),
        (GUEST_ADDRESS, ELSEWHERE)
    );
    assert_eq!(data, &frame[34..42]);
}

#[test]
fn a_name_query_is_refused() {
    let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03org\0\0\x01\0\x01";
    let (said, reply) = ask(&udp(GATEWAY_ADDRESS, 53, query));
    assert_eq!(said, Answer::NameRefused);
    let (from, reply) = unwrap_ipv4(&reply);
    let reply = UdpPacket::new_checked(reply).unwrap();
    assert!(reply.verify_checksum(&from.into(), &GUEST_ADDRESS.into()));
    assert_eq!(
        (from, reply.src_port(), reply.dst_port()),
        (GATEWAY_ADDRESS, 53, 5353)
    );
    assert_eq!(&reply.payload()[..4], b"\x12\x34\x81\x05");
    // Another name server is just another host.
    assert_eq!(ask(&udp(ELSEWHERE, 53, query)).0, Answer::Prohibited);
}

#[test]
fn pings_are_answered_by_the_gateway_and_prohibited_elsewhere() {
    let ping = Icmpv4Repr::EchoRequest {
        ident: 1,
        seq_no: 2,
        data: &[7; 1400],
    };
    let (said, reply) = ask(&icmp(GATEWAY_ADDRESS, &ping));
    assert_eq!(said, Answer::Echo);
    let (_, reply) = unwrap_ipv4(&reply);
    let reply = Icmpv4Packet::new_checked(reply).unwrap();
    let message = Icmpv4Repr::parse(&reply, &ChecksumCapabilities::default()).unwrap();
    assert_eq!(
        message,
        Icmpv4Repr::EchoReply {
            ident: 1,
            seq_no: 2,
            data: &[7; 1400]
        }
    );
    assert_eq!(ask(&icmp(ELSEWHERE, &ping)).0, Answer::Prohibited);
}

#[test]
fn what_is_sent_to_many_or_in_pieces_or_by_another_gets_nothing() {
    for to in [
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(224, 0, 0, 251),
        Ipv4Addr::new(10, 0, 2, 255),
    ] {
        assert_eq!(ask(&udp(to, 5353, b"x")).0, Answer::Silence, "{to}");
    }
    let mut fragment = udp(ELSEWHERE, 443, b"hello");
    let mut packet = Ipv4Packet::new_unchecked(&mut fragment[14..]);
    packet.set_more_frags(true);
    packet.fill_checksum();
    assert_eq!(ask(&fragment).0, Answer::Silence);
    let mut spoofed = udp(ELSEWHERE, 443, b"hello");
    let mut packet = Ipv4Packet::new_unchecked(&mut spoofed[14..]);
    packet.set_src_addr(Ipv4Addr::new(10, 0, 2, 16));
    packet.fill_checksum();
    assert_eq!(ask(&spoofed).0, Answer::Silence);
    let mut to_other = udp(ELSEWHERE, 443, b"hello");
    to_other[0] ^= 4;
    assert_eq!(ask(&to_other).0, Answer::Silence);
}

#[test]
fn a_wrong_checksum_gets_nothing() {
    for frame in [
        tcp(ELSEWHERE, TcpControl::Syn, None),
        udp(ELSEWHERE, 9, b"hello"),
    ] {
        let mut frame = frame;
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(ask(&frame).0, Answer::Silence);
    }
}

/// Frames that get an answer, to be damaged.
fn good_frames() -> Vec<Vec<u8>> {
    let ping = Icmpv4Repr::EchoRequest {
        ident: 1,
        seq_no: 2,
        data: &[7; 1460],
    };
    vec![
        arp(GATEWAY_ADDRESS, ArpOperation::Request),
        tcp(ELSEWHERE, TcpControl::Syn, None),
        tcp(ELSEWHERE, TcpControl::Fin, Some(5)),
        udp(ELSEWHERE, 443, &[1; 1400]),
        udp(
            GATEWAY_ADDRESS,
            53,
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03org\0\0\x01\0\x01",
        ),
        icmp(GATEWAY_ADDRESS, &ping),
    ]
}

fn check(frame: &[u8]) {
    let mut out = vec![1; 10];
    let said = answer(frame, &mut out);
    assert_eq!(said == Answer::Silence, out.is_empty());
    assert!(out.len() <= FRAME_BYTES);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        check(&bytes);
    }

    #[test]
    fn no_payload_makes_it_panic(
        protocol in any::<u8>(),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        gateway in any::<bool>(),
    ) {
        let to = if gateway { GATEWAY_ADDRESS } else { ELSEWHERE };
        for protocol in [protocol, 1, 6, 17] {
            check(&ipv4(to, protocol.into(), &payload));
        }
    }

    #[test]
    fn no_damage_makes_it_panic(
        which in 0..6usize,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        length in any::<prop::sample::Index>(),
        mend in any::<bool>(),
    ) {
        let mut frame = good_frames().swap_remove(which);
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame.truncate(length.index(frame.len() + 1));
        // With the header's checksum mended, the damage gets further.
        if mend && frame.len() >= 34 {
            Ipv4Packet::new_unchecked(&mut frame[14..34]).set_header_len(20);
            Ipv4Packet::new_unchecked(&mut frame[14..34]).fill_checksum();
        }
        check(&frame);
    }
}

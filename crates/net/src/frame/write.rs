//! From decisions to packets. Each function appends to `out` a packet without its
//! Ethernet header, or for ARP what stands in its place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4DstUnreachable, Icmpv4Packet,
    Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol, IpRepr,
    Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

use super::{Echo, Packet};
use crate::address::{GATEWAY_ADDRESS, GATEWAY_ADDRESS_V6, GATEWAY_MAC};

/// Hops that the gateway's packets may take; the guest is the first. Neighbour discovery
/// demands 255.
const HOP_LIMIT: u8 = 64;
const NEIGHBOR_HOP_LIMIT: u8 = 255;

/// Bytes of a refused packet, behind its header, that its refusal repeats: the ports.
const QUOTED_BYTES: usize = 8;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// It was refused: "administratively prohibited".
    Prohibited,
    /// Nobody listens there.
    Port,
    /// There is no way to that host.
    Host,
}

/// The gateway's hardware address as that of `about`, told to `from` at `mac`.
pub fn arp_reply(from: Ipv4Addr, about: Ipv4Addr, mac: [u8; 6], out: &mut Vec<u8>) {
    let reply = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(GATEWAY_MAC),
        source_protocol_addr: about,
        target_hardware_addr: EthernetAddress(mac),
        target_protocol_addr: from,
    };
    let body = grow(out, reply.buffer_len());
    reply.emit(&mut ArpPacket::new_unchecked(body));
}

/// The same in IPv6.
pub fn neighbor_advertisement(from: Ipv6Addr, about: Ipv6Addr, out: &mut Vec<u8>) {
    let reply = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
        target_addr: about,
        lladdr: Some(EthernetAddress(GATEWAY_MAC).into()),
    });
    let header = Ipv6Repr {
        src_addr: about,
        dst_addr: from,
        next_header: IpProtocol::Icmpv6,
        payload_len: reply.buffer_len(),
        hop_limit: NEIGHBOR_HOP_LIMIT,
    };
    let body = packet(&header.into(), out);
    reply.emit(
        &about,
        &from,
        &mut Icmpv6Packet::new_unchecked(body),
        &ChecksumCapabilities::default(),
    );
}

/// The reset that ends a connection which does not exist (RFC 9293, 3.10.7.1), for one of
/// its segments; `None` for what is itself a reset or malformed.
pub fn reset(refused: &Packet<'_>, out: &mut Vec<u8>) -> Option<()> {
    let (guest, remote) = (
        IpAddress::from(refused.source),
        IpAddress::from(refused.destination),
    );
    let unchecked = ChecksumCapabilities::ignored();
    let segment = TcpPacket::new_checked(refused.bytes.get(refused.header_bytes()..)?).ok()?;
    let segment = TcpRepr::parse(&segment, &guest, &remote, &unchecked).ok()?;
    if segment.control == TcpControl::Rst {
        return None;
    }
    let (seq_number, ack_number) = match segment.ack_number {
        Some(acknowledged) => (acknowledged, None),
        None => (
            TcpSeqNumber(0),
            Some(segment.seq_number + segment.segment_len()),
        ),
    };
    let reset = TcpRepr {
        src_port: segment.dst_port,
        dst_port: segment.src_port,
        control: TcpControl::Rst,
        seq_number,
        ack_number,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let header = IpRepr::new(
        remote,
        guest,
        IpProtocol::Tcp,
        reset.buffer_len(),
        HOP_LIMIT,
    );
    let body = packet(&header, out);
    let checksums = ChecksumCapabilities::default();
    reset.emit(
        &mut TcpPacket::new_unchecked(body),
        &remote,
        &guest,
        &checksums,
    );
    Some(())
}

/// A SYN from `remote` to the guest, which answers for a connection that it has.
pub(crate) fn question(remote: SocketAddr, guest: SocketAddr, out: &mut Vec<u8>) -> Option<()> {
    let question = TcpRepr {
        src_port: remote.port(),
        dst_port: guest.port(),
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(0),
        ack_number: None,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let (from, to) = (IpAddress::from(remote.ip()), IpAddress::from(guest.ip()));
    let length = question.buffer_len();
    let header = IpRepr::new(from, to, IpProtocol::Tcp, length, HOP_LIMIT);
    let body = packet(&header, out);
    let checksums = ChecksumCapabilities::default();
    question.emit(&mut TcpPacket::new_unchecked(body), &from, &to, &checksums);
    Some(())
}

/// A datagram from `source` to `destination`, which are of one kind; `None` where it is
/// too long for a packet.
pub fn udp(
    source: SocketAddr,
    destination: SocketAddr,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    let ports = UdpRepr {
        src_port: source.port(),
        dst_port: destination.port(),
    };
    let length = ports.header_len() + data.len();
    let (from, to) = (
        IpAddress::from(source.ip()),
        IpAddress::from(destination.ip()),
    );
    let header = IpRepr::new(from, to, IpProtocol::Udp, length, HOP_LIMIT);
    if header.buffer_len() > crate::address::MTU {
        return None;
    }
    let body = packet(&header, out);
    ports.emit(
        &mut UdpPacket::new_unchecked(body),
        &from,
        &to,
        data.len(),
        |payload| payload.copy_from_slice(data),
        &ChecksumCapabilities::default(),
    );
    Some(())
}

/// The reply to a ping, from `source` to the guest's `destination`.
pub fn echo_reply(
    source: IpAddr,
    destination: IpAddr,
    echo: &Echo<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let Echo {
        identifier: ident,
        sequence: seq_no,
        data,
    } = *echo;
    match (source, destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let reply = Icmpv4Repr::EchoReply {
                ident,
                seq_no,
                data,
            };
            icmpv4(from, to, &reply, out)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let reply = Icmpv6Repr::EchoReply {
                ident,
                seq_no,
                data,
            };
            icmpv6(from, to, &reply, out)
        }
        _ => None,
    }
}

/// Tells the guest that `refused`, a packet of its own from its first byte on, did not
/// arrive; the end may be missing. The gateway says it, or, where somebody out there did,
/// that one.
pub fn unreachable(why: Unreachable, refused: &[u8], out: &mut Vec<u8>) -> Option<()> {
    match refused.first()? >> 4 {
        4 => {
            let header = Ipv4Packet::new_unchecked(refused);
            let behind = usize::from(header.header_len());
            if behind < 20 || refused.len() < behind {
                return None;
            }
            let message = Icmpv4Repr::DstUnreachable {
                reason: match why {
                    Unreachable::Prohibited => Icmpv4DstUnreachable::CommProhibited,
                    Unreachable::Port => Icmpv4DstUnreachable::PortUnreachable,
                    Unreachable::Host => Icmpv4DstUnreachable::HostUnreachable,
                },
                header: Ipv4Repr {
                    src_addr: header.src_addr(),
                    dst_addr: header.dst_addr(),
                    next_header: header.next_header(),
                    payload_len: refused.len() - behind,
                    hop_limit: header.hop_limit(),
                },
                data: quoted(refused, behind),
            };
            icmpv4(
                speaker_v4(why, header.dst_addr()),
                header.src_addr(),
                &message,
                out,
            )
        }
        6 => {
            const HEADER_BYTES: usize = 40;
            if refused.len() < HEADER_BYTES {
                return None;
            }
            let header = Ipv6Packet::new_unchecked(refused);
            let message = Icmpv6Repr::DstUnreachable {
                reason: match why {
                    Unreachable::Prohibited => Icmpv6DstUnreachable::AdminProhibit,
                    Unreachable::Port => Icmpv6DstUnreachable::PortUnreachable,
                    Unreachable::Host => Icmpv6DstUnreachable::AddrUnreachable,
                },
                header: Ipv6Repr {
                    src_addr: header.src_addr(),
                    dst_addr: header.dst_addr(),
                    next_header: header.next_header(),
                    payload_len: refused.len() - HEADER_BYTES,
                    hop_limit: header.hop_limit(),
                },
                data: quoted(refused, HEADER_BYTES),
            };
            icmpv6(
                speaker_v6(why, header.dst_addr()),
                header.src_addr(),
                &message,
                out,
            )
        }
        _ => None,
    }
}

fn quoted(refused: &[u8], from: usize) -> &[u8] {
    &refused[from..refused.len().min(from + QUOTED_BYTES)]
}

fn speaker_v4(why: Unreachable, there: Ipv4Addr) -> Ipv4Addr {
    if why == Unreachable::Port {
        there
    } else {
        GATEWAY_ADDRESS
    }
}

fn speaker_v6(why: Unreachable, there: Ipv6Addr) -> Ipv6Addr {
    if why == Unreachable::Port {
        there
    } else {
        GATEWAY_ADDRESS_V6
    }
}

/// The first bytes of a datagram that the guest sent once: what errors about it repeat.
pub(crate) fn sent_datagram(guest: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(48);
    // Empty, so it is never too long.
    let _ = udp(guest, remote, &[], &mut out);
    out
}

/// The first bytes of a ping that the guest sent once.
pub(crate) fn sent_ping(guest: IpAddr, remote: IpAddr, identifier: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(48);
    match (guest, remote) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ping = Icmpv4Repr::EchoRequest {
                ident: identifier,
                seq_no: 0,
                data: &[],
            };
            icmpv4(from, to, &ping, &mut out);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ping = Icmpv6Repr::EchoRequest {
                ident: identifier,
                seq_no: 0,
                data: &[],
            };
            icmpv6(from, to, &ping, &mut out);
        }
        _ => {}
    }
    out
}

fn icmpv4(from: Ipv4Addr, to: Ipv4Addr, message: &Icmpv4Repr<'_>, out: &mut Vec<u8>) -> Option<()> {
    let header = IpRepr::new(
        from.into(),
        to.into(),
        IpProtocol::Icmp,
        message.buffer_len(),
        HOP_LIMIT,
    );
    if header.buffer_len() > crate::address::MTU {
        return None;
    }
    let body = packet(&header, out);
    message.emit(
        &mut Icmpv4Packet::new_unchecked(body),
        &ChecksumCapabilities::default(),
    );
    Some(())
}

fn icmpv6(from: Ipv6Addr, to: Ipv6Addr, message: &Icmpv6Repr<'_>, out: &mut Vec<u8>) -> Option<()> {
    let header = IpRepr::new(
        from.into(),
        to.into(),
        IpProtocol::Icmpv6,
        message.buffer_len(),
        HOP_LIMIT,
    );
    if header.buffer_len() > crate::address::MTU {
        return None;
    }
    let body = packet(&header, out);
    message.emit(
        &from,
        &to,
        &mut Icmpv6Packet::new_unchecked(body),
        &ChecksumCapabilities::default(),
    );
    Some(())
}

/// Appends an IP header; returns where its payload goes.
fn packet<'out>(header: &IpRepr, out: &'out mut Vec<u8>) -> &'out mut [u8] {
    let body = grow(out, header.buffer_len());
    header.emit(&mut body[..], &ChecksumCapabilities::default());
    &mut body[header.header_len()..]
}

fn grow(out: &mut Vec<u8>, length: usize) -> &mut [u8] {
    let from = out.len();
    out.resize(from + length, 0);
    &mut out[from..]
}

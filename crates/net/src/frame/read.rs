//! From bytes to what the gateway decides by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet,
    NdiscRepr, TcpPacket, UdpPacket,
};

use crate::address::{
    FRAME_BYTES, GATEWAY_MAC, GUEST_ADDRESS, GUEST_ADDRESS_V6, is_guest, is_one_host,
};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Somebody asks for the hardware address of somebody else on the inside network. It is
    /// the gateway's for all: it refuses what is for nobody, where silence would take
    /// seconds.
    ArpRequest {
        /// Who asks.
        from: Ipv4Addr,
        /// About whom.
        about: Ipv4Addr,
    },
    /// The same in IPv6.
    NeighborSolicitation {
        /// Who asks.
        from: Ipv6Addr,
        /// About whom.
        about: Ipv6Addr,
    },
    /// A packet of the guest to one host.
    Ip(Packet<'a>),
}

/// An IP packet of the guest to one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// From the first byte of its header to its last.
    pub bytes: &'a [u8],
    /// The guest's address.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// What is in it.
    pub payload: Payload<'a>,
}

/// What is in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// A segment, whose options and data are still unread.
    Tcp(TcpHead),
    /// A datagram.
    Udp {
        /// The guest's port.
        source_port: u16,
        /// The other port.
        destination_port: u16,
        /// What it carries.
        data: &'a [u8],
    },
    /// A ping.
    Ping(Echo<'a>),
    /// A part of a packet. The first parts can be refused, to their sender's address.
    Fragment {
        /// Whether it is the first.
        first: bool,
    },
    /// ICMP of another kind, and protocols that do not pass.
    Other,
}

/// What the gateway decides by in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHead {
    /// The guest's port.
    pub source_port: u16,
    /// The other port.
    pub destination_port: u16,
    /// It opens a connection.
    pub opens: bool,
    /// It is a reset.
    pub reset: bool,
}

/// A ping or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Chosen by who pings.
    pub identifier: u16,
    /// Counted by who pings.
    pub sequence: u16,
    /// Repeated by who replies.
    pub data: &'a [u8],
}

/// Reads a frame; with it the sender's hardware address. `None` for what is malformed, is
/// not for the gateway to carry, or does not come from the guest's addresses.
pub fn read(frame: &[u8]) -> Option<([u8; 6], Frame<'_>)> {
    if frame.len() > FRAME_BYTES {
        return None;
    }
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let source = ethernet.src_addr();
    if !source.is_unicast() {
        return None;
    }
    let to_gateway = ethernet.dst_addr() == EthernetAddress(GATEWAY_MAC);
    let payload = &frame[EthernetFrame::<&[u8]>::header_len()..];
    let frame = match ethernet.ethertype() {
        EthernetProtocol::Arp if to_gateway || ethernet.dst_addr().is_broadcast() => {
            read_arp(payload)
        }
        EthernetProtocol::Ipv4 if to_gateway => read_ipv4(payload),
        EthernetProtocol::Ipv6 => read_ipv6(payload, to_gateway),
        _ => None,
    };
    Some((source.0, frame?))
}

fn read_arp(payload: &[u8]) -> Option<Frame<'_>> {
    let ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_protocol_addr: from,
        target_protocol_addr: about,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()?
    else {
        return None;
    };
    // Who asks about itself wants to know whether somebody else has its address.
    let other = about != from && about != GUEST_ADDRESS;
    other.then_some(Frame::ArpRequest { from, about })
}

fn read_ipv4(payload: &[u8]) -> Option<Frame<'_>> {
    let packet = Ipv4Packet::new_checked(payload).ok()?;
    let bytes = payload.get(..usize::from(packet.total_len()))?;
    let inner = bytes.get(usize::from(packet.header_len())..)?;
    let (source, destination) = (packet.src_addr().into(), packet.dst_addr().into());
    if packet.version() != 4 || !is_guest(source) || !is_one_host(destination) {
        return None;
    }
    let payload = if packet.more_frags() || packet.frag_offset() != 0 {
        Payload::Fragment {
            first: packet.frag_offset() == 0,
        }
    } else {
        match packet.next_header() {
            IpProtocol::Tcp => read_tcp(inner)?,
            IpProtocol::Udp => read_udp(inner)?,
            IpProtocol::Icmp => read_icmpv4(inner)?,
            _ => Payload::Other,
        }
    };
    Some(Frame::Ip(Packet {
        bytes,
        source,
        destination,
        payload,
    }))
}

fn read_ipv6(payload: &[u8], to_gateway: bool) -> Option<Frame<'_>> {
    let packet = Ipv6Packet::new_checked(payload).ok()?;
    let bytes = payload.get(..packet.total_len())?;
    let inner = bytes.get(packet.header_len()..)?;
    if packet.version() != 6 {
        return None;
    }
    if packet.next_header() == IpProtocol::Icmpv6
        && let Some(solicitation) = read_neighbor(packet.src_addr(), inner)
    {
        return Some(solicitation);
    }
    let (source, destination) = (packet.src_addr().into(), packet.dst_addr().into());
    if !to_gateway || !is_guest(source) || !is_one_host(destination) {
        return None;
    }
    let payload = match packet.next_header() {
        IpProtocol::Tcp => read_tcp(inner)?,
        IpProtocol::Udp => read_udp(inner)?,
        IpProtocol::Icmpv6 => read_icmpv6(inner)?,
        IpProtocol::Ipv6Frag => Payload::Fragment { first: true },
        _ => Payload::Other,
    };
    Some(Frame::Ip(Packet {
        bytes,
        source,
        destination,
        payload,
    }))
}

fn read_neighbor(from: Ipv6Addr, inner: &[u8]) -> Option<Frame<'_>> {
    let message = Icmpv6Packet::new_checked(inner).ok()?;
    if message.msg_type() != Icmpv6Message::NeighborSolicit {
        return None;
    }
    // Who has no address yet asks whether his own is taken, and it is not.
    if from.is_unspecified() || from.is_multicast() {
        return None;
    }
    match NdiscRepr::parse(&message).ok()? {
        NdiscRepr::NeighborSolicit {
            target_addr: about, ..
        } if about != from && about != GUEST_ADDRESS_V6 => {
            Some(Frame::NeighborSolicitation { from, about })
        }
        _ => None,
    }
}

fn read_tcp<'a>(inner: &'a [u8]) -> Option<Payload<'a>> {
    let segment = TcpPacket::new_checked(inner).ok()?;
    if segment.src_port() == 0 || segment.dst_port() == 0 {
        return None;
    }
    Some(Payload::Tcp(TcpHead {
        source_port: segment.src_port(),
        destination_port: segment.dst_port(),
        opens: segment.syn() && !segment.ack() && !segment.rst() && !segment.fin(),
        reset: segment.rst(),
    }))
}

fn read_udp(inner: &[u8]) -> Option<Payload<'_>> {
    const HEADER_BYTES: usize = 8;
    let datagram = UdpPacket::new_checked(inner).ok()?;
    if datagram.src_port() == 0 || datagram.dst_port() == 0 {
        return None;
    }
    Some(Payload::Udp {
        source_port: datagram.src_port(),
        destination_port: datagram.dst_port(),
        data: inner.get(HEADER_BYTES..usize::from(datagram.len()))?,
    })
}

fn read_icmpv4(inner: &[u8]) -> Option<Payload<'_>> {
    let message = Icmpv4Packet::new_checked(inner).ok()?;
    if message.msg_type() != Icmpv4Message::EchoRequest || message.msg_code() != 0 {
        return Some(Payload::Other);
    }
    Some(Payload::Ping(Echo {
        identifier: message.echo_ident(),
        sequence: message.echo_seq_no(),
        data: inner.get(message.header_len()..)?,
    }))
}

fn read_icmpv6(inner: &[u8]) -> Option<Payload<'_>> {
    let message = Icmpv6Packet::new_checked(inner).ok()?;
    if message.msg_type() != Icmpv6Message::EchoRequest || message.msg_code() != 0 {
        return Some(Payload::Other);
    }
    Some(Payload::Ping(Echo {
        identifier: message.echo_ident(),
        sequence: message.echo_seq_no(),
        data: inner.get(message.header_len()..)?,
    }))
}

impl Packet<'_> {
    /// Where what the guest sent begins behind the IP header, extension headers of IPv6
    /// counted as payload.
    pub(crate) fn header_bytes(&self) -> usize {
        const IPV6_HEADER_BYTES: usize = 40;
        match self.source {
            IpAddr::V4(_) => Ipv4Packet::new_unchecked(self.bytes).header_len().into(),
            IpAddr::V6(_) => IPV6_HEADER_BYTES,
        }
    }
}

//! What the gateway says to a frame.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol,
    Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

use crate::dns;

/// The guest's address, in a network of 24 bits.
pub const GUEST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// The address of the gateway and its name server.
pub const GATEWAY_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The gateway's hardware address, locally administered.
pub const GATEWAY_MAC: [u8; 6] = [0x52, 0x55, 0x0a, 0x00, 0x02, 0x02];

/// Longest frame: 1500 bytes behind an Ethernet header.
pub const FRAME_BYTES: usize = 1514;

const DNS_PORT: u16 = 53;

/// Hops that the gateway's packets may take; the guest is the first.
const HOP_LIMIT: u8 = 64;

/// Bytes of a refused packet, behind its header, that its refusal repeats.
const QUOTED_BYTES: usize = 8;

/// What a frame was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Silence,
    /// The gateway's hardware address.
    Arp,
    /// The reply to a ping of the gateway.
    Echo,
    /// A TCP reset.
    Reset,
    /// ICMP "administratively prohibited".
    Prohibited,
    /// A refused name query.
    NameRefused,
}

/// Decides what the gateway says to `frame` and writes it to `out`, whose former
/// contents are lost. `out` is empty exactly when the answer is [`Answer::Silence`],
/// and never longer than [`FRAME_BYTES`].
pub fn answer(frame: &[u8], out: &mut Vec<u8>) -> Answer {
    out.clear();
    if frame.len() > FRAME_BYTES {
        return Answer::Silence;
    }
    let answer = parse(frame).and_then(|(ethernet, payload)| match ethernet.ethertype {
        EthernetProtocol::Arp => answer_arp(&ethernet, payload, out),
        EthernetProtocol::Ipv4 => answer_ipv4(&ethernet, payload, out),
        _ => None,
    });
    answer.unwrap_or(Answer::Silence)
}

/// The gateway's parts of a frame; `None` for what is not addressed to it.
fn parse(frame: &[u8]) -> Option<(EthernetRepr, &[u8])> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let ethernet = EthernetRepr::parse(&frame).ok()?;
    let to_gateway = ethernet.dst_addr == EthernetAddress(GATEWAY_MAC);
    let to_all = ethernet.dst_addr.is_broadcast() && ethernet.ethertype == EthernetProtocol::Arp;
    if !(to_gateway || to_all) || !ethernet.src_addr.is_unicast() {
        return None;
    }
    Some((ethernet, frame.payload()))
}

fn answer_arp(ethernet: &EthernetRepr, payload: &[u8], out: &mut Vec<u8>) -> Option<Answer> {
    let ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_protocol_addr,
        target_protocol_addr: GATEWAY_ADDRESS,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()?
    else {
        return None;
    };
    let reply = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(GATEWAY_MAC),
        source_protocol_addr: GATEWAY_ADDRESS,
        target_hardware_addr: ethernet.src_addr,
        target_protocol_addr: source_protocol_addr,
    };
    let body = ethernet_reply(ethernet, reply.buffer_len(), out);
    reply.emit(&mut ArpPacket::new_unchecked(body));
    Some(Answer::Arp)
}

/// A packet that was parsed, and what is needed to answer it.
struct Packet<'a> {
    ethernet: &'a EthernetRepr,
    ip: Ipv4Repr,
    payload: &'a [u8],
}

fn answer_ipv4(ethernet: &EthernetRepr, payload: &[u8], out: &mut Vec<u8>) -> Option<Answer> {
    let parsed = Ipv4Packet::new_checked(payload).ok()?;
    let ip = Ipv4Repr::parse(&parsed, &ChecksumCapabilities::default()).ok()?;
    if ip.src_addr != GUEST_ADDRESS || parsed.more_frags() || parsed.frag_offset() != 0 {
        return None;
    }
    // Nobody answers what is sent to many (RFC 1122, 3.2.2).
    if !is_one_host(ip.dst_addr) {
        return None;
    }
    let packet = Packet {
        ethernet,
        ip,
        payload: parsed.payload(),
    };
    match ip.next_header {
        IpProtocol::Tcp => packet.answer_tcp(out),
        IpProtocol::Udp => packet.answer_udp(out),
        IpProtocol::Icmp => packet.answer_icmp(out),
        _ => None,
    }
}

fn is_one_host(address: Ipv4Addr) -> bool {
    /// The network's own broadcast address.
    const NETWORK_BROADCAST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 255);
    !(address.is_multicast()
        || address.is_broadcast()
        || address.is_unspecified()
        || address == NETWORK_BROADCAST)
}

impl Packet<'_> {
    fn addresses(&self) -> (IpAddress, IpAddress) {
        (self.ip.src_addr.into(), self.ip.dst_addr.into())
    }

    /// A segment of a connection that does not exist gets a reset (RFC 9293, 3.10.7.1).
    fn answer_tcp(&self, out: &mut Vec<u8>) -> Option<Answer> {
        let (guest, peer) = self.addresses();
        let checksums = ChecksumCapabilities::default();
        let segment = TcpPacket::new_checked(self.payload).ok()?;
        let segment = TcpRepr::parse(&segment, &guest, &peer, &checksums).ok()?;
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
        let body = self.reply(self.ip.dst_addr, IpProtocol::Tcp, reset.buffer_len(), out);
        reset.emit(
            &mut TcpPacket::new_unchecked(body),
            &peer,
            &guest,
            &checksums,
        );
        Some(Answer::Reset)
    }

    fn answer_udp(&self, out: &mut Vec<u8>) -> Option<Answer> {
        let (guest, peer) = self.addresses();
        let checksums = ChecksumCapabilities::default();
        let datagram = UdpPacket::new_checked(self.payload).ok()?;
        let ports = UdpRepr::parse(&datagram, &guest, &peer, &checksums).ok()?;
        if self.ip.dst_addr != GATEWAY_ADDRESS || ports.dst_port != DNS_PORT {
            return self.prohibit(out);
        }
        let refusal = dns::refuse(datagram.payload())?;
        let reply = UdpRepr {
            src_port: DNS_PORT,
            dst_port: ports.src_port,
        };
        let length = reply.header_len() + refusal.len();
        let body = self.reply(GATEWAY_ADDRESS, IpProtocol::Udp, length, out);
        reply.emit(
            &mut UdpPacket::new_unchecked(body),
            &peer,
            &guest,
            refusal.len(),
            |payload| payload.copy_from_slice(&refusal),
            &checksums,
        );
        Some(Answer::NameRefused)
    }

    /// Only requests are answered: an error about an error would never end.
    fn answer_icmp(&self, out: &mut Vec<u8>) -> Option<Answer> {
        let message = Icmpv4Packet::new_checked(self.payload).ok()?;
        let message = Icmpv4Repr::parse(&message, &ChecksumCapabilities::default()).ok()?;
        let Icmpv4Repr::EchoRequest {
            ident,
            seq_no,
            data,
        } = message
        else {
            return None;
        };
        if self.ip.dst_addr != GATEWAY_ADDRESS {
            return self.prohibit(out);
        }
        self.send_icmp(
            &Icmpv4Repr::EchoReply {
                ident,
                seq_no,
                data,
            },
            out,
        );
        Some(Answer::Echo)
    }

    fn prohibit(&self, out: &mut Vec<u8>) -> Option<Answer> {
        let refusal = Icmpv4Repr::DstUnreachable {
            reason: Icmpv4DstUnreachable::CommProhibited,
            header: self.ip,
            data: &self.payload[..self.payload.len().min(QUOTED_BYTES)],
        };
        self.send_icmp(&refusal, out);
        Some(Answer::Prohibited)
    }

    fn send_icmp(&self, message: &Icmpv4Repr<'_>, out: &mut Vec<u8>) {
        let body = self.reply(GATEWAY_ADDRESS, IpProtocol::Icmp, message.buffer_len(), out);
        message.emit(
            &mut Icmpv4Packet::new_unchecked(body),
            &ChecksumCapabilities::default(),
        );
    }

    /// Writes the headers of a packet to the guest; returns where its payload goes.
    fn reply<'out>(
        &self,
        source: Ipv4Addr,
        protocol: IpProtocol,
        payload_len: usize,
        out: &'out mut Vec<u8>,
    ) -> &'out mut [u8] {
        let header = Ipv4Repr {
            src_addr: source,
            dst_addr: self.ip.src_addr,
            next_header: protocol,
            payload_len,
            hop_limit: HOP_LIMIT,
        };
        let body = ethernet_reply(self.ethernet, header.buffer_len() + payload_len, out);
        header.emit(
            &mut Ipv4Packet::new_unchecked(&mut *body),
            &ChecksumCapabilities::default(),
        );
        &mut body[header.buffer_len()..]
    }
}

/// Writes the Ethernet header of an answer; returns where its payload goes.
fn ethernet_reply<'out>(
    request: &EthernetRepr,
    payload_len: usize,
    out: &'out mut Vec<u8>,
) -> &'out mut [u8] {
    let header = EthernetRepr {
        src_addr: EthernetAddress(GATEWAY_MAC),
        dst_addr: request.src_addr,
        ethertype: request.ethertype,
    };
    out.resize(header.buffer_len() + payload_len, 0);
    header.emit(&mut EthernetFrame::new_unchecked(&mut out[..]));
    &mut out[header.buffer_len()..]
}

#[cfg(test)]
mod tests;

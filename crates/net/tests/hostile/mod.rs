//! What must hold of the readers for any bytes at all. Used by the stable tests and by the
//! fuzz targets.
#![allow(dead_code, reason = "each fuzz target uses one")]

use std::net::IpAddr;

use pando_net::dns::{self, Parsed};
use pando_net::frame::{self, Echo, Frame, Payload, Unreachable};
use pando_net::inspect::{Inspector, http, tls};
use pando_net::policy::Claim;
use pando_types::EgressRule;

/// A frame is read without a panic, and what is answered to it is a packet to the guest.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((mac, frame)) = frame::read(bytes) else {
        return;
    };
    let mut out = Vec::new();
    match frame {
        Frame::ArpRequest { from, about } => frame::arp_reply(from, about, mac, &mut out),
        Frame::NeighborSolicitation { from, about } => {
            frame::neighbor_advertisement(from, about, &mut out);
        }
        Frame::Ip(packet) => {
            assert!(packet.bytes.len() <= bytes.len());
            frame::reset(&packet, &mut out);
            for why in [
                Unreachable::Prohibited,
                Unreachable::Port,
                Unreachable::Host,
            ] {
                let from = out.len();
                frame::unreachable(why, packet.bytes, &mut out).unwrap();
                assert_eq!(out[from] >> 4, if packet.source.is_ipv4() { 4 } else { 6 });
            }
            if let Payload::Ping(echo) = packet.payload {
                let _ = echo_reply(packet.destination, packet.source, &echo, &mut out);
            }
        }
    }
}

fn echo_reply(from: IpAddr, to: IpAddr, echo: &Echo<'_>, out: &mut Vec<u8>) -> Option<()> {
    frame::echo_reply(from, to, echo, out)
}

/// What is answered to a query can be read, has its id and is a response.
pub(crate) fn dns(bytes: &[u8]) {
    match dns::parse_query(bytes) {
        Some(Parsed::Refused(answer)) => assert_eq!(answer[..2], bytes[..2]),
        Some(Parsed::Question(question)) => {
            assert!(question.name().len() <= 1100);
            let upstream = question.to_upstream(0x1234).unwrap();
            let again = dns::parse_query(&upstream);
            let Some(Parsed::Question(again)) = again else {
                panic!("our own query is none: {upstream:?}");
            };
            assert_eq!(again.name(), question.name());
        }
        None => {}
    }
}

/// A resolver's answer is passed on only if it answers, never longer than asked for, and
/// without the addresses that are kept out.
pub(crate) fn answer(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
    let (query, answer) = rest.split_at(length);
    let Some(Parsed::Question(question)) = dns::parse_query(query) else {
        return;
    };
    let Some(id) = answer.first_chunk() else {
        return;
    };
    let id = u16::from_be_bytes(*id);
    let Some(mut message) = question.read_answer(id, answer) else {
        return;
    };
    let inside = |address: IpAddr| matches!(address, IpAddr::V4(v4) if v4.is_private());
    let filtered = question.filter(&mut message, |address| {
        inside(address).then(|| "private".to_owned())
    });
    assert!(!filtered.addresses.iter().copied().any(inside));
    assert_eq!(filtered.names[0], question.name());
    if let Some(written) = question.write_answer(message, Some(1400)) {
        assert!(written.len() <= 1400);
    }
}

/// However the bytes of a connection are cut, the same go out, before the same end.
fn inspected(bytes: &[u8], port: u16, piece: usize) -> (Vec<u8>, Vec<String>, Option<String>) {
    let mut inspector = Inspector::new(port);
    let (mut out, mut claims) = (Vec::new(), Vec::new());
    let mut left = bytes;
    while !left.is_empty() {
        let count = left.len().min(piece).min(inspector.room());
        inspector.push(&left[..count]);
        left = &left[count..];
        let ended = inspector.advance(&mut |claim| {
            if let Claim::Named(name) = claim {
                claims.push(name.to_owned());
            }
            match claim {
                Claim::Named(name) if name.ends_with("b.org") => Err("denied".to_owned()),
                _ => Ok(()),
            }
        });
        if let Err(why) = ended {
            return (out, claims, Some(why));
        }
        let ready = inspector.ready().len();
        out.extend_from_slice(inspector.ready());
        inspector.sent(ready);
        if count == 0 && ready == 0 {
            // It waits for the server's answer to an upgrade.
            assert!(inspector.observes());
            break;
        }
    }
    (out, claims, None)
}

fn inspect(bytes: &[u8]) {
    for port in [80, 443, 8080] {
        let (whole, claims, ended) = inspected(bytes, port, usize::MAX);
        assert!(bytes.starts_with(&whole));
        let (pieces, piece_claims, piece_ended) = inspected(bytes, port, 1);
        assert!(bytes.starts_with(&pieces));
        // In one piece more may be held back when a later part of it is refused.
        assert!(pieces.starts_with(&whole) || pieces.len() <= whole.len());
        assert_eq!((&claims, &ended), (&piece_claims, &piece_ended));
    }
}

/// A hello is found or not, and no longer than its bytes.
pub(crate) fn tls(bytes: &[u8]) {
    if let tls::Tls::Hello(hello) = tls::client_hello(bytes) {
        assert!(hello.bytes <= bytes.len());
        // The same from its own bytes alone, and not before.
        assert_eq!(
            tls::client_hello(&bytes[..hello.bytes]),
            tls::Tls::Hello(hello.clone())
        );
        assert_eq!(tls::client_hello(&bytes[..hello.bytes - 1]), tls::Tls::More);
    }
    tls::record_after_hello(bytes, true);
    inspect(bytes);
}

/// Heads, chunks and trailers are no longer than their bytes.
pub(crate) fn http(bytes: &[u8]) {
    if let Ok(Some(head)) = http::request_head(bytes) {
        assert!(head.bytes <= bytes.len() && head.bytes <= http::HEAD_BYTES);
        assert_eq!(http::request_head(&bytes[..head.bytes]), Ok(Some(head)));
        // What is a request to the one is one to the other.
        assert!(matches!(
            http::look(bytes),
            http::Look::Request | http::Look::Http2
        ));
    }
    if let Ok(http::Chunk::Data { line, .. } | http::Chunk::Last { line }) = http::chunk(bytes) {
        assert!(line <= bytes.len());
    }
    if let Ok(Some(count)) = http::trailers(bytes) {
        assert!(count <= bytes.len());
    }
    inspect(bytes);
}

/// An upgrade is through after 101 alone.
pub(crate) fn response(bytes: &[u8]) {
    let mut inspector = Inspector::new(80);
    inspector.push(b"GET / HTTP/1.1\r\nHost: a.org\r\nUpgrade: websocket\r\n\r\nmore");
    inspector.advance(&mut |_| Ok(())).unwrap();
    let ready = inspector.ready().len();
    inspector.sent(ready);
    let ended = inspector.observe(bytes);
    if ended.is_ok() && inspector.advance(&mut |_| Ok(())).is_ok() && !inspector.ready().is_empty()
    {
        let text = String::from_utf8_lossy(bytes);
        assert!(text.contains("101"), "{text}");
    }
}

/// Other bytes than ours are an empty map.
pub(crate) fn names(bytes: &[u8]) {
    let written = dns::rewrite_names(bytes);
    assert_eq!(dns::rewrite_names(&written).len(), written.len());
}

/// A rule's text is read back as the same.
pub(crate) fn rule(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<EgressRule>() {
        Ok(rule) => assert_eq!(rule.to_string().parse::<EgressRule>(), Ok(rule)),
        Err(error) => assert!(error.to_string().len() < 1000),
    }
}

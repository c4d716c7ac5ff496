//! Connections of before a spawn: a guest that goes on from a snapshot believes in them,
//! and this gateway has never heard of them.
//!
//! One that the guest writes to is reset by that. One that it waits at would be silent for
//! ever, so the guest is asked: it is sent a SYN, which it answers, for a connection that it
//! has, with the number that it expects next (a challenge ACK, RFC 5961, 4.2); the segment
//! is of no connection of the gateway's, and the reset that this earns fits exactly.
//!
//! ```text
//! "PDNB" | version 1 | the guest's hardware address, 6 bytes | count u16 | ends
//! ends: 4 or 6 | guest address | port u16 | remote address | port u16
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::frame;
use crate::shared::{Ends, Shared};

const MAGIC: &[u8; 4] = b"PDNB";
const VERSION: u8 = 1;

/// Connections that are noted; as many as a gateway has at once by default.
const NOTED: usize = 1024;

/// When they are asked, after one another. A guest answers for each connection at most twice
/// a second; the card drops what it has no room for.
const ASKED_AFTER: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(250),
    Duration::from_millis(550),
];

/// Segments between which the guest gets time to read.
const SEGMENTS_PER_TURN: usize = 32;

/// What a snapshot says of its connections.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) mac: [u8; 6],
    pub(crate) connections: Vec<Ends>,
}

impl Before {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let noted = &self.connections[..self.connections.len().min(NOTED)];
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend(self.mac);
        // `NOTED` fits.
        bytes.extend(u16::try_from(noted.len()).unwrap_or(0).to_be_bytes());
        for ends in noted {
            bytes.push(if ends.guest.is_ipv4() { 4 } else { 6 });
            write_end(&mut bytes, ends.guest);
            write_end(&mut bytes, ends.remote);
        }
        bytes
    }

    /// Reads what [`Before::to_bytes`] wrote; `None` where these are other bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?;
        let (mac, rest) = rest.split_first_chunk()?;
        let (count, mut rest) = rest.split_first_chunk()?;
        let count = usize::from(u16::from_be_bytes(*count));
        if count > NOTED {
            return None;
        }
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            let (kind, behind) = rest.split_first()?;
            let (guest, behind) = read_end(*kind, behind)?;
            let (remote, behind) = read_end(*kind, behind)?;
            connections.push(Ends { guest, remote });
            rest = behind;
        }
        rest.is_empty().then_some(Self {
            mac: *mac,
            connections,
        })
    }

    /// Has the guest give up what it believes in, unless it has begun it anew meanwhile.
    pub(crate) async fn end(self, shared: Arc<Shared>) {
        let mut waited = Duration::ZERO;
        for after in ASKED_AFTER {
            tokio::time::sleep(after.saturating_sub(waited)).await;
            waited = after;
            for some in self.connections.chunks(SEGMENTS_PER_TURN) {
                for ends in some {
                    if !shared.connections().contains_key(ends) {
                        shared
                            .card
                            .send(|out| frame::question(ends.remote, ends.guest, out));
                    }
                }
                shared.card.writable().await;
            }
        }
    }
}

fn write_end(bytes: &mut Vec<u8>, end: SocketAddr) {
    match end.ip() {
        IpAddr::V4(address) => bytes.extend(address.octets()),
        IpAddr::V6(address) => bytes.extend(address.octets()),
    }
    bytes.extend(end.port().to_be_bytes());
}

fn read_end(kind: u8, bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (address, rest): (IpAddr, _) = match kind {
        4 => {
            let (octets, rest) = bytes.split_first_chunk::<4>()?;
            ((*octets).into(), rest)
        }
        6 => {
            let (octets, rest) = bytes.split_first_chunk::<16>()?;
            ((*octets).into(), rest)
        }
        _ => return None,
    };
    let (port, rest) = rest.split_first_chunk()?;
    Some((SocketAddr::new(address, u16::from_be_bytes(*port)), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Before {
        let ends = |guest: &str, remote: &str| Ends {
            guest: guest.parse().unwrap(),
            remote: remote.parse().unwrap(),
        };
        Before {
            mac: [0x52, 0x54, 0, 1, 2, 3],
            connections: vec![
                ends("10.0.2.15:40000", "198.51.100.1:443"),
                ends("[fd70:616e:646f::15]:40001", "[2001:db8::1]:80"),
            ],
        }
    }

    #[test]
    fn it_survives_as_bytes() {
        let bytes = sample().to_bytes();
        assert_eq!(Before::from_bytes(&bytes), Some(sample()));
        assert_eq!(Before::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Before::from_bytes(b""), None);
    }

    proptest! {
        #[test]
        fn other_bytes_are_no_connections(garbage in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = b"PDNB\x01\0\0\0\0\0\0".to_vec();
            bytes.extend(&garbage);
            if let Some(read) = Before::from_bytes(&bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
            }
            prop_assert_eq!(Before::from_bytes(&garbage), None);
        }
    }
}

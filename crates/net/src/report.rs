//! What can be said about a sandbox's network, for people and for events.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pando_types::EgressProtocol;
use tokio::sync::watch;

/// What something was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// A connection.
    Tcp,
    /// Datagrams between two ends.
    Udp,
    /// Pings.
    Icmp,
    /// A name, asked for at the gateway.
    Dns,
}

impl From<EgressProtocol> for Protocol {
    fn from(protocol: EgressProtocol) -> Self {
        match protocol {
            EgressProtocol::Tcp => Self::Tcp,
            EgressProtocol::Udp => Self::Udp,
            EgressProtocol::Icmp => Self::Icmp,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Dns => "dns",
        })
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// The remote end has not answered.
    Connecting,
    /// Both ways are open.
    Open,
    /// One end has said all it had to say.
    HalfClosed,
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Connecting => "connecting",
            Self::Open => "open",
            Self::HalfClosed => "half-closed",
        })
    }
}

/// A connection or flow that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    /// What it is.
    pub protocol: Protocol,
    /// The guest's end; the port of pings is their identifier.
    pub guest: SocketAddr,
    /// The other end; pings have port 0.
    pub remote: SocketAddr,
    /// The name it is for: by TLS or HTTP, else as its address was asked for.
    pub name: Option<String>,
    /// How far it is.
    pub state: ConnectionState,
    /// Bytes from the guest.
    pub sent_bytes: u64,
    /// Bytes to the guest.
    pub received_bytes: u64,
    /// Since it began.
    pub age_ms: u64,
}

/// Sums since the gateway began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkTotals {
    /// Connections and flows that were let through.
    pub connections: u64,
    /// Bytes of them from the guest.
    pub sent_bytes: u64,
    /// Bytes of them to the guest.
    pub received_bytes: u64,
    /// Names that were asked for.
    pub names: u64,
    /// Connections, flows, pings and names that were refused.
    pub refused: u64,
    /// Frames that the guest sent.
    pub frames: u64,
    /// Datagrams and answers that the guest had no room for.
    pub unsent: u64,
}

/// Something that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its number; they have no gaps, but the oldest are forgotten.
    pub sequence: u64,
    /// When first, since 1970.
    pub at_ms: u64,
    /// What it was.
    pub protocol: Protocol,
    /// Where to; for a name, the name server's address or, where the name led to a
    /// protected address, that one.
    pub destination: IpAddr,
    /// Its port; pings have port 0.
    pub port: u16,
    /// Its name, if one is known.
    pub name: Option<String>,
    /// Why: a rule's text, `default deny`, `protected range 10.0.0.0/8`, `no SNI`, a limit.
    pub rule: String,
    /// How often, within ten seconds.
    pub count: u64,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkReport {
    /// What lives, oldest first.
    pub connections: Vec<ConnectionReport>,
    /// Sums.
    pub totals: NetworkTotals,
    /// The last refusals, oldest first.
    pub refusals: Vec<Refusal>,
}

/// Refusals that are remembered. A reader that comes once a second sees each, unless a
/// guest knocks on very many doors.
const REFUSALS_KEPT: usize = 128;

/// Repeats within this are one refusal: programs try again.
const FOLDED_WITHIN: Duration = Duration::from_secs(10);

/// What a refusal is about.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) protocol: Protocol,
    pub(crate) destination: SocketAddr,
    pub(crate) name: Option<String>,
    pub(crate) rule: String,
}

/// The last refusals.
#[derive(Debug)]
pub(crate) struct Refusals {
    ring: Mutex<Ring>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    kept: VecDeque<Refusal>,
    sequence: u64,
    total: u64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            newest: watch::Sender::new(0),
        }
    }
}

impl Refusals {
    pub(crate) fn add(&self, refused: Refused) {
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        if let Some(sequence) = self.ring().add(refused, at) {
            self.newest.send_replace(sequence);
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// How many there were, and the last of them.
    pub(crate) fn list(&self) -> (u64, Vec<Refusal>) {
        let ring = self.ring();
        (ring.total, ring.kept.iter().cloned().collect())
    }

    fn ring(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// The new refusal's number, unless it is a repeat.
    fn add(&mut self, refused: Refused, at: Duration) -> Option<u64> {
        self.total += 1;
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let window_ms = u64::try_from(FOLDED_WITHIN.as_millis()).unwrap_or(u64::MAX);
        let repeated = self.kept.iter_mut().rev().find(|known| {
            at_ms.saturating_sub(known.at_ms) < window_ms
                && known.protocol == refused.protocol
                && known.destination == refused.destination.ip()
                && known.port == refused.destination.port()
                && known.name == refused.name
                && known.rule == refused.rule
        });
        if let Some(known) = repeated {
            known.count += 1;
            return None;
        }
        if self.kept.len() == REFUSALS_KEPT {
            self.kept.pop_front();
        }
        self.sequence += 1;
        self.kept.push_back(Refusal {
            sequence: self.sequence,
            at_ms,
            protocol: refused.protocol,
            destination: refused.destination.ip(),
            port: refused.destination.port(),
            name: refused.name,
            rule: refused.rule,
            count: 1,
        });
        Some(self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(port: u16) -> Refused {
        Refused {
            protocol: Protocol::Tcp,
            destination: ([1, 2, 3, 4], port).into(),
            name: None,
            rule: "default deny".into(),
        }
    }

    #[test]
    fn repeats_within_ten_seconds_are_one() {
        let mut ring = Ring::default();
        assert_eq!(ring.add(refused(1), Duration::from_secs(100)), Some(1));
        assert_eq!(ring.add(refused(2), Duration::from_secs(101)), Some(2));
        assert_eq!(ring.add(refused(1), Duration::from_secs(109)), None);
        assert_eq!(ring.add(refused(1), Duration::from_secs(110)), Some(3));
        let counts: Vec<u64> = ring.kept.iter().map(|kept| kept.count).collect();
        assert_eq!((counts, ring.total), (vec![2, 1, 1], 4));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let refusals = Refusals::default();
        let newest = refusals.subscribe();
        for port in 1..=200 {
            refusals.add(refused(port));
        }
        let (total, kept) = refusals.list();
        assert_eq!((total, kept.len()), (200, REFUSALS_KEPT));
        assert_eq!((kept[0].sequence, *newest.borrow()), (73, 200));
    }
}

//! Addresses that no rule opens by accident.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pando_types::{EgressAction, EgressHost, EgressPolicy, EgressRule};

use super::Target;

/// A range that stands before all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedRange {
    address: IpAddr,
    prefix: u8,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> ProtectedRange {
    ProtectedRange {
        address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        prefix,
    }
}

const fn v6(head: [u16; 6], tail: [u16; 2], prefix: u8) -> ProtectedRange {
    let [a, b, c, d, e, f] = head;
    ProtectedRange {
        address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, tail[0], tail[1])),
        prefix,
    }
}

/// IPv4 in IPv6 as sockets write it. No rule can name such an address.
const MAPPED: ProtectedRange = v6([0, 0, 0, 0, 0, 0xffff], [0, 0], 96);

/// IPv4 behind a NAT64 (RFC 6052).
const NAT64: ProtectedRange = v6([0x64, 0xff9b, 0, 0, 0, 0], [0, 0], 96);

/// IPv4 behind 6to4 (RFC 3056).
const SIX_TO_FOUR: ProtectedRange = v6([0x2002, 0, 0, 0, 0, 0], [0, 0], 16);

const RANGES: [ProtectedRange; 26] = [
    // "This host" (RFC 1122): Linux connects 0.0.0.0 to itself.
    v4(0, 0, 0, 0, 8),
    v4(127, 0, 0, 0, 8),
    // Private networks (RFC 1918) and those of carriers (RFC 6598).
    v4(10, 0, 0, 0, 8),
    v4(172, 16, 0, 0, 12),
    v4(192, 168, 0, 0, 16),
    v4(100, 64, 0, 0, 10),
    // Link-local, and with it the metadata of most clouds.
    v4(169, 254, 0, 0, 16),
    // Protocol assignments (RFC 6890); one cloud has its metadata here.
    v4(192, 0, 0, 0, 24),
    // The host agent of a cloud, at a public address.
    v4(168, 63, 129, 16, 32),
    // Multicast, reserved, broadcast.
    v4(224, 0, 0, 0, 4),
    v4(240, 0, 0, 0, 4),
    // Unspecified, loopback and the IPv4-compatible addresses of old (RFC 4291).
    v6([0; 6], [0, 0], 96),
    MAPPED,
    // IPv4-translated (RFC 2765).
    v6([0, 0, 0, 0, 0xffff, 0], [0, 0], 96),
    NAT64,
    // NAT64 of a site (RFC 8215).
    v6([0x64, 0xff9b, 1, 0, 0, 0], [0, 0], 48),
    // Discarded (RFC 6666).
    v6([0x100, 0, 0, 0, 0, 0], [0, 0], 64),
    // Teredo (RFC 4380), which carries IPv4 too.
    v6([0x2001, 0, 0, 0, 0, 0], [0, 0], 32),
    SIX_TO_FOUR,
    // Unique local, with one cloud's metadata and our own inside network.
    v6([0xfc00, 0, 0, 0, 0, 0], [0, 0], 7),
    v6([0xfd00, 0xec2, 0, 0, 0, 0], [0, 0x254], 128),
    v6([0xfe80, 0, 0, 0, 0, 0], [0, 0], 10),
    // Site-local of old.
    v6([0xfec0, 0, 0, 0, 0, 0], [0, 0], 10),
    v6([0xff00, 0, 0, 0, 0, 0], [0, 0], 8),
    // Segment routing (RFC 9602): routers inside one operator's network.
    v6([0x5f00, 0, 0, 0, 0, 0], [0, 0], 16),
    v4(255, 255, 255, 255, 32),
];

impl ProtectedRange {
    fn network(self) -> EgressHost {
        EgressHost::Network {
            address: self.address,
            prefix: self.prefix,
        }
    }

    fn contains(self, address: IpAddr) -> bool {
        self.network().matches_address(address)
    }

    /// Whether `rule` names an address or network inside, no wider.
    fn is_named_by(self, rule: &EgressRule) -> bool {
        match rule.entry.host {
            EgressHost::Network { address, prefix } => {
                prefix >= self.prefix && self.contains(address)
            }
            EgressHost::Name(_) | EgressHost::Wildcard(_) => false,
        }
    }

    fn single(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Self { address, prefix }
    }
}

impl fmt::Display for ProtectedRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

/// The IPv4 address that a packet to `address` may end at.
fn embedded(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(v6) = address else {
        return None;
    };
    let octets = v6.octets();
    let from = if MAPPED.contains(address) || NAT64.contains(address) {
        12
    } else if SIX_TO_FOUR.contains(address) {
        2
    } else {
        return None;
    };
    let [a, b, c, d] = [
        octets[from],
        octets[from + 1],
        octets[from + 2],
        octets[from + 3],
    ];
    Some(Ipv4Addr::new(a, b, c, d).into())
}

/// The first protected range around the target that no rule opens.
///
/// Every range around it must be opened, by an allow rule for the target that names an
/// address or network inside that range: so the host's own address in a private network
/// is opened by itself alone.
pub(super) fn closed(policy: &EgressPolicy, target: &Target) -> Option<ProtectedRange> {
    let own = target.own.then(|| ProtectedRange::single(target.address));
    closed_at(policy, target, target.address, own).or_else(|| {
        let inner = embedded(target.address)?;
        closed_at(policy, target, inner, None)
    })
}

fn closed_at(
    policy: &EgressPolicy,
    target: &Target,
    address: IpAddr,
    own: Option<ProtectedRange>,
) -> Option<ProtectedRange> {
    let around = RANGES.iter().filter(|range| range.contains(address));
    let is_open = |range: &ProtectedRange| {
        policy.rules.iter().any(|rule| {
            rule.action == EgressAction::Allow
                && range.is_named_by(rule)
                && rule.entry.host.matches_address(address)
                && target.is_within(rule)
        })
    };
    own.iter()
        .chain(around)
        .copied()
        .find(|range| !is_open(range))
}

//! What a sandbox may reach: pure decisions, no I/O.
//!
//! ```text
//! protected ranges ─► rules, the first that matches ─► default
//! ```
//!
//! A rule with an address decides at once. One with a name needs two facts that agree:
//! the address was given out for a matching name by the gateway's own name server, and
//! the connection's TLS or HTTP names a match too. The second is known only once bytes
//! flow, so a connection is decided twice: before it is dialled ([`Claim::Unknown`]) and,
//! where the answer was [`Verdict::Inspect`], when its name is known.
//!
//! What this cannot see: other names behind an allowed name's server (domain fronting,
//! HTTP/2 coalescing), what strangers do below a wildcard, names inside encrypted DNS
//! where that is allowed. A denied name is refused where it is named; a host that many
//! addresses lead to is kept out by denying everything and allowing some.

mod protected;

use std::net::IpAddr;
use std::sync::Arc;

use pando_types::{EgressAction, EgressHost, EgressPolicy, EgressProtocol, EgressRule};

pub use protected::ProtectedRange;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
const DNS_PORT: u16 = 53;

/// Where something is going.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The address that would be dialled.
    pub address: IpAddr,
    /// The port; pings have none.
    pub port: Option<u16>,
    /// How; `None` for a name's address, which is for any.
    pub protocol: Option<EgressProtocol>,
    /// Whether the address is the host's own.
    pub own: bool,
}

/// What a connection said about whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// Nothing yet.
    Unknown,
    /// A TLS or HTTP name: lower case, no dot at the end.
    Named(&'a str),
    /// It should have named somebody and did not; the words for it.
    Nameless(&'static str),
    /// Neither TLS nor HTTP, and nothing that should be.
    Opaque,
}

/// What is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes through.
    Allow,
    /// It depends on the name: dial, and let nothing out before it is known.
    Inspect,
    /// It is refused; by which rule.
    Deny(String),
}

impl Target {
    /// Whether the rule's port and protocol are the target's, or open.
    fn is_within(&self, rule: &EgressRule) -> bool {
        let Some(protocol) = self.protocol else {
            return true;
        };
        let port = rule.entry.port.is_none() || rule.entry.port == self.port;
        let same = rule.entry.protocol.is_none_or(|own| own == protocol);
        port && same
    }

    /// What a name cannot be seen in, and is refused where rules go by names.
    fn blind(&self, rule: &EgressRule) -> Option<&'static str> {
        match (self.port, self.protocol) {
            (Some(HTTPS_PORT), Some(EgressProtocol::Udp))
                if rule.entry.port.is_none_or(|port| port == HTTPS_PORT) =>
            {
                Some("UDP/443 under domain rules")
            }
            (Some(DNS_PORT), Some(EgressProtocol::Udp | EgressProtocol::Tcp)) => {
                Some("another name server under domain rules")
            }
            _ => None,
        }
    }
}

/// Decides about a connection, flow or ping. `names` are those under which the gateway
/// gave out the address.
pub fn decide(
    policy: &EgressPolicy,
    target: &Target,
    names: &[Arc<str>],
    claim: Claim<'_>,
) -> Verdict {
    if let Some(range) = protected::closed(policy, target) {
        return Verdict::Deny(format!("protected range {range}"));
    }
    let mut walk = Walk::default();
    for rule in &policy.rules {
        let ended = match rule.entry.host {
            EgressHost::Network { .. } => (target.is_within(rule)
                && rule.entry.host.matches_address(target.address))
            .then(|| verdict(rule)),
            EgressHost::Name(_) | EgressHost::Wildcard(_) => {
                walk.domain(rule, target, names, claim)
            }
        };
        if let Some(verdict) = ended {
            return walk.end(verdict);
        }
    }
    walk.end(match policy.default {
        EgressAction::Allow => Verdict::Allow,
        EgressAction::Deny => Verdict::Deny("default deny".into()),
    })
}

/// What domain rules on the way to the end left open.
#[derive(Default)]
struct Walk {
    /// Some rule goes by the name.
    name_matters: bool,
    /// Some name would let it through.
    could_allow: bool,
    /// A rule would have allowed it if it had named somebody.
    missed: Option<&'static str>,
}

impl Walk {
    fn domain(
        &mut self,
        rule: &EgressRule,
        target: &Target,
        names: &[Arc<str>],
        claim: Claim<'_>,
    ) -> Option<Verdict> {
        if let Some(why) = target.blind(rule) {
            return Some(Verdict::Deny(why.into()));
        }
        if !target.is_within(rule) {
            return None;
        }
        let host = &rule.entry.host;
        let by_address = names.iter().any(|name| host.matches_name(name));
        if target.protocol != Some(EgressProtocol::Tcp) {
            return by_address.then(|| verdict(rule));
        }
        let allows = rule.action == EgressAction::Allow;
        let matches = match claim {
            Claim::Unknown => {
                self.name_matters |= by_address || !allows;
                self.could_allow |= by_address && allows;
                false
            }
            Claim::Named(name) if allows => by_address && host.matches_name(name),
            Claim::Named(name) => host.matches_name(name),
            Claim::Nameless(what) if allows => {
                if by_address {
                    self.missed.get_or_insert(what);
                }
                false
            }
            Claim::Opaque if allows => {
                by_address && !matches!(target.port, Some(HTTP_PORT | HTTPS_PORT))
            }
            Claim::Nameless(_) | Claim::Opaque => by_address,
        };
        matches.then(|| verdict(rule))
    }

    fn end(self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Allow if self.name_matters => Verdict::Inspect,
            Verdict::Deny(_) if self.could_allow => Verdict::Inspect,
            Verdict::Deny(rule) => Verdict::Deny(match self.missed {
                Some(missed) => missed.to_owned(),
                None => rule,
            }),
            other => other,
        }
    }
}

fn verdict(rule: &EgressRule) -> Verdict {
    match rule.action {
        EgressAction::Allow => Verdict::Allow,
        EgressAction::Deny => Verdict::Deny(rule.to_string()),
    }
}

/// Whether a name may be asked for; otherwise by which rule not. Ports and protocols of
/// rules do not count here, since a name is resolved before either is known.
///
/// # Errors
/// The rule's text.
pub fn may_resolve(policy: &EgressPolicy, name: &str) -> Result<(), String> {
    let decisive = policy
        .rules
        .iter()
        .find(|rule| rule.entry.host.matches_name(name) || is_everything(rule));
    match decisive.map(verdict) {
        Some(Verdict::Deny(rule)) => Err(rule),
        Some(_) => Ok(()),
        None if policy.default == EgressAction::Allow => Ok(()),
        None => Err("default deny".into()),
    }
}

/// A rule about all addresses is one about all names.
fn is_everything(rule: &EgressRule) -> bool {
    matches!(rule.entry.host, EgressHost::Network { prefix: 0, .. })
        && rule.entry.port.is_none()
        && rule.entry.protocol.is_none()
}

/// The protected range that keeps `address` out of a name's answer.
pub fn keeps_out(policy: &EgressPolicy, address: IpAddr, own: bool) -> Option<ProtectedRange> {
    let target = Target {
        address,
        port: None,
        protocol: None,
        own,
    };
    protected::closed(policy, &target)
}

#[cfg(test)]
mod tests;

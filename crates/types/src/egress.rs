//! What a sandbox may reach: an ordered list of rules, and what happens to the rest.
//!
//! Everything here has one text, in which it travels and is kept:
//!
//! ```text
//! rule   = ("allow" | "deny") " " entry
//! entry  = host [":" port] ["/" ("tcp" | "udp" | "icmp")]
//! host   = "github.com" | "*.example.org" | "1.2.3.4" | "10.1.0.0/16"
//!        | "2001:db8::1" | "2001:db8::/32"; IPv6 in brackets where a port follows
//! ```

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

mod parse;

/// Rules of one policy. Each is looked at for every new connection, and a list that
/// people still understand is shorter.
pub const EGRESS_RULES: usize = 256;

/// What is done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EgressAction {
    /// It is let through.
    Allow,
    /// It is refused.
    Deny,
}

/// What an entry can be narrowed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EgressProtocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// Pings.
    Icmp,
}

/// Whom an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EgressHost {
    /// One name: lower case, ASCII (international names in punycode), no dot at the end.
    Name(String),
    /// Every name below this one, at any depth, and not this one itself: `example.org`
    /// for `*.example.org`.
    Wildcard(String),
    /// The addresses that begin with the first `prefix` bits of `address`, whose other
    /// bits are zero.
    Network {
        /// The lowest address.
        address: IpAddr,
        /// Bits, at most 32 or 128.
        prefix: u8,
    },
}

/// A host, or many, with an optional port and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EgressEntry {
    /// Whom it is about.
    pub host: EgressHost,
    /// The one port, not 0; all where there is none.
    pub port: Option<u16>,
    /// The one protocol; all where there is none.
    pub protocol: Option<EgressProtocol>,
}

/// One line of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EgressRule {
    /// What is done.
    pub action: EgressAction,
    /// With whom.
    pub entry: EgressEntry,
}

/// What a sandbox may reach. The first rule that matches decides, then the default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EgressPolicy {
    /// In the order in which they are asked.
    pub rules: Vec<EgressRule>,
    /// For what no rule matches.
    pub default: EgressAction,
}

/// Why something is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// An entry cannot be read.
    #[error("`{entry}` is not an egress entry: {fault}")]
    Entry {
        /// Its beginning.
        entry: String,
        /// What is wrong with it.
        fault: EgressFault,
    },
    /// A rule does not begin with its action.
    #[error("`{0}` is not an egress rule: write `allow` or `deny`, a space and an entry")]
    Rule(String),
    /// Neither `allow` nor `deny`.
    #[error("`{0}` is not an egress action: use `allow` or `deny`")]
    Action(String),
    /// The list is too long.
    #[error("{0} egress rules are too many: a policy has at most {EGRESS_RULES}")]
    TooMany(usize),
}

/// What is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressFault {
    /// There is nothing.
    #[error("it is empty")]
    Empty,
    /// No entry is that long.
    #[error("it is too long")]
    TooLong,
    /// `*` alone.
    #[error("everything is what the policy's `default` is for")]
    Everything,
    /// A star that is not the whole first label.
    #[error("a `*` stands only at the beginning, as in `*.example.org`")]
    Star,
    /// A URL.
    #[error("write the host alone, without scheme and path")]
    Url,
    /// Neither address nor name.
    #[error(
        "a name has labels of 1 to 63 of a-z 0-9 - _ between dots, none of which begins or ends with `-`"
    )]
    Name,
    /// More than 253 characters.
    #[error("a name has at most 253 characters")]
    LongName,
    /// An international name.
    #[error("write international names in their ASCII form, `xn--...`")]
    NotAscii,
    /// Ends in a number, and is no address.
    #[error("it looks like an address and is none")]
    Address,
    /// An IPv4 address within IPv6.
    #[error("write the IPv4 address itself")]
    Mapped,
    /// No number of bits.
    #[error("the prefix is a number of bits, at most {0}")]
    Prefix(u8),
    /// An address that is not the network's own.
    #[error("bits are set behind the prefix: did you mean `{0}`?")]
    HostBits(String),
    /// No port.
    #[error("a port is a number from 1 to 65535")]
    Port,
    /// `::1:443` and the like.
    #[error("an IPv6 address is closed by `]`, as in `[2001:db8::1]:443`")]
    Brackets,
    /// No protocol that is known.
    #[error("a protocol is `tcp`, `udp` or `icmp`")]
    Protocol,
    /// Pings have none.
    #[error("`icmp` has no ports")]
    IcmpPort,
}

impl EgressPolicy {
    /// The policy of a sandbox that was given none.
    pub fn allow_all() -> Self {
        Self {
            rules: Vec::new(),
            default: EgressAction::Allow,
        }
    }

    /// What `{default, allow, deny}` means: whatever is denied, then whatever is
    /// allowed, then the default.
    ///
    /// # Errors
    /// When there are more than [`EGRESS_RULES`].
    pub fn native(
        default: EgressAction,
        allow: &[EgressEntry],
        deny: &[EgressEntry],
    ) -> Result<Self, EgressError> {
        let rule = |action| {
            move |entry: &EgressEntry| EgressRule {
                action,
                entry: entry.clone(),
            }
        };
        let denied = deny.iter().map(rule(EgressAction::Deny));
        let allowed = allow.iter().map(rule(EgressAction::Allow));
        Self::ordered(denied.chain(allowed).collect(), default)
    }

    /// A policy from a list as it is.
    ///
    /// # Errors
    /// When there are more than [`EGRESS_RULES`].
    pub fn ordered(rules: Vec<EgressRule>, default: EgressAction) -> Result<Self, EgressError> {
        if rules.len() > EGRESS_RULES {
            return Err(EgressError::TooMany(rules.len()));
        }
        Ok(Self { rules, default })
    }
}

impl EgressHost {
    /// Whether it means `name`, which is lower case and has no dot at the end.
    pub fn matches_name(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Wildcard(zone) => name
                .strip_suffix(zone.as_str())
                .is_some_and(|below| below.len() > 1 && below.ends_with('.')),
            Self::Network { .. } => false,
        }
    }

    /// Whether it means `address`.
    pub fn matches_address(&self, address: IpAddr) -> bool {
        match *self {
            Self::Network {
                address: own,
                prefix,
            } => network_of(address, prefix) == Some(own),
            Self::Name(_) | Self::Wildcard(_) => false,
        }
    }

    /// Whether it is a name or a wildcard.
    pub fn is_domain(&self) -> bool {
        !matches!(self, Self::Network { .. })
    }
}

/// `address` with zeroes behind the first `prefix` bits; `None` where it has fewer bits.
fn network_of(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(address) => {
            let behind = 32_u32.checked_sub(prefix)?;
            let mask = u32::MAX.checked_shl(behind).unwrap_or(0);
            Some(IpAddr::from((u32::from(address) & mask).to_be_bytes()))
        }
        IpAddr::V6(address) => {
            let behind = 128_u32.checked_sub(prefix)?;
            let mask = u128::MAX.checked_shl(behind).unwrap_or(0);
            Some(IpAddr::from((u128::from(address) & mask).to_be_bytes()))
        }
    }
}

impl FromStr for EgressAction {
    type Err = EgressError;

    fn from_str(text: &str) -> Result<Self, EgressError> {
        match text {
            "allow" => Ok(Self::Allow),
            "deny" => Ok(Self::Deny),
            _ => Err(EgressError::Action(parse::shown(text))),
        }
    }
}

impl fmt::Display for EgressAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

impl fmt::Display for EgressProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

impl fmt::Display for EgressHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Wildcard(zone) => write!(formatter, "*.{zone}"),
            Self::Network { address, prefix } if *prefix == parse::bits(*address) => {
                write!(formatter, "{address}")
            }
            Self::Network { address, prefix } => write!(formatter, "{address}/{prefix}"),
        }
    }
}

impl fmt::Display for EgressEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (host, None) => write!(formatter, "{host}")?,
            (host @ EgressHost::Network { address, .. }, Some(port)) if address.is_ipv6() => {
                write!(formatter, "[{host}]:{port}")?;
            }
            (host, Some(port)) => write!(formatter, "{host}:{port}")?,
        }
        match self.protocol {
            Some(protocol) => write!(formatter, "/{protocol}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for EgressRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.action, self.entry)
    }
}

impl FromStr for EgressRule {
    type Err = EgressError;

    fn from_str(text: &str) -> Result<Self, EgressError> {
        let (action, entry) = text
            .split_once(' ')
            .ok_or_else(|| EgressError::Rule(parse::shown(text)))?;
        Ok(Self {
            action: action
                .parse()
                .map_err(|_| EgressError::Rule(parse::shown(text)))?,
            entry: entry.parse()?,
        })
    }
}

#[cfg(test)]
mod tests;

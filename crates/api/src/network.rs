//! What sandboxes may reach, and what they do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a sandbox may reach: what is in `deny` is refused, of the rest what is in `allow` is let through, and `default`
/// decides about what is in neither.
///
/// An entry is a name (`github.com`), the names below one (`*.example.org`), an address (`1.2.3.4`) or a network
/// (`10.1.0.0/16`), each with an optional port (`github.com:443`, `[2001:db8::1]:443`) and protocol (`1.2.3.4:53/udp`).
/// The host itself, private and link-local addresses are refused whatever `default` says, unless an `allow` entry names
/// an address or a network within them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// `allow` (when left out) or `deny`.
    #[serde(default = "allow")]
    pub default: String,
    /// What is let through.
    #[serde(default)]
    pub allow: Vec<String>,
    /// What is refused.
    #[serde(default)]
    pub deny: Vec<String>,
}

fn allow() -> String {
    "allow".to_owned()
}

/// What to change of a template, at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// What sandboxes that are made from it from now on may reach where they do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
}

/// What a sandbox may reach, what it is connected with, and what it was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Network {
    /// What it may reach.
    pub egress: Egress,
    /// What lives, the oldest first.
    pub connections: Vec<Connection>,
    /// The last 128 refusals, the oldest first.
    pub refusals: Vec<Refusal>,
    /// Since its VM came up.
    pub totals: NetworkTotals,
}

/// Sums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkTotals {
    /// Connections and flows that were let through.
    pub connections: u64,
    /// What was refused.
    pub refused: u64,
    /// Bytes from the sandbox.
    pub sent_bytes: u64,
    /// Bytes to it.
    pub received_bytes: u64,
}

/// A connection, or a flow of datagrams or pings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// The sandbox's end, as `ADDRESS:PORT`.
    pub local: String,
    /// The other end, as `ADDRESS:PORT`.
    pub remote: String,
    /// The name it is for, where that is known.
    pub name: Option<String>,
    /// `connecting`, `open` or `half-closed`.
    pub state: String,
    /// Bytes from the sandbox.
    pub sent_bytes: u64,
    /// Bytes to it.
    pub received_bytes: u64,
    /// Since it began.
    pub age_ms: u64,
}

/// Something that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// When first: RFC 3339, UTC.
    pub at: String,
    /// `tcp`, `udp`, `icmp` or `dns`.
    pub protocol: String,
    /// Where to.
    pub address: String,
    /// Its port; 0 where there is none.
    pub port: u32,
    /// Its name, where that is known.
    pub name: Option<String>,
    /// The rule, range or limit that refused it.
    pub rule: String,
    /// How often within ten seconds.
    pub count: u64,
}

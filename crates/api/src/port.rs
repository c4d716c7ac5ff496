//! Ports of sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Offer a port. Asked again, it says the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenPortRequest {
    /// The port inside the sandbox, 1 to 65535.
    pub port: u16,
    /// Let a TCP port of the host lead to it. It stays the same until it is taken back or the sandbox is removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub raw: bool,
    /// Who may use it by HTTP from now on. `public`: whoever knows the sandbox's id. `token`: who sends the API key or the
    /// sandbox's traffic token. Left out, that stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A port of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Port {
    /// The port inside.
    pub port: u16,
    /// Whether something listens there now.
    pub open: bool,
    /// The addresses inside at which it does.
    pub addresses: Vec<String>,
    /// The process that does, where one was found.
    pub pid: Option<u32>,
    /// Its name: 15 characters of it at most.
    pub process: Option<String>,
    /// Where it is reached by HTTP.
    pub url: String,
    /// The host's address and port that lead to it, as `ADDRESS:PORT`.
    pub raw: Option<String>,
    /// Who may use it by HTTP: `public` or `token`.
    pub access: String,
}

/// What listens in a sandbox, and what else was said of its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortList {
    /// One entry each, by number.
    pub ports: Vec<Port>,
    /// Where every port is reached by HTTP; `{port}` stands for its number.
    pub url_template: String,
    /// The sandbox's traffic token: its holder may use every port by HTTP, and do nothing else.
    pub token: String,
}

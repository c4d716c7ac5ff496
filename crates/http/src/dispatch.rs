//! Who gets a request: one table for every door of the listener.
//!
//! ```text
//!   1  Host `<port>-<id>.<anything>`, or E2B's headers where Host is ours  → the guest
//!   -  any other Host that is not ours                                     → 421
//!   2  /v1/vms…  /v1/health  /vms…  /health                                → Arrakis
//!   3  /v1/…  /healthz  /metrics  /openapi.json  /openapi.yaml
//!      /openapi/…  /mcp                                                    → native
//!   4  /sandboxes  /v2/…  /v3/…  /templates  /snapshots  /volumes
//!      /secrets  /teams  /files                                            → E2B
//!   5  /ui/…                                                               → pages
//!   -  the rest                                                            → 404, native
//! ```
//!
//! A test below goes through every route of every door and fails where two
//! doors could take the same request. A new door adds its routes there.

use crate::host::{GuestLabel, HostRules, RequestHost};
use http::HeaderMap;
use pando_types::SandboxId;

/// E2B's header that names the sandbox.
pub(crate) const SANDBOX_ID_HEADER: &str = "e2b-sandbox-id";
/// E2B's header that names the port.
pub(crate) const SANDBOX_PORT_HEADER: &str = "e2b-sandbox-port";

/// A dialect of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Door {
    /// `/v1` of our own.
    Native,
    /// Arrakis's API.
    Arrakis,
    /// E2B's control API.
    E2b,
    /// The dashboard and other pages.
    Pages,
}

/// A port inside a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestTarget {
    /// As the caller wrote it; `None` if it is no id at all.
    pub(crate) sandbox: Option<SandboxId>,
    /// What was written where the id belongs, for the error message.
    pub(crate) named: String,
    /// The port.
    pub(crate) port: u16,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To a port inside a sandbox.
    Guest(GuestTarget),
    /// To a door.
    Door(Door),
    /// Nowhere: it names a host that is not ours.
    ForeignHost,
    /// Nowhere: it names a port that no guest can have.
    BadGuestPort,
}

#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// This path alone.
    Exact(&'static str),
    /// This path and all below it.
    Under(&'static str),
}

impl Pattern {
    fn matches(self, path: &str) -> bool {
        match self {
            Self::Exact(own) => path == own,
            Self::Under(root) => path
                .strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        }
    }
}

/// The order matters: the first match wins.
const TABLE: &[(Pattern, Door)] = {
    use Door::{Arrakis, E2b, Native, Pages};
    use Pattern::{Exact, Under};
    &[
        (Under("/v1/vms"), Arrakis),
        (Exact("/v1/health"), Arrakis),
        (Under("/vms"), Arrakis),
        (Exact("/health"), Arrakis),
        (Under("/v1"), Native),
        (Exact("/healthz"), Native),
        (Exact("/metrics"), Native),
        (Exact("/openapi.json"), Native),
        (Exact("/openapi.yaml"), Native),
        (Under("/openapi"), Native),
        (Under("/mcp"), Native),
        (Under("/sandboxes"), E2b),
        (Under("/v2"), E2b),
        (Under("/v3"), E2b),
        (Under("/templates"), E2b),
        (Under("/snapshots"), E2b),
        (Under("/volumes"), E2b),
        (Under("/secrets"), E2b),
        (Under("/teams"), E2b),
        (Under("/files"), E2b),
        (Under("/ui"), Pages),
    ]
};

/// Decides where a request goes.
pub(crate) fn dispatch(
    rules: &HostRules,
    host: Option<&RequestHost>,
    headers: &HeaderMap,
    path: &str,
) -> Destination {
    let Some(host) = host else {
        return Destination::ForeignHost;
    };
    match host.guest_label() {
        Some(GuestLabel::Valid { port, id }) => return Destination::Guest(target(id, port)),
        Some(GuestLabel::BadPort) => return Destination::BadGuestPort,
        None => {}
    }
    if !rules.allows(host) {
        return Destination::ForeignHost;
    }
    if rules.trusts_sandbox_headers(host)
        && let Some(id) = text(headers, SANDBOX_ID_HEADER)
    {
        return match text(headers, SANDBOX_PORT_HEADER).map(str::parse::<u16>) {
            Some(Ok(port)) if port > 0 => Destination::Guest(target(id, port)),
            _ => Destination::BadGuestPort,
        };
    }
    Destination::Door(door_of(path))
}

fn door_of(path: &str) -> Door {
    let row = TABLE.iter().find(|(pattern, _)| pattern.matches(path));
    row.map_or(Door::Native, |&(_, door)| door)
}

fn target(id: &str, port: u16) -> GuestTarget {
    GuestTarget {
        sandbox: id.parse().ok(),
        named: id.to_owned(),
        port,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::route::ROUTES;

    const ID: &str = "s0123456789abcdefghi";

    /// Every route of every door: method and path, parameters in braces.
    fn every_route() -> Vec<(Door, &'static str, String)> {
        let native = ROUTES
            .iter()
            .map(|route| (Door::Native, route.method.as_str(), route.path.to_owned()));
        let arrakis = crate::arrakis::every_route()
            .into_iter()
            .map(|(method, path)| (Door::Arrakis, method, path));
        let e2b = crate::e2b::RESERVED
            .iter()
            .map(|&(method, path)| (Door::E2b, method, path.to_owned()));
        native.chain(arrakis).chain(e2b).collect()
    }

    /// Whether some path fits both patterns.
    fn overlap(one: &str, other: &str) -> bool {
        let (one, other): (Vec<_>, Vec<_>) = (one.split('/').collect(), other.split('/').collect());
        one.len() == other.len()
            && one
                .iter()
                .zip(&other)
                .all(|(a, b)| a == b || a.starts_with('{') || b.starts_with('{'))
    }

    #[test]
    fn every_route_of_every_door_reaches_its_door() {
        for (door, _, path) in every_route() {
            assert_eq!(
                door_of(&path),
                door,
                "{path}: add a row to TABLE above the one that took it"
            );
        }
    }

    #[test]
    fn no_two_doors_take_the_same_request() {
        let routes = every_route();
        for (index, (door, method, path)) in routes.iter().enumerate() {
            for (other_door, other_method, other_path) in &routes[index + 1..] {
                let clash = method == other_method && overlap(path, other_path);
                assert!(
                    door == other_door || !clash,
                    "{method} {path} is taken by two doors"
                );
            }
        }
    }

    fn rules() -> HostRules {
        HostRules::new(
            "127.0.0.1".parse().unwrap(),
            vec!["pando.example".to_owned()],
        )
    }

    fn go(host: &str, headers: &[(&'static str, &str)], path: &str) -> Destination {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let host = host.parse::<RequestHost>().unwrap();
        dispatch(&rules(), Some(&host), &map, path)
    }

    fn guest(port: u16) -> Destination {
        Destination::Guest(GuestTarget {
            sandbox: Some(ID.parse().unwrap()),
            named: ID.to_owned(),
            port,
        })
    }

    #[test]
    fn sandbox_traffic_comes_first() {
        for host in [
            "localhost:7000",
            "pando.example",
            "evil.example",
            "sandbox.x",
        ] {
            assert_eq!(
                go(&format!("3000-{ID}.{host}"), &[], "/v1/sandboxes"),
                guest(3000),
                "{host}"
            );
        }
        let headers = [(SANDBOX_ID_HEADER, ID), (SANDBOX_PORT_HEADER, "49983")];
        for host in ["localhost:7000", "127.0.0.1:7000", "sandbox.pando.example"] {
            assert_eq!(go(host, &headers, "/v1/sandboxes"), guest(49983), "{host}");
        }
    }

    #[test]
    fn sandbox_headers_mean_nothing_on_other_hosts() {
        let headers = [(SANDBOX_ID_HEADER, ID), (SANDBOX_PORT_HEADER, "80")];
        assert_eq!(
            go("pando.example", &headers, "/v1/status"),
            Destination::Door(Door::Native)
        );
        assert_eq!(
            go("evil.example", &headers, "/v1/status"),
            Destination::ForeignHost
        );
        assert_eq!(
            go("app.localhost", &headers, "/v1/status"),
            Destination::Door(Door::Native)
        );
    }

    #[test]
    fn bad_ports_never_fall_through_to_the_api() {
        for host in [
            "0-abc.localhost",
            "65536-abc.localhost",
            "99999999999-abc.localhost",
        ] {
            assert_eq!(
                go(host, &[], "/v1/status"),
                Destination::BadGuestPort,
                "{host}"
            );
        }
        let no_port = [(SANDBOX_ID_HEADER, ID)];
        assert_eq!(
            go("localhost", &no_port, "/v1/status"),
            Destination::BadGuestPort
        );
    }

    #[test]
    fn a_prefix_ends_at_a_slash() {
        assert_eq!(door_of("/v1/vmsx"), Door::Native);
        assert_eq!(door_of("/v1/vms/a"), Door::Arrakis);
        assert_eq!(door_of("/v1/healthz"), Door::Native);
        assert_eq!(door_of("/v2"), Door::E2b);
        assert_eq!(door_of("/v22"), Door::Native);
        assert_eq!(door_of("/ui/"), Door::Pages);
    }

    #[test]
    fn a_request_without_host_is_foreign() {
        assert_eq!(
            dispatch(&rules(), None, &HeaderMap::new(), "/healthz"),
            Destination::ForeignHost
        );
    }
}

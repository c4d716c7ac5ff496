//! Which `Host` and `Origin` a request may have.
//!
//! A web page on any site can make a browser send requests to this listener.
//! `Host` stops pages that rebind their own name to our address; `Origin` stops
//! those that simply address us, sandboxes' own pages on `<port>-<id>.localhost`
//! among them, which are same-site with the API and still another origin.

use http::{HeaderMap, Uri, header};
use std::net::IpAddr;
use std::str::FromStr;

/// The host a request was sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestHost {
    /// Lower case, no port, no trailing dot; brackets of an IPv6 literal removed.
    name: String,
    /// As written, without the port.
    port: Option<u16>,
    ip: Option<IpAddr>,
}

/// A first label shaped like `<port>-<id>`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GuestLabel<'a> {
    /// With a port that can exist.
    Valid {
        /// 1 to 65535.
        port: u16,
        /// `[a-z0-9]+`.
        id: &'a str,
    },
    /// With one that cannot.
    BadPort,
}

/// Not a host name or address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadHost;

impl RequestHost {
    /// The host of a request: its URI's authority, else its `Host` header.
    /// `None` if there is none, it is malformed, or the two differ.
    pub(crate) fn of(uri: &Uri, headers: &HeaderMap) -> Option<Self> {
        let mut named = headers.get_all(header::HOST).iter();
        let in_header = match named.next() {
            Some(value) => Some(value.to_str().ok()?.parse::<Self>().ok()?),
            None => None,
        };
        let in_uri = match uri.authority() {
            Some(authority) => Some(authority.as_str().parse::<Self>().ok()?),
            None => None,
        };
        match (in_uri, in_header) {
            _ if named.next().is_some() => None,
            (Some(uri), Some(header)) if uri != header => None,
            (uri, header) => uri.or(header),
        }
    }

    /// Whether it can mean no other machine: a loopback address, or `localhost`.
    pub(crate) fn is_this_machine(&self) -> bool {
        match self.ip {
            Some(ip) => ip.is_loopback(),
            None => is_localhost(&self.name),
        }
    }

    /// What the first label says, if it is shaped like a guest's.
    pub(crate) fn guest_label(&self) -> Option<GuestLabel<'_>> {
        let (label, _) = self.name.split_once('.')?;
        let (port, id) = label.split_once('-')?;
        let shaped = !port.is_empty()
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && !id.is_empty()
            && id
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        shaped.then(|| match port.parse() {
            Ok(port) if port > 0 => GuestLabel::Valid { port, id },
            _ => GuestLabel::BadPort,
        })
    }
}

impl FromStr for RequestHost {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Self, BadHost> {
        let (host, port) = split_port(text).ok_or(BadHost)?;
        if let Some(inner) = host.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(BadHost)?;
            let ip = inner.parse::<std::net::Ipv6Addr>().map_err(|_| BadHost)?;
            return Ok(Self {
                name: ip.to_string(),
                port,
                ip: Some(IpAddr::V6(ip)),
            });
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let well_formed = !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if !well_formed {
            return Err(BadHost);
        }
        let ip = name.parse().ok();
        Ok(Self { name, port, ip })
    }
}

/// Splits `host[:port]`, where the host may be an IPv6 literal in brackets.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let after_literal = text.rfind(']').map_or(0, |index| index + 1);
    match text[after_literal..].split_once(':') {
        None => Some((text, None)),
        Some((before, port)) => {
            let host = &text[..after_literal + before.len()];
            Some((host, Some(port.parse().ok()?)))
        }
    }
}

/// Which hosts are ours.
#[derive(Clone, Debug)]
pub(crate) struct HostRules {
    listener: IpAddr,
    public: Vec<String>,
}

impl HostRules {
    /// `listener` is the address bound to, `public` are further names we are known by.
    pub(crate) fn new(listener: IpAddr, public: Vec<String>) -> Self {
        let public = public
            .into_iter()
            .map(|name| name.to_ascii_lowercase())
            .collect();
        Self { listener, public }
    }

    /// Whether requests to this host are for us.
    pub(crate) fn allows(&self, host: &RequestHost) -> bool {
        match host.ip {
            // An address cannot be rebound; on a wildcard listener any of ours may be meant.
            Some(ip) => ip.is_loopback() || ip == self.listener || self.listener.is_unspecified(),
            None => {
                is_localhost(&host.name)
                    || self.is_public(&host.name)
                    || self.is_sandbox_root(&host.name)
            }
        }
    }

    /// Whether E2B's routing headers are believed on this host.
    pub(crate) fn trusts_sandbox_headers(&self, host: &RequestHost) -> bool {
        host.ip.is_some() || host.name == "localhost" || self.is_sandbox_root(&host.name)
    }

    /// Whether a page with this origin may change something, or open a WebSocket.
    pub(crate) fn allows_origin(&self, headers: &HeaderMap, host: &RequestHost) -> bool {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else {
            return true;
        };
        if origins.next().is_some() {
            return false;
        }
        let Some((scheme, origin)) = origin.to_str().ok().and_then(parse_origin) else {
            return false;
        };
        if origin.guest_label().is_some() {
            return false;
        }
        let same = origin.name == host.name
            && origin.port.unwrap_or_else(|| scheme.port())
                == host.port.unwrap_or_else(|| scheme.port());
        same || self.is_public(&origin.name)
    }

    fn is_public(&self, name: &str) -> bool {
        self.public.iter().any(|public| public == name)
    }

    fn is_sandbox_root(&self, name: &str) -> bool {
        name.strip_prefix("sandbox.")
            .is_some_and(|domain| domain == "localhost" || self.is_public(domain))
    }
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

#[derive(Clone, Copy)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

fn parse_origin(text: &str) -> Option<(Scheme, RequestHost)> {
    let (scheme, rest) = match text.split_once("://")? {
        ("http", rest) => (Scheme::Http, rest),
        ("https", rest) => (Scheme::Https, rest),
        _ => return None,
    };
    Some((scheme, rest.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(listener: &str) -> HostRules {
        HostRules::new(listener.parse().unwrap(), vec!["Pando.Example".to_owned()])
    }

    fn allows(listener: &str, host: &str) -> bool {
        host.parse::<RequestHost>()
            .is_ok_and(|host| rules(listener).allows(&host))
    }

    #[test]
    fn our_own_hosts_are_allowed() {
        for host in [
            "localhost",
            "LOCALHOST:7000",
            "localhost.",
            "a.localhost:1",
            "127.0.0.1:7000",
            "127.9.9.9",
            "[::1]:7000",
            "pando.example",
            "sandbox.pando.example:443",
            "sandbox.localhost",
        ] {
            assert!(allows("127.0.0.1", host), "{host}");
        }
        assert!(allows("192.168.1.5", "192.168.1.5:7000"));
        assert!(allows("0.0.0.0", "192.168.1.5:7000"));
        assert!(allows("::", "[fe80::1]"));
    }

    #[test]
    fn foreign_hosts_are_not() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "x.pando.example",
            "",
            "a b",
            "localhost:x",
            "[::1",
            "user@localhost",
            "[127.0.0.1]",
        ] {
            assert!(!allows("127.0.0.1", host), "{host}");
        }
    }

    fn origin_allowed(origin: &str, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, origin.parse().unwrap());
        rules("127.0.0.1").allows_origin(&headers, &host.parse().unwrap())
    }

    #[test]
    fn an_origin_is_the_api_itself_or_refused() {
        assert!(
            rules("127.0.0.1").allows_origin(&HeaderMap::new(), &"localhost:7000".parse().unwrap())
        );
        assert!(origin_allowed("http://localhost:7000", "localhost:7000"));
        assert!(origin_allowed("https://pando.example", "pando.example"));
        assert!(origin_allowed("https://pando.example", "127.0.0.1:7000"));
        for origin in [
            "null",
            "http://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "file://localhost:7000",
            "http://3000-s0123456789abcdefghi.localhost:7000",
            "http://127.0.0.1:7000",
            "garbage",
        ] {
            assert!(!origin_allowed(origin, "localhost:7000"), "{origin}");
        }
    }

    #[test]
    fn a_guests_page_is_refused_even_on_its_own_host() {
        let host = "3000-s0123456789abcdefghi.localhost:7000";
        assert!(!origin_allowed(&format!("http://{host}"), host));
    }

    #[test]
    fn uri_and_header_must_agree() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "localhost:7000".parse().unwrap());
        let of = |uri: &str| RequestHost::of(&uri.parse().unwrap(), &headers);
        assert!(of("/v1/status").is_some());
        assert!(of("http://localhost:7000/v1/status").is_some());
        assert!(of("http://evil.example/v1/status").is_none());
        assert!(RequestHost::of(&"/".parse().unwrap(), &HeaderMap::new()).is_none());
    }

    proptest::proptest! {
        #[test]
        fn no_host_confuses_the_parser(text in ".{0,80}", label in "[0-9]{0,6}-?[a-z0-9]{0,24}") {
            for host in [text.clone(), format!("{label}.{text}"), format!("[{text}]"), format!("{label}.localhost:7")] {
                let Ok(host) = host.parse::<RequestHost>() else { continue };
                if let Some(GuestLabel::Valid { port, id }) = host.guest_label() {
                    proptest::prop_assert!(port > 0 && !id.is_empty());
                }
                // What is ours is a name we know or an address, whatever came before it.
                let ours = host.ip.is_some() || host.name.ends_with("localhost") || host.name.ends_with("pando.example");
                proptest::prop_assert!(ours || !rules("127.0.0.1").allows(&host));
            }
        }
    }
}

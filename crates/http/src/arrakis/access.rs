//! Who may use the Arrakis door without a key.
//!
//! Its clients cannot send one. What stands in its place: the request comes from a program of
//! this machine, straight to a daemon that nobody else can reach. A web page, a proxy or
//! another machine is none of these, and each leaves a trace that is looked for here.

use crate::error::ApiError;
use crate::proxy::Peer;
use axum::extract::Request;
use base64::Engine as _;
use http::{HeaderMap, HeaderName, header};
use pando_engine::request::Caller;

/// What proxies add to a request that they pass on.
const FORWARDING: [&str; 8] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-original-forwarded-for",
    "x-real-ip",
];

/// What browsers say of the page that sends a request. Pages of other sites read `cross-site`
/// or `same-site` there; what a person types is `none`.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the door opens to requests without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keyless {
    /// To programs of this machine.
    Allowed,
    /// To nobody; says why.
    Refused(&'static str),
}

impl Keyless {
    /// By how the daemon is reached.
    pub(crate) fn of(demands_key: bool, on_loopback: bool, has_public_url: bool) -> Self {
        match (demands_key, on_loopback, has_public_url) {
            (true, ..) => Self::Refused("this daemon wants an API key at every door"),
            (_, false, _) => Self::Refused(
                "this needs an API key, since the daemon listens for other machines too",
            ),
            (_, _, true) => {
                Self::Refused("this needs an API key, since the daemon has a public address")
            }
            (false, true, false) => Self::Allowed,
        }
    }

    /// The tenant of a request without a key, if it may pass.
    pub(crate) fn caller(self, request: &Request) -> Result<Caller, ApiError> {
        if let Self::Refused(reason) = self {
            return Err(ApiError::Unauthorized(reason));
        }
        let peer = request.extensions().get::<Peer>();
        if !peer.is_some_and(|peer| peer.0.is_loopback()) {
            return Err(ApiError::Unauthorized(
                "this needs an API key from other machines",
            ));
        }
        check(request.headers()).map_err(ApiError::Unauthorized)?;
        Ok(Caller {
            tenant: super::TENANT.to_owned(),
        })
    }
}

/// Refuses what a browser or a proxy sends.
fn check(headers: &HeaderMap) -> Result<(), &'static str> {
    if headers.contains_key(header::ORIGIN) {
        return Err("this needs an API key from a web page");
    }
    let site = headers.get(FETCH_SITE);
    if site.is_some_and(|site| site != "none" && site != "same-origin") {
        return Err("this needs an API key from a web page");
    }
    if FORWARDING.iter().any(|name| headers.contains_key(*name)) {
        return Err("this needs an API key through a proxy");
    }
    let declared = headers.get(header::CONTENT_TYPE);
    // What a page may send without asking first is of no such type.
    if declared.is_some_and(|_| !crate::json::is_json(headers)) {
        return Err("this needs an API key for a body that is not JSON");
    }
    Ok(())
}

/// The key in `Authorization: Basic`, as its password. The clients' HTTP library takes it from
/// `~/.netrc`, so that they can be given a key without a change.
pub(crate) fn basic_key(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim());
    let text = String::from_utf8(decoded.ok()?).ok()?;
    let (_, password) = text.split_once(':')?;
    Some(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(peer: Option<&str>, headers: &[(&str, &str)]) -> Request {
        let mut request = http::Request::builder().uri("/v1/vms");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if let Some(peer) = peer {
            request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        }
        request
    }

    #[test]
    fn a_program_of_this_machine_needs_no_key() {
        for peer in ["127.0.0.1", "127.9.9.9", "::1"] {
            let json = [("content-type", "application/json; charset=utf-8")];
            let caller = Keyless::Allowed
                .caller(&request(Some(peer), &json))
                .unwrap();
            assert_eq!(caller.tenant, TENANT_NAME);
        }
        let typed = request(Some("::1"), &[("sec-fetch-site", "none")]);
        assert!(Keyless::Allowed.caller(&typed).is_ok());
    }

    const TENANT_NAME: &str = crate::arrakis::TENANT;

    #[test]
    fn machines_pages_and_proxies_do() {
        for peer in [
            None,
            Some("192.168.1.7"),
            Some("::ffff:10.0.0.1"),
            Some("0.0.0.0"),
        ] {
            let refused = Keyless::Allowed.caller(&request(peer, &[]));
            assert!(
                matches!(refused, Err(ApiError::Unauthorized(_))),
                "{peer:?}"
            );
        }
        let mut traces = vec![
            ("origin", "http://localhost:7000"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("content-type", "text/plain"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("content-type", "multipart/form-data; boundary=x"),
        ];
        traces.extend(FORWARDING.iter().map(|name| (*name, "1")));
        for trace in traces {
            let refused = Keyless::Allowed.caller(&request(Some("127.0.0.1"), &[trace]));
            assert!(
                matches!(refused, Err(ApiError::Unauthorized(_))),
                "{trace:?}"
            );
        }
    }

    #[test]
    fn a_daemon_that_others_can_reach_wants_a_key() {
        assert_eq!(Keyless::of(false, true, false), Keyless::Allowed);
        for (demands, loopback, public) in [
            (true, true, false),
            (false, false, false),
            (false, true, true),
            (true, false, true),
        ] {
            let rule = Keyless::of(demands, loopback, public);
            assert!(rule.caller(&request(Some("127.0.0.1"), &[])).is_err());
        }
    }

    #[test]
    fn a_netrc_can_hold_the_key() {
        let key = |value: &str| {
            let request = request(None, &[("authorization", value)]);
            basic_key(request.headers())
        };
        // `x:pando_0`
        assert_eq!(key("Basic eDpwYW5kb18w"), Some("pando_0".to_owned()));
        assert_eq!(key("basic eDpwYW5kb18w"), Some("pando_0".to_owned()));
        for other in ["Bearer x", "Basic", "Basic !", "Basic cGFuZG8=", ""] {
            assert_eq!(key(other), None, "{other}");
        }
    }
}

//! Who may use the Arrakis door without a key.
//!
//! Its clients cannot send one. What stands in its place: the request comes from a program of
//! this machine, straight to a daemon that nobody else can reach. A web page, a proxy or
//! another machine is none of these, and each leaves a trace that is looked for here.
//!
//! ```text
//!   a sandbox           the account of its processes (`Doors::of_a_sandbox`), where it has one
//!   another machine     peer not loopback; daemon not on loopback, or publicly known
//!   a proxy             a header that proxies add, a name that is not this machine's, HTTP/1.0
//!   a web page          Origin, Sec-Fetch-Site; a body, or a POST or PATCH, not declared as JSON
//!   its own name here   a Host that is not this machine's (DNS rebinding)
//! ```
//!
//! What a page may send without asking the daemon first (a form, an image, a `fetch` that is not
//! to be read) can neither leave out what browsers add nor be declared as JSON.

use crate::error::ApiError;
use crate::gate::API_KEY_HEADER;
use crate::host::RequestHost;
use crate::proxy::Peer;
use axum::body::HttpBody as _;
use axum::extract::Request;
use base64::Engine as _;
use http::{HeaderMap, HeaderName, Method, Version, header};
use pando_engine::request::Caller;

/// What all headers begin with that proxies added before there was [`FORWARDING`]'s first.
const FORWARDING_PREFIX: &str = "x-forwarded";

/// What else proxies add to a request that they pass on.
const FORWARDING: [&str; 14] = [
    "forwarded",
    "via",
    "cdn-loop",
    "cf-connecting-ip",
    "client-ip",
    "fastly-client-ip",
    "tailscale-user-login",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "x-original-host",
    "x-real-ip",
];

/// What browsers say of the page that sends a request.
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
    pub(crate) fn of(demands_key: bool, on_loopback: bool, is_public: bool) -> Self {
        match (demands_key, on_loopback, is_public) {
            (true, ..) => Self::Refused("this daemon wants an API key from everybody"),
            (_, false, _) => Self::Refused(
                "this daemon listens for other machines too: it wants an API key from everybody",
            ),
            (_, _, true) => {
                Self::Refused("this daemon has a public name: it wants an API key from everybody")
            }
            (false, true, false) => Self::Allowed,
        }
    }

    /// The tenant of a request without a key, if it may pass.
    pub(crate) fn caller(self, request: &Request, host: &RequestHost) -> Result<Caller, ApiError> {
        if let Self::Refused(reason) = self {
            return Err(ApiError::Unauthorized(reason));
        }
        let peer = request.extensions().get::<Peer>();
        if !peer.is_some_and(|peer| peer.0.is_loopback()) {
            return Err(ApiError::Unauthorized(
                "a request from another machine needs an API key",
            ));
        }
        check(request, host).map_err(ApiError::Unauthorized)?;
        if !says_json(request) {
            return Err(ApiError::NotJson);
        }
        Ok(Caller {
            tenant: super::TENANT.to_owned(),
        })
    }
}

/// Refuses what a browser or a proxy sends.
fn check(request: &Request, host: &RequestHost) -> Result<(), &'static str> {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) {
        return Err("a request of a web page needs an API key");
    }
    // What a person types is of no site.
    if headers
        .get_all(FETCH_SITE)
        .iter()
        .any(|site| site != "none")
    {
        return Err("a request of a web page needs an API key");
    }
    let forwarded = headers
        .keys()
        .map(HeaderName::as_str)
        .any(|name| name.starts_with(FORWARDING_PREFIX) || FORWARDING.contains(&name));
    // No client of this API speaks HTTP/1.0; nginx does to what is behind it, and adds nothing.
    if forwarded || request.version() < Version::HTTP_11 {
        return Err("a request that comes through a proxy needs an API key");
    }
    if !host.is_this_machine() {
        return Err("a request to another name than `localhost` needs an API key");
    }
    Ok(())
}

/// Whether a request says that its body is JSON, where it has one or could have.
fn says_json(request: &Request) -> bool {
    let headers = request.headers();
    let bodiless = !matches!(*request.method(), Method::POST | Method::PATCH)
        && request.body().is_end_stream()
        && !headers.contains_key(header::CONTENT_TYPE);
    bodiless
        || (crate::json::is_json(headers)
            && headers.get_all(header::CONTENT_TYPE).iter().count() == 1)
}

/// Whether a request names somebody, be it well or badly: it is not one without a key then.
pub(crate) fn names_somebody(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION) || headers.contains_key(API_KEY_HEADER)
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

    fn request(method: &str, peer: Option<&str>, headers: &[(&str, &str)]) -> Request {
        let mut request = http::Request::builder().method(method).uri("/v1/vms");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if let Some(peer) = peer {
            request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        }
        request
    }

    fn pass(rule: Keyless, request: &Request, host: &str) -> Result<String, u16> {
        let passed = rule.caller(request, &host.parse().unwrap());
        passed
            .map(|caller| caller.tenant)
            .map_err(|error| error.status().as_u16())
    }

    /// Of a program of this machine, but for these headers.
    fn of(method: &str, headers: &[(&str, &str)]) -> Result<String, u16> {
        let request = request(method, Some("127.0.0.1"), headers);
        pass(Keyless::Allowed, &request, "localhost:7000")
    }

    fn arrakis() -> Result<String, u16> {
        Ok(crate::arrakis::TENANT.to_owned())
    }

    const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");

    #[test]
    fn a_program_of_this_machine_needs_no_key() {
        for peer in ["127.0.0.1", "127.9.9.9", "::1"] {
            for host in [
                "localhost:7000",
                "127.0.0.1:7000",
                "[::1]:7000",
                "a.localhost",
            ] {
                let request = request("POST", Some(peer), &[JSON]);
                assert_eq!(pass(Keyless::Allowed, &request, host), arrakis(), "{host}");
            }
        }
        for method in ["GET", "HEAD", "DELETE"] {
            assert_eq!(of(method, &[]), arrakis(), "{method}");
        }
        assert_eq!(of("GET", &[("sec-fetch-site", "none")]), arrakis());
    }

    #[test]
    fn another_machine_does() {
        for peer in [
            None,
            Some("192.168.1.7"),
            Some("10.0.2.15"),
            Some("0.0.0.0"),
        ] {
            let request = request("GET", peer, &[]);
            let passed = pass(Keyless::Allowed, &request, "localhost");
            assert_eq!(passed, Err(401), "{peer:?}");
        }
    }

    #[test]
    fn a_web_page_does() {
        for trace in [
            ("origin", "http://localhost:7000"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", ""),
        ] {
            for method in ["GET", "POST", "DELETE"] {
                assert_eq!(of(method, &[JSON, trace]), Err(401), "{method} {trace:?}");
            }
        }
        let two = [("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")];
        assert_eq!(of("GET", &two), Err(401));
    }

    #[test]
    fn a_form_or_a_body_without_a_type_is_not_read() {
        for forms in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "text/plain; application/json",
            "application/jsonx",
            "",
        ] {
            for method in ["GET", "POST", "PATCH", "DELETE"] {
                let passed = of(method, &[("content-type", forms)]);
                assert_eq!(passed, Err(415), "{method} {forms}");
            }
        }
        let two = [JSON, ("content-type", "text/plain")];
        assert_eq!(of("POST", &two), Err(415));
        // Without a body too: a page can send such a POST.
        for method in ["POST", "PATCH"] {
            assert_eq!(of(method, &[]), Err(415), "{method}");
        }
        let mut with_body = request("DELETE", Some("::1"), &[]);
        *with_body.body_mut() = Body::from("{}");
        assert_eq!(pass(Keyless::Allowed, &with_body, "localhost"), Err(415));
    }

    #[test]
    fn a_proxy_does() {
        let mut traces = FORWARDING.to_vec();
        traces.extend([
            "x-forwarded",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-forwarded-port",
        ]);
        for trace in traces {
            for value in ["127.0.0.1", ""] {
                assert_eq!(of("GET", &[(trace, value)]), Err(401), "{trace}");
            }
        }
        let mut of_nginx = request("GET", Some("127.0.0.1"), &[]);
        *of_nginx.version_mut() = Version::HTTP_10;
        assert_eq!(pass(Keyless::Allowed, &of_nginx, "127.0.0.1"), Err(401));
    }

    #[test]
    fn another_name_does() {
        let request = request("GET", Some("127.0.0.1"), &[]);
        for host in [
            "pando.example",
            "sandbox.pando.example",
            "192.168.1.7",
            "0.0.0.0",
            "localhost.evil.example",
        ] {
            assert_eq!(pass(Keyless::Allowed, &request, host), Err(401), "{host}");
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
            let request = request("GET", Some("127.0.0.1"), &[]);
            assert_eq!(pass(rule, &request, "localhost"), Err(401));
        }
    }

    #[test]
    fn a_netrc_can_hold_the_key() {
        let key = |value: &str| {
            let request = request("GET", None, &[("authorization", value)]);
            basic_key(request.headers())
        };
        // `x:pando_0`
        assert_eq!(key("Basic eDpwYW5kb18w"), Some("pando_0".to_owned()));
        assert_eq!(key("basic eDpwYW5kb18w"), Some("pando_0".to_owned()));
        for other in ["Bearer x", "Basic", "Basic !", "Basic cGFuZG8=", ""] {
            assert_eq!(key(other), None, "{other}");
            let request = request("GET", None, &[("authorization", other)]);
            assert!(names_somebody(request.headers()), "{other}");
        }
        let own = request("GET", None, &[("x-api-key", "")]);
        assert!(names_somebody(own.headers()));
        assert!(!names_somebody(request("GET", None, &[]).headers()));
    }
}

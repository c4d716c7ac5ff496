//! The headers that go into guests and come out of them.

use super::Peer;
use super::pass::TOKEN_HEADERS;
use crate::dispatch::{SANDBOX_ID_HEADER, SANDBOX_PORT_HEADER};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Hex digits of an issued key after its prefix.
const KEY_DIGITS: usize = 40;

/// What issued keys begin with.
const KEY_PREFIXES: [&str; 2] = ["pando_", "e2b_"];

/// Headers that belong to one connection, not to the request.
pub(super) const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::UPGRADE,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The headers that go into a guest.
pub(super) fn guest_headers(headers: &HeaderMap) -> HeaderMap {
    let mut clean = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let routing = name == SANDBOX_ID_HEADER
            || name == SANDBOX_PORT_HEADER
            || name == header::HOST
            || TOKEN_HEADERS.contains(&name.as_str());
        let named = HOP_BY_HOP.contains(name) || is_named(headers, name);
        if !routing && !named && !holds_key(value) {
            clean.append(name.clone(), value.clone());
        }
    }
    clean
}

/// The headers that go to a server in a guest: with what lies between its client and it.
pub(super) fn server_headers(
    headers: &HeaderMap,
    host: Option<&HeaderValue>,
    peer: Option<Peer>,
    https: bool,
) -> HeaderMap {
    let mut clean = guest_headers(headers);
    // Both bodies may end with trailers; who takes them has to say so.
    if let Some(trailer) = headers.get(header::TRAILER) {
        clean.insert(header::TRAILER, trailer.clone());
    }
    if lists(headers, &header::TE, "trailers") {
        clean.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if lists(headers, &header::TRANSFER_ENCODING, "chunked") {
        // A request that says both is read by its chunks: the other is not to be believed.
        clean.remove(header::CONTENT_LENGTH);
    }
    let before = clean
        .get(FORWARDED_FOR)
        .and_then(|value| value.to_str().ok());
    let path = match (before, peer) {
        (Some(before), Some(Peer(address))) => Some(format!("{before}, {address}")),
        (None, Some(Peer(address))) => Some(address.to_string()),
        (_, None) => None,
    };
    if let Some(path) = path.and_then(|path| path.try_into().ok()) {
        clean.insert(FORWARDED_FOR, path);
    }
    if let Some(host) = host {
        clean.insert(FORWARDED_HOST, host.clone());
    }
    let proto = if https { "https" } else { "http" };
    clean.insert(FORWARDED_PROTO, HeaderValue::from_static(proto));
    clean
}

/// A server's answer without what belongs to one connection; its trailers may follow.
pub(super) fn clean_answer(headers: &mut HeaderMap) {
    let trailer = headers.remove(header::TRAILER);
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    if let Some(trailer) = trailer {
        headers.insert(header::TRAILER, trailer);
    }
}

/// Whether a header with a list names this.
pub(super) fn lists(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter();
    let words = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words
        .map(|listed| listed.split(';').next().unwrap_or_default().trim())
        .any(|listed| listed.eq_ignore_ascii_case(word))
}

/// Whether `Connection` says that this header is of the connection.
fn is_named(headers: &HeaderMap, name: &HeaderName) -> bool {
    lists(headers, &header::CONNECTION, name.as_str())
}

/// Whether a value holds something shaped like an issued key, alone, after
/// `Bearer`, in a cookie or encoded as Basic credentials.
fn holds_key(value: &HeaderValue) -> bool {
    if contains_key(value.as_bytes()) {
        return true;
    }
    use base64::Engine as _;
    let Some(encoded) = value
        .as_bytes()
        .get(6..)
        .filter(|_| value.as_bytes()[..6].eq_ignore_ascii_case(b"basic "))
    else {
        return false;
    };
    base64::engine::general_purpose::STANDARD
        .decode(encoded.trim_ascii())
        .is_ok_and(|plain| contains_key(&plain))
}

fn contains_key(bytes: &[u8]) -> bool {
    KEY_PREFIXES.iter().any(|prefix| {
        bytes.windows(prefix.len() + KEY_DIGITS).any(|window| {
            window.starts_with(prefix.as_bytes())
                && window[prefix.len()..].iter().all(u8::is_ascii_hexdigit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789ABCDEF01234567";

    #[test]
    fn keys_never_reach_a_guest() {
        use base64::Engine as _;
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("user:e2b_{HEX}"));
        for value in [
            format!("pando_{HEX}"),
            format!("Bearer e2b_{HEX}"),
            format!("a=1; session=pando_{HEX}; b=2"),
            format!("Basic {basic}"),
        ] {
            assert!(holds_key(&value.parse().unwrap()), "{value}");
        }
        for value in [
            "Bearer abc",
            "pando_123",
            "Basic dXNlcjo=",
            "",
            "e2b_",
            "basic",
            "Basic ",
        ] {
            assert!(!holds_key(&value.parse().unwrap()), "{value}");
        }
    }

    fn headers(sent: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_server_learns_who_asks_and_by_which_name() {
        let sent = headers(&[
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-proto", "gopher"),
            ("te", "trailers, deflate"),
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("x-pando-port-token", "secret"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
        ]);
        let host = HeaderValue::from_static("80-s1.localhost:7000");
        let peer = Peer("127.0.0.1".parse().unwrap());
        let clean = server_headers(&sent, Some(&host), Some(peer), true);
        let of = |name: &str| clean.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(of("x-forwarded-for"), Some("192.0.2.1, 127.0.0.1"));
        assert_eq!(of("x-forwarded-host"), Some("80-s1.localhost:7000"));
        assert_eq!(of("x-forwarded-proto"), Some("https"));
        assert_eq!(of("te"), Some("trailers"));
        assert_eq!(clean.len(), 4, "{clean:?}");
    }
}

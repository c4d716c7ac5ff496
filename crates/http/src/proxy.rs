//! Traffic into guests: `<port>-<id>.<anything>`, or E2B's routing headers.
//!
//! Port 49983 is the agent's user service. It is asked through the channel and
//! needs the API key of the sandbox's tenant; the key itself never reaches the
//! guest. Other ports are not forwarded yet: they answer as closed.

use crate::dispatch::{GuestTarget, SANDBOX_ID_HEADER, SANDBOX_PORT_HEADER};
use crate::error::ApiError;
use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use http_body_util::BodyExt;
use pando_engine::request::Caller;
use pando_engine::{Engine, EngineError, GuestBody};
use serde_json::json;

/// The port of the agent's user service in E2B's clients.
pub(crate) const AGENT_PORT: u16 = 49983;

/// Hex digits of an issued key after its prefix.
const KEY_DIGITS: usize = 40;

/// What issued keys begin with.
const KEY_PREFIXES: [&str; 2] = ["pando_", "e2b_"];

/// Headers that belong to one connection, not to the request.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::UPGRADE,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
];

/// Takes a request into a guest.
pub(crate) async fn forward(
    engine: Engine,
    target: GuestTarget,
    caller: Option<Caller>,
    request: Request,
) -> Response {
    let Some(sandbox) = &target.sandbox else {
        return gone(&target);
    };
    if target.port != AGENT_PORT {
        // Whether the sandbox exists is told to no one without a key.
        return match caller {
            Some(caller) if engine.get(&caller, sandbox.as_str()).await.is_err() => gone(&target),
            Some(_) => closed(&target),
            None => gone(&target),
        };
    }
    let Some(caller) = caller else {
        return ApiError::Unauthorized("this needs an API key").into_response();
    };
    let request = clean(request);
    match engine.guest_http(&caller, sandbox.as_str(), request).await {
        Ok(response) => answer(response),
        Err(
            EngineError::SandboxNotFound(_)
            | EngineError::SandboxGone { .. }
            | EngineError::WrongState { .. },
        ) => gone(&target),
        Err(error) => ApiError::from(error).into_response(),
    }
}

/// E2B's answer for a sandbox that does not run.
fn gone(target: &GuestTarget) -> Response {
    let body =
        json!({ "sandboxId": target.named, "message": "The sandbox was not found", "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// E2B's answer for a port that nothing listens on.
fn closed(target: &GuestTarget) -> Response {
    let message = "The sandbox is running but port is not open";
    let body =
        json!({ "sandboxId": target.named, "message": message, "port": target.port, "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// The answer for a port that cannot exist.
pub(crate) fn bad_port() -> Response {
    ApiError::BadParameter("the port of the sandbox must be 1 to 65535".to_owned()).into_response()
}

/// The request as the guest may see it: no key of ours, no header of a connection, a path-only target.
fn clean(request: Request) -> http::Request<GuestBody> {
    let (mut parts, body) = request.into_parts();
    parts.headers = guest_headers(&parts.headers);
    parts.extensions = http::Extensions::new();
    parts.version = http::Version::HTTP_2;
    parts.uri = guest_uri(parts.uri.path_and_query().map_or("/", |path| path.as_str()));
    http::Request::from_parts(parts, guest_body(body))
}

/// A URI of the agent's user service.
pub(crate) fn guest_uri(path_and_query: &str) -> Uri {
    let built = Uri::builder()
        .scheme("http")
        .authority("sandbox")
        .path_and_query(path_and_query)
        .build();
    // The path came out of a URI, or was encoded by us.
    built.unwrap_or_default()
}

/// A body for the guest.
pub(crate) fn guest_body(body: Body) -> GuestBody {
    body.map_err(Into::into).boxed_unsync()
}

fn answer(response: http::Response<GuestBody>) -> Response {
    let (mut parts, body) = response.into_parts();
    for name in HOP_BY_HOP {
        parts.headers.remove(name);
    }
    // A guest must not be able to speak for the gate.
    parts.extensions = http::Extensions::new();
    Response::from_parts(parts, Body::new(body))
}

/// The headers that go into a guest.
fn guest_headers(headers: &HeaderMap) -> HeaderMap {
    let mut clean = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let routing =
            name == SANDBOX_ID_HEADER || name == SANDBOX_PORT_HEADER || name == header::HOST;
        if !routing && !HOP_BY_HOP.contains(name) && !holds_key(value) {
            clean.append(name.clone(), value.clone());
        }
    }
    clean
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

    #[test]
    fn a_guest_sees_its_clients_headers_and_none_of_ours() {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "http://49983-s0123456789abcdefghi.localhost/files?path=a%20b"
            .parse()
            .unwrap();
        let sent = [
            ("host", "49983-x.localhost".to_owned()),
            ("x-api-key", format!("pando_{HEX}")),
            ("e2b-sandbox-id", "x".to_owned()),
            ("connection", "close".to_owned()),
            ("authorization", "Basic dXNlcjo=".to_owned()),
            ("x-access-token", "token".to_owned()),
        ];
        for (name, value) in &sent {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        let clean = clean(request);
        let names: Vec<_> = clean.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["authorization", "x-access-token"]);
        assert_eq!(
            clean.uri().path_and_query().unwrap().as_str(),
            "/files?path=a%20b"
        );
    }
}

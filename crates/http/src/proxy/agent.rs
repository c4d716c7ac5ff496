//! Port 49983: the agent's user service.

use super::answer::{Answerer, Trouble};
use super::headers::{HOP_BY_HOP, guest_headers};
use crate::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::Uri;
use http_body_util::BodyExt;
use pando_engine::request::Caller;
use pando_engine::{Engine, EngineError, GuestBody};
use pando_types::SandboxId;

pub(super) async fn forward(
    engine: &Engine,
    answerer: &Answerer,
    sandbox: &SandboxId,
    caller: Option<Caller>,
    request: Request,
) -> Response {
    let Some(caller) = caller else {
        return ApiError::Unauthorized("this needs an API key").into_response();
    };
    let request = clean(request);
    match engine.guest_http(&caller, sandbox.as_str(), request).await {
        Ok(response) => answer(response),
        Err(EngineError::SandboxNotFound(_)) => answerer.answer(Trouble::Unknown),
        Err(EngineError::SandboxGone { .. } | EngineError::WrongState { .. }) => {
            let state = engine.get(&caller, sandbox.as_str()).await;
            answerer.answer(state.map_or(Trouble::Unknown, |sandbox| Trouble::Down(sandbox.state)))
        }
        Err(error) => ApiError::from(error).into_response(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    #[test]
    fn a_guest_sees_its_clients_headers_and_none_of_ours() {
        let key = format!("pando_{}", "0123456789".repeat(4));
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "http://49983-s0123456789abcdefghi.localhost/files?path=a%20b"
            .parse()
            .unwrap();
        let sent = [
            ("host", "49983-x.localhost"),
            ("x-api-key", key.as_str()),
            ("e2b-sandbox-id", "x"),
            ("connection", "close"),
            ("authorization", "Basic dXNlcjo="),
            ("x-access-token", "token"),
        ];
        for (name, value) in sent {
            request.headers_mut().append(name, value.parse().unwrap());
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

//! `/guest/…`: raw HTTP to the agent's user service, streamed both ways.
//!
//! The daemon asks here for files and, later, ports. Only the `data` port is reached:
//! the control service is on another one.

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use pando_wire::channel::Channel;

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The path prefix that marks a raw request.
pub(crate) const PREFIX: &str = "/guest";

/// Headers that speak of one connection and must not travel on.
const HOP_BY_HOP: [header::HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::HOST,
];

/// Passes a request on to the guest and its answer back.
pub(crate) async fn forward(
    channel: &Channel,
    request: Request<hyper::body::Incoming>,
) -> Response<Body> {
    match rewrite(request) {
        Ok(request) => match channel.data().request(request).await {
            Ok(response) => response.map(|body| body.map_err(Into::into).boxed_unsync()),
            Err(error) => plain(StatusCode::BAD_GATEWAY, error.to_string()),
        },
        Err(error) => plain(StatusCode::BAD_REQUEST, error.to_string()),
    }
}

fn rewrite(request: Request<hyper::body::Incoming>) -> Result<Request<Body>, http::Error> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = path.strip_prefix(PREFIX).unwrap_or(path);
    parts.uri = Uri::builder()
        .scheme("http")
        .authority("guest")
        .path_and_query(path)
        .build()?;
    for name in HOP_BY_HOP {
        parts.headers.remove(name);
    }
    Ok(Request::from_parts(
        parts,
        body.map_err(Into::into).boxed_unsync(),
    ))
}

/// A short text answer of the shim's own.
pub(crate) fn plain(status: StatusCode, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text))
        .map_err(|never| match never {})
        .boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    // Tells an answer of the shim from one of the guest.
    response
        .headers_mut()
        .insert("x-pando-shim", http::HeaderValue::from_static("1"));
    response
}

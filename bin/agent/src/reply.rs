//! Answers of the plain HTTP routes.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use pando_wire::channel::BoxError;
use serde_json::{Value, json};

/// Any body.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Any answer.
pub(crate) type Reply = Response<Body>;

/// A body without bytes.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// An answer without a body.
pub(crate) fn status(status: StatusCode) -> Reply {
    let mut reply = Response::new(empty());
    *reply.status_mut() = status;
    reply
}

/// A JSON document.
pub(crate) fn json(status: StatusCode, value: &Value) -> Reply {
    let bytes = Bytes::from(value.to_string());
    let length = HeaderValue::from(bytes.len());
    let mut reply = Response::new(full(bytes));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, length);
    reply
}

/// An error in the shape that E2B's clients read.
pub(crate) fn error(status: StatusCode, message: &str) -> Reply {
    json(
        status,
        &json!({ "code": status.as_u16(), "message": message }),
    )
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

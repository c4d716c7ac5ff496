//! The E2B door: its control routes are reserved, nothing answers behind it yet.
//!
//! Refusals have that API's own shape, `{"code","message"}` with the status as
//! the code, which E2B's clients read instead of the status line.

use crate::error::Refusal;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// Routes of E2B's control API.
#[cfg(test)]
pub(crate) const RESERVED: &[(&str, &str)] = &[
    ("POST", "/sandboxes"),
    ("GET", "/sandboxes"),
    ("GET", "/sandboxes/metrics"),
    ("GET", "/sandboxes/{id}"),
    ("DELETE", "/sandboxes/{id}"),
    ("POST", "/sandboxes/{id}/connect"),
    ("POST", "/sandboxes/{id}/resume"),
    ("POST", "/sandboxes/{id}/timeout"),
    ("POST", "/sandboxes/{id}/refreshes"),
    ("POST", "/sandboxes/{id}/pause"),
    ("POST", "/sandboxes/{id}/fork"),
    ("POST", "/sandboxes/{id}/snapshots"),
    ("PUT", "/sandboxes/{id}/network"),
    ("GET", "/sandboxes/{id}/metrics"),
    ("GET", "/sandboxes/{id}/logs"),
    ("POST", "/v2/sandboxes"),
    ("GET", "/v2/sandboxes"),
    ("POST", "/v2/sandboxes/{id}/connect"),
    ("GET", "/v2/sandboxes/{id}/logs"),
    ("GET", "/v2/templates"),
    ("PATCH", "/v2/templates/{id}"),
    ("POST", "/v2/templates/{id}/builds/{build}"),
    ("POST", "/v3/templates"),
    ("GET", "/templates"),
    ("DELETE", "/templates/{id}"),
    ("GET", "/templates/{id}/files/{hash}"),
    ("GET", "/templates/{id}/builds/{build}/status"),
    ("GET", "/templates/{id}/builds/{build}/logs"),
    ("GET", "/templates/aliases/{alias}"),
    ("GET", "/templates/{id}/tags"),
    ("POST", "/templates/tags"),
    ("DELETE", "/templates/tags"),
    ("GET", "/snapshots"),
    ("POST", "/volumes"),
    ("GET", "/volumes"),
    ("GET", "/volumes/{id}"),
    ("DELETE", "/volumes/{id}"),
    ("GET", "/secrets"),
    ("POST", "/secrets"),
    ("GET", "/secrets/{id}"),
    ("POST", "/secrets/{id}"),
    ("DELETE", "/secrets/{id}"),
    ("GET", "/teams"),
    ("GET", "/files"),
    ("POST", "/files"),
];

/// Writes a refusal as this door's clients expect it.
pub(crate) fn write(status: StatusCode, refusal: &Refusal) -> Response {
    let body = serde_json::json!({ "code": status.as_u16(), "message": refusal.message });
    (status, Json(body)).into_response()
}

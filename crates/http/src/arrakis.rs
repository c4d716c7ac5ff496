//! The Arrakis door: its routes are reserved, nothing answers behind it yet.
//!
//! Refusals have that API's own shape: `{"error":{"message"}}`, and a plain
//! `404 page not found` where there is no route.

use crate::error::Refusal;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// The routes of the Arrakis API, in both places its clients look.
#[cfg(test)]
pub(crate) const RESERVED: &[(&str, &str)] = &[
    ("GET", "/v1/health"),
    ("GET", "/v1/vms"),
    ("POST", "/v1/vms"),
    ("DELETE", "/v1/vms"),
    ("GET", "/v1/vms/{name}"),
    ("PATCH", "/v1/vms/{name}"),
    ("DELETE", "/v1/vms/{name}"),
    ("POST", "/v1/vms/{name}/snapshots"),
    ("POST", "/v1/vms/{name}/cmd"),
    ("POST", "/v1/vms/{name}/files"),
    ("GET", "/v1/vms/{name}/files"),
    ("GET", "/health"),
    ("GET", "/vms"),
    ("POST", "/vms"),
    ("DELETE", "/vms"),
    ("GET", "/vms/{name}"),
    ("PATCH", "/vms/{name}"),
    ("DELETE", "/vms/{name}"),
    ("POST", "/vms/{name}/snapshots"),
    ("POST", "/vms/{name}/cmd"),
    ("POST", "/vms/{name}/files"),
    ("GET", "/vms/{name}/files"),
];

/// Writes a refusal as this door's clients expect it.
pub(crate) fn write(status: StatusCode, refusal: &Refusal) -> Response {
    if status == StatusCode::NOT_FOUND {
        return (status, "404 page not found\n").into_response();
    }
    (
        status,
        Json(serde_json::json!({ "error": { "message": refusal.message } })),
    )
        .into_response()
}

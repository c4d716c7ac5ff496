//! A request as a span of its caller's trace, or of a new one.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode};
use tracing::Span;
use tracing::field::Empty;

/// Characters of a path in a trace: those of routes have fewer than a hundred.
const PATH_CHARACTERS: usize = 256;

/// The span of a request to one of the doors. What goes to a port of a guest is the guest's
/// traffic, and none.
pub(crate) fn request(method: &Method, path: &str, request_id: &str, headers: &HeaderMap) -> Span {
    let shown = path.char_indices().nth(PATH_CHARACTERS);
    let span = tracing::info_span!(
        target: pando_trace::TARGET,
        "request",
        otel.name = method.as_str(),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method.as_str(),
        http.route = Empty,
        http.response.status_code = Empty,
        url.path = shown.map_or(path, |(end, _)| &path[..end]),
        pando.request_id = request_id,
    );
    pando_trace::join(&span, headers);
    span
}

/// How it was answered.
pub(crate) fn answered(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

/// Names the request after its route.
pub(crate) async fn name_route(request: Request, next: Next) -> Response {
    if let Some(route) = request.extensions().get::<MatchedPath>() {
        let (method, route) = (request.method(), route.as_str());
        Span::current().record("http.route", route);
        pando_trace::rename(format!("{method} {route}"));
    }
    next.run(request).await
}

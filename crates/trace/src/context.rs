//! Whose trace a request is part of: W3C Trace Context, <https://www.w3.org/TR/trace-context/>.

use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use std::collections::HashMap;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Makes `span`, which has not been entered yet, part of the caller's trace, if its headers
/// name one; a `traceparent` that is malformed names none.
pub fn join(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() {
        return;
    }
    let caller = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // It fails where nobody listens to the span.
    let _ = span.set_parent(caller);
}

/// Names the current span anew: what it is may be known only when it is under way, and then
/// `otel.name` is read no more.
pub fn rename(name: String) {
    let span = Span::current();
    if !span.is_disabled() {
        span.context().span().update_name(name);
    }
}

/// The current span as a `traceparent` for others; none where nothing is traced.
pub fn traceparent() -> Option<String> {
    let span = Span::current();
    if span.is_disabled() {
        return None;
    }
    let mut fields = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut fields);
    fields.remove("traceparent")
}

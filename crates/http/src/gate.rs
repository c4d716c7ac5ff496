//! The outermost layer: who a request is for, whether it may pass, and how refusals are written.
//!
//! ```text
//!   request ─► id ─► dispatch (Host) ─► Origin ─► key ─► the door's routes
//!                        │                                     │
//!   response ◄── x-request-id ◄── refusals written in the door's dialect
//! ```
//!
//! Knows doors as [`Doors`] and keys as [`KeyCheck`], so that all of it is
//! tested without an engine.

use crate::arrakis::access::{self, Keyless};
use crate::dispatch::{Destination, Door, GuestTarget, dispatch};
use crate::error::{ApiError, Refusal};
use crate::host::{HostRules, RequestHost};
use crate::metrics::Metrics;
use crate::proxy::Connection;
use crate::{arrakis, e2b, proxy, trace};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use pando_engine::request::Caller;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;
use tower::ServiceExt;
use tracing::{Instrument as _, Span};

/// Carries the request's id in every response.
pub(crate) const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The header that E2B's and other clients put the key in.
pub(crate) const API_KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");

/// The one path that answers without a key.
const HEALTH_PATH: &str = "/healthz";

/// Who holds a key.
pub(crate) type KeyCheck = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Caller>> + Send + Sync>;

/// Takes a request into a guest, for the caller if a key came with it.
pub(crate) type GuestDoor =
    Arc<dyn Fn(GuestTarget, Option<Caller>, Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// What is behind the gate.
pub(crate) struct Doors {
    pub(crate) native: Router,
    pub(crate) arrakis: Router,
    /// Whom the Arrakis door lets in without a key.
    pub(crate) keyless: Keyless,
    /// Whether a connection may be a sandbox's; may take a moment.
    pub(crate) of_a_sandbox: fn(Connection) -> bool,
    pub(crate) guest: GuestDoor,
}

/// The gate.
#[derive(Clone)]
pub(crate) struct Gate {
    inner: Arc<Inner>,
}

struct Inner {
    rules: HostRules,
    key_check: KeyCheck,
    doors: Doors,
    metrics: Arc<Metrics>,
}

/// A request's id, for handlers that answer outside of a response.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// How refusals are written.
#[derive(Clone, Copy)]
enum Dialect {
    Native,
    Arrakis,
    E2b,
}

impl Gate {
    pub(crate) fn new(
        rules: HostRules,
        key_check: KeyCheck,
        doors: Doors,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                rules,
                key_check,
                doors,
                metrics,
            }),
        }
    }

    /// Serves one request; never fails and never panics.
    pub(crate) async fn serve(self, mut request: Request) -> Response {
        let started = Instant::now();
        let id = RequestId(format!("{:016x}", rand::random::<u64>()));
        request.extensions_mut().insert(id.clone());
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let host = RequestHost::of(request.uri(), request.headers());
        let destination = dispatch(&self.inner.rules, host.as_ref(), request.headers(), &path);
        let dialect = dialect_of(&destination);
        let span = match destination {
            Destination::Door(_) => trace::request(&method, &path, &id.0, request.headers()),
            _ => Span::none(),
        };
        let passing = self
            .pass(destination, host, request)
            .instrument(span.clone());
        let passing = AssertUnwindSafe(passing).catch_unwind();
        let response = match passing.await {
            Ok(response) => response,
            Err(_) => ApiError::Internal("a request handler panicked".to_owned()).into_response(),
        };
        let mut response = write_refusal(response, dialect, &id.0);
        if let Ok(value) = HeaderValue::from_str(&id.0) {
            response.headers_mut().insert(REQUEST_ID_HEADER, value);
        }
        trace::answered(&span, response.status());
        let status = response.status().as_u16();
        self.inner.metrics.answered(status);
        let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(request_id = id.0, %method, path, status, elapsed_ms, "request");
        response
    }

    async fn pass(
        &self,
        destination: Destination,
        host: Option<RequestHost>,
        request: Request,
    ) -> Response {
        let (Destination::Door(door), Some(host)) = (&destination, host) else {
            return self.pass_elsewhere(destination, request).await;
        };
        if changes_something(&request) && !self.inner.rules.allows_origin(request.headers(), &host)
        {
            return ApiError::ForeignOrigin.into_response();
        }
        match door {
            Door::Native => self
                .pass_native(request)
                .await
                .unwrap_or_else(ApiError::into_response),
            Door::Arrakis => self
                .pass_arrakis(request, &host)
                .await
                .unwrap_or_else(ApiError::into_response),
            // Nothing is behind these yet.
            Door::E2b | Door::Pages => {
                ApiError::NoRoute(request.uri().path().to_owned()).into_response()
            }
        }
    }

    async fn pass_elsewhere(&self, destination: Destination, request: Request) -> Response {
        match destination {
            Destination::Guest(target) => {
                let caller = self.caller(request.headers()).await.ok();
                (self.inner.doors.guest)(target, caller, request).await
            }
            Destination::BadGuestPort => proxy::bad_port(),
            Destination::ForeignHost | Destination::Door(_) => {
                ApiError::ForeignHost.into_response()
            }
        }
    }

    async fn pass_native(&self, mut request: Request) -> Result<Response, ApiError> {
        if request.uri().path() != HEALTH_PATH {
            let caller = self.caller(request.headers()).await?;
            request.extensions_mut().insert(caller);
        }
        let answered = self.inner.doors.native.clone().oneshot(request).await;
        Ok(answered.unwrap_or_else(|never| match never {}))
    }

    async fn pass_arrakis(
        &self,
        mut request: Request,
        host: &RequestHost,
    ) -> Result<Response, ApiError> {
        let headers = request.headers();
        let caller = match key_of(headers).or_else(|| access::basic_key(headers)) {
            Some(key) => self.holder(key).await?,
            None if access::names_somebody(headers) => {
                return Err(ApiError::Unauthorized(
                    "this is no API key, or two that differ",
                ));
            }
            None => {
                let caller = self.inner.doors.keyless.caller(&request, host)?;
                let connection = request.extensions().get().copied();
                self.check_account(connection).await?;
                caller
            }
        };
        request.extensions_mut().insert(caller);
        let answered = self.inner.doors.arrakis.clone().oneshot(request).await;
        Ok(answered.unwrap_or_else(|never| match never {}))
    }

    /// Refuses what took over a shim: it is a program of this machine too, and no user's.
    async fn check_account(&self, connection: Option<Connection>) -> Result<(), ApiError> {
        let check = self.inner.doors.of_a_sandbox;
        let theirs = tokio::task::spawn_blocking(move || connection.is_none_or(check)).await;
        match theirs {
            Ok(false) => Ok(()),
            _ => Err(ApiError::Unauthorized(
                "a request of an account of sandboxes needs an API key",
            )),
        }
    }

    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let key = key_of(headers).ok_or(ApiError::Unauthorized("this needs an API key"))?;
        self.holder(key).await
    }

    async fn holder(&self, key: String) -> Result<Caller, ApiError> {
        let holder = (self.inner.key_check)(key).await;
        holder.ok_or(ApiError::Unauthorized("nobody holds this API key"))
    }
}

fn dialect_of(destination: &Destination) -> Dialect {
    match destination {
        Destination::Door(Door::Arrakis) => Dialect::Arrakis,
        Destination::Door(Door::E2b) | Destination::Guest(_) | Destination::BadGuestPort => {
            Dialect::E2b
        }
        Destination::Door(Door::Native | Door::Pages) | Destination::ForeignHost => Dialect::Native,
    }
}

/// Whether a page of another origin must not send this.
fn changes_something(request: &Request) -> bool {
    let safe = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    // HTTP/1.1 upgrades; an HTTP/2 WebSocket is a CONNECT, which is not safe.
    !safe || request.headers().contains_key(header::UPGRADE)
}

/// The key a request carries. Two that differ are none.
fn key_of(headers: &HeaderMap) -> Option<String> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let own = headers
        .get(API_KEY_HEADER)
        .and_then(|value| value.to_str().ok())
        .map(str::trim);
    match (bearer, own) {
        (Some(one), Some(other)) if one != other => None,
        (bearer, own) => bearer.or(own).map(str::to_owned),
    }
}

fn write_refusal(mut response: Response, dialect: Dialect, request_id: &str) -> Response {
    let Some(refusal) = response.extensions_mut().remove::<Refusal>() else {
        return response;
    };
    let status = response.status();
    // A refusal for a time is no fault.
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        tracing::error!(
            request_id,
            status = status.as_u16(),
            error = refusal.chain,
            "request failed"
        );
    }
    let mut written = match dialect {
        Dialect::Native => refusal.write(status, request_id),
        Dialect::Arrakis => arrakis::write(status, &refusal),
        Dialect::E2b => e2b::write(status, &refusal),
    };
    // What the refusing layer knew, such as the `Allow` of a 405.
    for name in [header::ALLOW, header::RETRY_AFTER] {
        if let Some(value) = response.headers_mut().remove(&name) {
            written.headers_mut().insert(name, value);
        }
    }
    if status == StatusCode::UNAUTHORIZED {
        written
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    written
}

/// The answer of a router that has no such path.
pub(crate) async fn no_route(request: Request<Body>) -> ApiError {
    ApiError::NoRoute(request.uri().path().to_owned())
}

/// The answer of a router that has the path and not the method.
pub(crate) async fn no_method(request: Request<Body>) -> ApiError {
    let (path, method) = (
        request.uri().path().to_owned(),
        request.method().to_string(),
    );
    ApiError::MethodNotAllowed { path, method }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
pub(crate) mod tests;

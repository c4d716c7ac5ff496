//! Ports inside the guest: HTTP with connections that are kept, and plain TCP.
//!
//! ```text
//!   daemon ─ /port/8080/… ─► HTTP client ─► tunnel ─┐
//!   daemon ─ /tcp/5901 ────────────────────────────┤ `data` ─► agent ─► 127.0.0.1
//! ```
//! What a server in the guest says is parsed here, in its sandbox's own jailed process; the
//! daemon sees HTTP/2 frames of its shim. Nothing is buffered but what flow control lets be
//! on its way.

mod http2;
pub(crate) mod protocol;
mod tunnel;

use crate::passthrough::Body;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version, header,
};
use http_body_util::{BodyExt as _, Empty};
use http2::Http2;
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pando_wire::channel::Connection;
use pando_wire::tunnel as bodies;
use protocol::{
    ANSWER, BUSY, CLOSED, FAILED, GONE, H2, HOST, HTTP, PROTOCOL, STALLED, TCP, UPGRADED,
};
use std::time::Duration;
use tunnel::{Dialler, TunnelError};

/// How long a connection waits for the next request. Node closes its side after 5 s: a
/// request must not meet that.
const IDLE_TIME: Duration = Duration::from_secs(4);

/// Connections that wait, for each port: as many as a browser opens, a few times over.
const MAX_IDLE: usize = 32;

/// A guest's answer may have a head of this size, as may a client's request.
const HEAD_BYTES: usize = 64 << 10;

/// Headers of one connection, which must not travel on.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The ports of one guest, for as long as its VM runs.
pub(crate) struct Ports {
    http1: Client<Dialler, Body>,
    http2: Http2,
    dialler: Dialler,
}

/// Whether a request is for a port.
pub(crate) fn takes(path: &str) -> bool {
    path.starts_with(HTTP) || path.starts_with(TCP)
}

/// The answer when there is no VM to ask.
pub(crate) fn gone() -> Response<Body> {
    answer(GONE)
}

/// The answer when the VM stands still.
pub(crate) fn stalled() -> Response<Body> {
    answer(STALLED)
}

impl Ports {
    /// Over the channel's `data` port.
    pub(crate) fn new(data: Connection) -> Self {
        let dialler = Dialler::new(data);
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(MAX_IDLE)
            .set_host(false)
            .http1_max_buf_size(HEAD_BYTES)
            // Servers that people write by hand compare names as they are mostly written.
            .http1_title_case_headers(true);
        Self {
            http1: builder.build(dialler.clone()),
            http2: Http2::default(),
            dialler,
        }
    }

    /// Takes a request of the daemon to a port.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request
            .uri()
            .path_and_query()
            .map_or("", |path| path.as_str());
        if let Some(port) = path.strip_prefix(TCP).and_then(|port| port.parse().ok()) {
            return self.tcp(port, request).await;
        }
        let Some((port, path)) = path.strip_prefix(HTTP).and_then(split) else {
            return answer(FAILED);
        };
        let uri = guest_uri(port, path);
        let protocol = request.headers().get(PROTOCOL).cloned();
        let answered = match protocol {
            Some(protocol) if protocol == H2 => self.http2(port, &uri, request).await,
            Some(protocol) => self.upgrade(uri, protocol, request).await,
            None => self.http1(uri, request).await,
        };
        answered.unwrap_or_else(|error| answer(error.word()))
    }

    async fn tcp(&self, port: u16, request: Request<Incoming>) -> Response<Body> {
        let body = request.into_body().map_err(Into::into).boxed_unsync();
        match self.dialler.open(port, body).await {
            Ok(inside) => Response::new(inside.boxed_unsync()),
            Err(error) => answer(error.word()),
        }
    }

    async fn http1(
        &self,
        uri: Uri,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, PortError> {
        let mut request = inward(uri, request);
        *request.version_mut() = Version::HTTP_11;
        Ok(outward(self.http1.request(request).await?))
    }

    async fn http2(
        &self,
        port: u16,
        uri: &Uri,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, PortError> {
        let mut request = inward(uri.clone(), request);
        *request.version_mut() = Version::HTTP_2;
        // Over HTTP/2 the authority is the host.
        let host = request.headers_mut().remove(header::HOST);
        let of_host = host.and_then(|host| with_authority(uri, host.as_bytes()));
        *request.uri_mut() = of_host.unwrap_or_else(|| uri.clone());
        let mut sender = self.http2.sender(port, &self.dialler).await?;
        Ok(outward(sender.send_request(request).await?))
    }

    /// Asks the server to switch protocols; if it does, its bytes follow in both bodies.
    async fn upgrade(
        &self,
        uri: Uri,
        protocol: HeaderValue,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, PortError> {
        let (parts, from_client) = inward(uri, request).into_parts();
        let nothing = Empty::<Bytes>::new().map_err(|never| match never {});
        let mut request = Request::from_parts(parts, nothing.boxed_unsync());
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
        let mut answered = self.http1.request(request).await?;
        if answered.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(outward(answered));
        }
        let switched = hyper::upgrade::on(&mut answered);
        let mut head = outward(answered);
        let Ok(switched) = switched.await else {
            return Ok(answer(FAILED));
        };
        let (reader, writer) = tokio::io::split(TokioIo::new(switched));
        // Ends with either side; the other is told by its own body.
        tokio::spawn(async move { drop(bodies::deliver(from_client, writer).await) });
        *head.status_mut() = StatusCode::OK;
        head.headers_mut()
            .insert(ANSWER, HeaderValue::from_static(UPGRADED));
        Ok(head.map(|_| bodies::outgoing(reader)))
    }
}

/// Port and path of `PORT/path`.
fn split(text: &str) -> Option<(u16, &str)> {
    let slash = text.find('/')?;
    Some((text[..slash].parse().ok()?, &text[slash..]))
}

/// What the HTTP client is asked for. It uses the authority to find a kept connection only.
fn guest_uri(port: u16, path: &str) -> Uri {
    let uri = Uri::builder()
        .scheme("http")
        .authority(format!("localhost:{port}"))
        .path_and_query(path);
    // The path came out of a URI.
    uri.build().unwrap_or_default()
}

/// The same path, under another authority.
fn with_authority(uri: &Uri, authority: &[u8]) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.authority = Some(authority.try_into().ok()?);
    Uri::from_parts(parts).ok()
}

/// The request as the server in the guest is to see it.
fn inward(uri: Uri, request: Request<Incoming>) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    parts.uri = uri;
    parts.extensions = http::Extensions::new();
    strip(&mut parts.headers);
    parts.headers.remove(PROTOCOL);
    if let Some(host) = parts.headers.remove(HOST) {
        parts.headers.insert(header::HOST, host);
    }
    Request::from_parts(parts, body.map_err(Into::into).boxed_unsync())
}

/// The server's answer as the daemon may see it.
fn outward(answered: Response<Incoming>) -> Response<Body> {
    let (mut parts, body) = answered.into_parts();
    // A switch that nobody asked for.
    if parts.status.is_informational() && parts.status != StatusCode::SWITCHING_PROTOCOLS {
        return answer(FAILED);
    }
    parts.extensions = http::Extensions::new();
    parts.version = Version::HTTP_2;
    strip(&mut parts.headers);
    // A guest must not be able to speak for its shim.
    parts.headers.remove(ANSWER);
    Response::from_parts(parts, body.map_err(Into::into).boxed_unsync())
}

/// Takes out what speaks of one connection, and what its header names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// An answer of the shim's own.
fn answer(word: &'static str) -> Response<Body> {
    let nothing = Empty::<Bytes>::new().map_err(|never| match never {});
    let mut response = Response::new(nothing.boxed_unsync());
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
        .headers_mut()
        .insert(ANSWER, HeaderValue::from_static(word));
    response
}

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    /// There is no connection.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// It does not speak HTTP/2, or broke off.
    #[error(transparent)]
    Http2(#[from] hyper::Error),
    /// There is no connection, or it does not speak HTTP/1.1, or broke off.
    #[error(transparent)]
    Http1(#[from] ClientError),
}

impl PortError {
    fn word(&self) -> &'static str {
        match self {
            Self::Tunnel(error) => error.word(),
            Self::Http2(_) => FAILED,
            Self::Http1(error) => {
                let mut causes =
                    std::iter::successors(Some(error as &dyn std::error::Error), |error| {
                        error.source()
                    });
                let tunnel = causes.find_map(|cause| cause.downcast_ref::<TunnelError>());
                tunnel.map_or(FAILED, TunnelError::word)
            }
        }
    }
}

impl TunnelError {
    fn word(&self) -> &'static str {
        match self {
            Self::Closed => CLOSED,
            Self::Busy => BUSY,
            Self::Gone(_) => GONE,
        }
    }
}

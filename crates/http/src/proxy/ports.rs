//! Servers in guests: every port but the agent's.

use super::answer::{Answerer, Trouble};
use super::headers::{clean_answer, lists, server_headers};
use super::{Peer, guest_body, pass};
use crate::error::ApiError;
use crate::urls::Urls;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use pando_engine::request::Caller;
use pando_engine::{Engine, GuestBody, GuestPort, Pass, PortError, Protocol, Refused, tunnel};
use pando_types::{SandboxId, SandboxState};
use tokio::sync::oneshot;

pub(super) async fn forward(
    engine: &Engine,
    urls: &Urls,
    answerer: &Answerer,
    (sandbox, port): (&SandboxId, u16),
    caller: Option<Caller>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    if parts.method == Method::CONNECT {
        let (method, path) = (parts.method.to_string(), "/".to_owned());
        return ApiError::MethodNotAllowed { path, method }.into_response();
    }
    let shown = pass::take(&mut parts.uri, &mut parts.headers);
    let tokens = shown.tokens;
    let pass = Pass { caller, tokens };
    let allowed = engine.guest_port(sandbox, port, &pass);
    let guest = match allowed.await {
        Ok(guest) => guest,
        Err(refused) => return refuse(answerer, refused),
    };
    let host = host_of(&parts);
    let https = host
        .as_ref()
        .and_then(|host| host.to_str().ok())
        .is_some_and(|host| urls.is_https(host));
    if let Some(cookie) = shown.in_query.and_then(|token| pass::cookie(&token, https))
        && matches!(parts.method, Method::GET | Method::HEAD)
        && !parts.headers.contains_key(header::UPGRADE)
    {
        return without_token(&parts, cookie);
    }
    let inward = Inward { host, https };
    match inward.send(&guest, parts, body).await {
        Ok(response) => response,
        Err(PortError::Gone) => answerer.answer(gone(engine.state_of(sandbox))),
        Err(error) => answerer.answer(trouble(&error)),
    }
}

/// Sends a browser on to the same address, without the token and with the cookie.
fn without_token(parts: &Parts, cookie: HeaderValue) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // One slash: with two the browser would take what follows for a host.
    let path = format!("/{}", path.trim_start_matches('/'));
    let headers = response.headers_mut();
    headers.insert(header::SET_COOKIE, cookie);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    if let Ok(path) = path.try_into() {
        headers.insert(header::LOCATION, path);
    }
    response
}

/// The host as its client wrote it; over HTTP/2 it is the authority.
fn host_of(parts: &Parts) -> Option<HeaderValue> {
    let in_header = parts.headers.get(header::HOST).cloned();
    in_header.or_else(|| parts.uri.authority()?.as_str().try_into().ok())
}

/// How a request goes in.
struct Inward {
    host: Option<HeaderValue>,
    https: bool,
}

impl Inward {
    async fn send(
        &self,
        guest: &GuestPort,
        mut parts: Parts,
        body: Body,
    ) -> Result<Response, PortError> {
        let switching = parts.extensions.remove::<OnUpgrade>();
        let protocol = protocol_of(&parts);
        match (protocol, switching) {
            (Protocol::Upgrade(to), Some(switching)) => {
                self.switch(guest, parts, to, switching).await
            }
            (Protocol::Upgrade(_), None) => Err(PortError::Failed),
            (protocol, _) => {
                let request = self.request(&parts, guest_body(body));
                let answered = guest.request(self.host.clone(), protocol, request).await?;
                Ok(outward(answered))
            }
        }
    }

    /// Both sides of a WebSocket, or of whatever else the two agree on.
    async fn switch(
        &self,
        guest: &GuestPort,
        parts: Parts,
        to: HeaderValue,
        switching: OnUpgrade,
    ) -> Result<Response, PortError> {
        let (reader, coming) = oneshot::channel();
        let from_client = tunnel::outgoing_later(async move { coming.await.ok() });
        let request = self.request(&parts, from_client);
        let answered = guest
            .request(self.host.clone(), Protocol::Upgrade(to.clone()), request)
            .await?;
        if answered.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(outward(answered));
        }
        let (mut head, from_server) = answered.into_parts();
        clean_answer(&mut head.headers);
        head.extensions = http::Extensions::new();
        head.headers
            .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        head.headers.insert(header::UPGRADE, to);
        tokio::spawn(async move {
            // A client that has gone meanwhile: dropping both bodies tells the guest.
            let Ok(client) = switching.await else { return };
            let (client_reader, client_writer) = tokio::io::split(TokioIo::new(client));
            if reader.send(client_reader).is_ok() {
                // Ends with either side; the other is told by its own body.
                drop(tunnel::deliver(from_server, client_writer).await);
            }
        });
        Ok(Response::from_parts(head, Body::empty()))
    }

    fn request(&self, parts: &Parts, body: GuestBody) -> http::Request<GuestBody> {
        let peer = parts.extensions.get::<Peer>().copied();
        let mut request = http::Request::new(body);
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = parts.uri.clone();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() =
            server_headers(&parts.headers, self.host.as_ref(), peer, self.https);
        request
    }
}

/// What the server is spoken to in: gRPC needs HTTP/2, and few other servers have it without TLS.
fn protocol_of(parts: &Parts) -> Protocol {
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    let grpc = content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if parts.version == Version::HTTP_2 && grpc {
        return Protocol::Http2;
    }
    let asked = lists(&parts.headers, &header::CONNECTION, "upgrade");
    match parts.headers.get(header::UPGRADE) {
        // An offer to speak HTTP/2, which may be passed over.
        Some(to) if asked && parts.version == Version::HTTP_11 && to != "h2c" => {
            Protocol::Upgrade(to.clone())
        }
        _ => Protocol::Http1,
    }
}

fn outward(answered: http::Response<GuestBody>) -> Response {
    let (mut parts, body) = answered.into_parts();
    clean_answer(&mut parts.headers);
    // A guest must not be able to speak for the gate.
    parts.extensions = http::Extensions::new();
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Body::new(body))
}

fn refuse(answerer: &Answerer, refused: Refused) -> Response {
    answerer.answer(match refused {
        Refused::Unknown => Trouble::Unknown,
        Refused::Forbidden => Trouble::Forbidden,
        Refused::Down(state) => Trouble::Down(state),
        Refused::Failed(error) => return ApiError::from(error).into_response(),
    })
}

fn trouble(error: &PortError) -> Trouble {
    match error {
        PortError::Closed => Trouble::Closed,
        PortError::Busy => Trouble::Busy,
        PortError::Failed | PortError::Gone => Trouble::Failed,
        PortError::Stalled => Trouble::Stalled,
    }
}

/// Why a VM went away in the middle of a request.
fn gone(state: Option<SandboxState>) -> Trouble {
    match state {
        None => Trouble::Unknown,
        // It was rolled back, and runs on.
        Some(SandboxState::Running) => Trouble::Failed,
        Some(state) => Trouble::Down(state),
    }
}

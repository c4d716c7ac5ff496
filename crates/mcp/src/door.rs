//! `/mcp` of the daemon: streamable HTTP.
//!
//! The daemon's gate has checked key, `Host` and `Origin` before a request comes
//! here. The tools ask the daemon's own `/v1` over loopback with the request's key.

use crate::server::{Link, Server};
use crate::sessions::{self, Owner, Sessions};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::{HeaderMap, StatusCode, header};
use pando_client::{Client, ClientError};
use rmcp::model::Extensions;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The largest message: a file to upload, in base64, and its envelope.
const MESSAGE_BYTES: usize = 4 << 20;

/// Of a message that is larger so much is read and thrown away: many clients send all of it
/// before they read that it was refused.
const THROWN_AWAY_BYTES: usize = 64 << 20;

/// How long a message may take on its way: the largest at half a megabit a second.
const MESSAGE_DEADLINE: Duration = Duration::from_secs(64);

/// How often a silent stream says that it is there: also how soon a client that is gone is
/// noticed, since that takes a write.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

const SESSION_HEADER: &str = "mcp-session-id";

const OWN_HEADER: &str = "x-api-key";

#[derive(Clone)]
struct Door {
    service: StreamableHttpService<Server, Sessions>,
    sessions: Arc<Sessions>,
}

/// The route `/mcp`. The daemon answers at `url`; `ending` ends all sessions.
pub fn router(url: String, ending: CancellationToken) -> Router {
    route(url, ending, Sessions::new(sessions::IDLE))
}

fn route(url: String, ending: CancellationToken, sessions: Sessions) -> Router {
    let daemon: Arc<dyn Link> = Arc::new(Daemon { url });
    let sessions = Arc::new(sessions);
    let config = StreamableHttpServerConfig::default()
        // The gate knows the daemon's names, this crate does not.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(MESSAGE_BYTES)
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_cancellation_token(ending);
    let service = StreamableHttpService::new(
        move || Ok(Server::new(Arc::clone(&daemon))),
        Arc::clone(&sessions),
        config,
    );
    Router::new()
        .route("/mcp", any(serve))
        .with_state(Door { service, sessions })
}

async fn serve(State(door): State<Door>, mut request: Request) -> Response {
    hide_keys(request.headers_mut());
    let Some(key) = key_of(request.headers()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let owner = Owner::of(key);
    if let Some(session) = request.headers().get(SESSION_HEADER) {
        let session = session.to_str().unwrap_or_default();
        // Whoever learns the id of another's session must not read from it.
        if !door.sessions.is_of(session, owner) {
            return (StatusCode::NOT_FOUND, "there is no such session").into_response();
        }
    }
    let (parts, body) = request.into_parts();
    let message = match tokio::time::timeout(MESSAGE_DEADLINE, message(body)).await {
        Ok(Some(message)) => message,
        Ok(None) => {
            let why = format!("a message has at most {MESSAGE_BYTES} bytes");
            return (StatusCode::PAYLOAD_TOO_LARGE, why).into_response();
        }
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the message did not end").into_response(),
    };
    let request = Request::from_parts(parts, Body::from(message));
    let response = sessions::owned_by(owner, door.service.handle(request)).await;
    // The library has one status for whatever a session could not be begun for.
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR && !door.sessions.has_room(owner) {
        let wait = [(header::RETRY_AFTER, "60")];
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            wait,
            "there are too many sessions",
        )
            .into_response();
    }
    response.map(Body::new)
}

/// The whole of a message, unless it is too large. One that breaks off is what came of it,
/// and no JSON.
async fn message(body: Body) -> Option<Bytes> {
    let (mut chunks, mut kept, mut length) = (body.into_data_stream(), BytesMut::new(), 0);
    while let Some(Ok(chunk)) = chunks.next().await {
        length += chunk.len();
        if length > THROWN_AWAY_BYTES {
            break;
        }
        if length <= MESSAGE_BYTES {
            kept.extend_from_slice(&chunk);
        }
    }
    (length <= MESSAGE_BYTES).then(|| kept.freeze())
}

/// Keeps keys out of logs, whoever logs a request from here on.
fn hide_keys(headers: &mut HeaderMap) {
    for (name, value) in headers.iter_mut() {
        if name == OWN_HEADER || name == header::AUTHORIZATION {
            value.set_sensitive(true);
        }
    }
}

/// The daemon behind this door.
struct Daemon {
    url: String,
}

impl Link for Daemon {
    fn client(&self, extensions: &Extensions) -> Result<Client, ClientError> {
        let parts = extensions.get::<http::request::Parts>();
        Client::new(&self.url, parts.and_then(|parts| key_of(&parts.headers)))
    }
}

/// The key that the gate let pass: two that differ do not get here.
fn key_of(headers: &HeaderMap) -> Option<&str> {
    let own = headers
        .get(OWN_HEADER)
        .and_then(|value| value.to_str().ok());
    let bearer = || {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    };
    own.or_else(bearer).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt as _;

    fn request(key: &str, session: Option<&str>, body: &str) -> Request {
        let mut request = http::Request::post("/mcp")
            .header("host", "pando.example")
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(session) = session {
            request = request.header(SESSION_HEADER, session);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    }

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;

    async fn begin(router: &Router, key: &str) -> String {
        let response = router
            .clone()
            .oneshot(request(key, None, INITIALIZE))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.headers()[SESSION_HEADER]
            .to_str()
            .unwrap()
            .to_owned()
    }

    #[tokio::test]
    async fn a_session_is_its_keys_alone() {
        let router = router("http://127.0.0.1:1".to_owned(), CancellationToken::new());
        let session = begin(&router, "one").await;
        let status = async |key| {
            let asked = request(key, Some(&session), LIST);
            router.clone().oneshot(asked).await.unwrap().status()
        };
        assert_eq!(status("one").await, StatusCode::OK);
        assert_eq!(status("two").await, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn the_session_unused_for_longest_makes_room() {
        let router = router("http://127.0.0.1:1".to_owned(), CancellationToken::new());
        let first = begin(&router, "one").await;
        let others = begin(&router, "two").await;
        for _ in 0..sessions::SESSIONS_PER_KEY {
            begin(&router, "one").await;
        }
        let status = async |key, session| {
            let asked = request(key, Some(session), LIST);
            router.clone().oneshot(asked).await.unwrap().status()
        };
        assert_eq!(status("one", &*first).await, StatusCode::NOT_FOUND);
        assert_eq!(
            status("two", &*others).await,
            StatusCode::OK,
            "another key's is not touched"
        );
    }

    #[tokio::test]
    async fn a_session_without_use_ends() {
        let sessions = Sessions::new(Duration::from_millis(50));
        let router = route(
            "http://127.0.0.1:1".to_owned(),
            CancellationToken::new(),
            sessions,
        );
        let session = begin(&router, "one").await;
        let mut listening = request("one", Some(&session), "");
        *listening.method_mut() = http::Method::GET;
        let response = router.clone().oneshot(listening).await.unwrap();
        // Unless it has ended already, its stream tells when.
        if response.status() == StatusCode::OK {
            let ended = axum::body::to_bytes(response.into_body(), usize::MAX).await;
            assert!(ended.is_ok());
        }
        loop {
            let asked = request("one", Some(&session), LIST);
            let status = router.clone().oneshot(asked).await.unwrap().status();
            if status == StatusCode::NOT_FOUND {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn there_is_an_end_to_sessions() {
        let router = router("http://127.0.0.1:1".to_owned(), CancellationToken::new());
        for number in 0..sessions::SESSIONS {
            let key = format!("key {}", number / sessions::SESSIONS_PER_KEY);
            begin(&router, &key).await;
        }
        let one_more = request("another", None, INITIALIZE);
        let response = router.clone().oneshot(one_more).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        // Whoever has some may change them for others.
        begin(&router, "key 0").await;
    }

    #[test]
    fn a_key_is_found_in_either_header() {
        let headers = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            headers
        };
        assert_eq!(key_of(&headers("x-api-key", "k")), Some("k"));
        assert_eq!(key_of(&headers("authorization", "bearer k")), Some("k"));
        assert_eq!(key_of(&headers("authorization", "Basic k")), None);
    }
}

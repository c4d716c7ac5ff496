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
use http::{HeaderMap, StatusCode, header};
use pando_client::{Client, ClientError};
use rmcp::model::Extensions;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The largest message: a file to upload, in base64, and its envelope.
const MESSAGE_BYTES: usize = 4 << 20;

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
    let daemon: Arc<dyn Link> = Arc::new(Daemon { url });
    let sessions = Arc::new(Sessions::default());
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
    let response = sessions::owned_by(owner, door.service.handle(request)).await;
    response.map(Body::new)
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

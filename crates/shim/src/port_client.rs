//! The daemon's way to ports in the guest: a second connection to the shim.
//!
//! Bulk data on it cannot get into the way of calls on the first.

use crate::client::{Body, ClientError};
use crate::ports::protocol::{
    ANSWER, BUSY, CLOSED, GONE, H2, HOST, HTTP, PROTOCOL, STALLED, TCP, UPGRADED,
};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

/// Bytes of one stream that the daemon holds of what its reader does not take. On a busy
/// machine the two processes run in turns of some milliseconds: one turn's bytes.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// One HTTP/2 DATA frame. Each costs a system call or two on both sides.
const FRAME_BYTES: u32 = 64 << 10;

/// All streams together: more than there are connections into a guest, so that none that is
/// not read keeps another waiting.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * 256;

/// The head of a guest's answer, as large as its shim lets through.
const HEAD_BYTES: u32 = 64 << 10;

/// Why a port did not answer.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Nothing listens.
    #[error("the port is not open")]
    Closed,
    /// There are as many connections into the sandbox as there may be.
    #[error("the sandbox has too many connections")]
    Busy,
    /// The server broke off, or does not speak HTTP.
    #[error("the server at the port does not answer in HTTP")]
    Failed,
    /// The VM stands still, since the host cannot write for it.
    #[error("the sandbox stands still until the host's disk has room")]
    Stalled,
    /// The VM, or its shim, is gone.
    #[error("the sandbox went away")]
    Gone,
}

/// What the server in the guest is spoken to in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 from the first byte on.
    Http2,
    /// HTTP/1.1, to be switched to this.
    Upgrade(HeaderValue),
}

/// The connection, once it is needed.
#[derive(Debug)]
pub(crate) struct PortClient {
    socket: PathBuf,
    sender: Mutex<Option<SendRequest<Body>>>,
}

impl PortClient {
    pub(crate) fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_path_buf(),
            sender: Mutex::new(None),
        }
    }

    /// Sends an HTTP request to a port. An answer with status 101 means that the protocol was
    /// switched: the bodies are its bytes.
    ///
    /// # Errors
    /// See [`PortError`].
    pub(crate) async fn http(
        &self,
        port: u16,
        host: Option<HeaderValue>,
        protocol: Protocol,
        request: Request<Body>,
    ) -> Result<Response<Body>, PortError> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        // `*`, of an `OPTIONS` for the server as a whole, is no path.
        let path = if path.starts_with('/') { path } else { "/" };
        parts.uri = uri(format!("{HTTP}{port}{path}"))?;
        let (of_host, of_protocol) = (parts.headers.remove(HOST), parts.headers.remove(PROTOCOL));
        drop((of_host, of_protocol));
        if let Some(host) = host {
            parts.headers.insert(HOST, host);
        }
        match protocol {
            Protocol::Http1 => {}
            Protocol::Http2 => drop(parts.headers.insert(PROTOCOL, HeaderValue::from_static(H2))),
            Protocol::Upgrade(to) => drop(parts.headers.insert(PROTOCOL, to)),
        }
        self.send(Request::from_parts(parts, body)).await
    }

    /// A TCP connection to a port: `body` is the one direction, the answer the other.
    ///
    /// # Errors
    /// See [`PortError`].
    pub(crate) async fn tcp(&self, port: u16, body: Body) -> Result<Body, PortError> {
        let request = Request::post(uri(format!("{TCP}{port}"))?).body(body);
        let request = request.map_err(|_| PortError::Failed)?;
        Ok(self.send(request).await?.into_body())
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, PortError> {
        let mut sender = self.sender().await.map_err(|_| PortError::Gone)?;
        sender.ready().await.map_err(|_| PortError::Gone)?;
        let answered = sender.send_request(request).await;
        let mut answered = answered.map_err(|_| PortError::Gone)?;
        let word = answered.headers_mut().remove(ANSWER);
        match word.as_ref().map(|word| word.to_str().unwrap_or_default()) {
            None => {}
            Some(UPGRADED) => *answered.status_mut() = StatusCode::SWITCHING_PROTOCOLS,
            Some(word) => return Err(error_of(word)),
        }
        Ok(answered.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    async fn sender(&self) -> Result<SendRequest<Body>, ClientError> {
        let mut sender = self.sender.lock().await;
        if let Some(sender) = sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(ClientError::Connect)?;
        let (connected, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        // Ends when the shim goes; every request then fails by itself.
        tokio::spawn(async move { drop(connection.await) });
        *sender = Some(connected.clone());
        Ok(connected)
    }
}

fn uri(path: String) -> Result<Uri, PortError> {
    let uri = Uri::builder().scheme("http").authority("shim");
    // The path was a client's: with the prefix it may have become too long.
    uri.path_and_query(path)
        .build()
        .map_err(|_| PortError::Failed)
}

fn error_of(word: &str) -> PortError {
    match word {
        CLOSED => PortError::Closed,
        BUSY => PortError::Busy,
        STALLED => PortError::Stalled,
        GONE => PortError::Gone,
        _ => PortError::Failed,
    }
}

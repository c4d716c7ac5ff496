//! The daemon's side of a shim's socket.

use crate::port_client::PortClient;
pub use crate::port_client::{PortError, Protocol};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pando_types::limits;
use pando_wire::shim::ShimClient as ConnectClient;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::UnixStream;

/// A body of any origin.
pub type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A shim's services over one connection; cheap to clone.
pub type Rpc = ConnectClient<connectrpc::client::ServiceTransport<Sender>>;

/// The same windows as the shim's own side.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// A connection to one shim.
#[derive(Clone)]
pub struct ShimClient {
    sender: Sender,
    ports: Arc<PortClient>,
    /// The typed services.
    pub rpc: Rpc,
}

impl std::fmt::Debug for ShimClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ShimClient")
    }
}

/// Why a shim cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("cannot reach the sandbox's shim")]
    Connect(#[source] std::io::Error),
    /// It listens but does not speak HTTP/2, or went away.
    #[error("the sandbox's shim went away")]
    Http(#[from] hyper::Error),
    /// The request cannot be expressed.
    #[error("the request is malformed")]
    Request(#[from] http::Error),
}

impl ShimClient {
    /// Connects to a shim's socket.
    ///
    /// # Errors
    /// Nobody listens there, or not a shim.
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(ClientError::Connect)?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        // Ends when the shim goes; every request then fails by itself.
        tokio::spawn(async move { drop(connection.await) });
        let sender = Sender(sender);
        let message =
            usize::try_from(2 * limits::EXEC_OUTPUT_BYTES).unwrap_or(usize::MAX) + (1 << 20);
        let config = connectrpc::client::ClientConfig::new(Uri::from_static("http://shim"))
            .with_default_max_message_size(message);
        let rpc = Rpc::new(
            connectrpc::client::ServiceTransport::new(sender.clone()),
            config,
        );
        let ports = Arc::new(PortClient::new(socket));
        Ok(Self { sender, ports, rpc })
    }

    /// Passes a raw request to the guest's user service; `request` has the guest's own path.
    ///
    /// # Errors
    /// The shim or the guest went away before it answered.
    pub async fn guest(&self, request: Request<Body>) -> Result<Response<Body>, ClientError> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = Uri::builder()
            .scheme("http")
            .authority("shim")
            .path_and_query(format!("/guest{path}"))
            .build()?;
        let mut sender = self.sender.0.clone();
        sender.ready().await?;
        let response = sender
            .send_request(Request::from_parts(parts, body))
            .await?;
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    /// Sends an HTTP request to a port in the guest; `host` is the `Host` that its server is to
    /// see. An answer with status 101 means that the protocol was switched: the bodies are its
    /// bytes.
    ///
    /// # Errors
    /// See [`PortError`].
    pub async fn port(
        &self,
        port: u16,
        host: Option<HeaderValue>,
        protocol: Protocol,
        request: Request<Body>,
    ) -> Result<Response<Body>, PortError> {
        self.ports.http(port, host, protocol, request).await
    }

    /// A TCP connection to a port in the guest: `body` is the one direction, the answer the
    /// other. A body that breaks off is a reset.
    ///
    /// # Errors
    /// See [`PortError`].
    pub async fn port_tcp(&self, port: u16, body: Body) -> Result<Body, PortError> {
        self.ports.tcp(port, body).await
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.0.is_closed()
    }
}

/// An HTTP/2 connection as a service.
#[derive(Clone)]
pub struct Sender(SendRequest<Body>);

impl tower::Service<Request<connectrpc::client::ClientBody>> for Sender {
    type Response = Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<connectrpc::client::ClientBody>) -> Self::Future {
        Box::pin(
            self.0
                .send_request(request.map(|body| body.map_err(Into::into).boxed_unsync())),
        )
    }
}

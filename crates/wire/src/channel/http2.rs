//! HTTP/2 over a port's byte stream: windows and limits, chosen so that one
//! stalled consumer holds up nobody else.

use std::sync::Arc;

use bytes::Bytes;
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;

use super::port::ByteStream;

/// Streams open at once on one port: 256 execs, downloads, terminals.
const MAX_STREAMS: u32 = 256;

/// Bytes of one stream that may be on their way unasked. At 2 ms a round trip,
/// what TCG takes, this still lets 256 MiB/s through.
const HOST_STREAM_WINDOW_BYTES: u32 = 512 << 10;

/// The same towards the guest, whose memory is small and the agent's part locked.
const GUEST_STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// One HTTP/2 DATA frame: the guest kernel sends at most 32 KiB at a time.
const MAX_FRAME_BYTES: u32 = 32 << 10;

/// Bytes of a response that HTTP/2 takes from its body before the peer has asked for them.
const MAX_SEND_BUFFER_BYTES: usize = 128 << 10;

/// Headers of one request or response.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request to the guest.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The scheme and authority that requests to the agent carry.
pub fn base_uri() -> Uri {
    Uri::from_static("http://guest")
}

/// HTTP/2 settings of the agent's side.
pub fn server_builder() -> server::Builder<TokioExecutor> {
    let mut builder = server::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(GUEST_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(GUEST_STREAM_WINDOW_BYTES * MAX_STREAMS)
        .max_concurrent_streams(MAX_STREAMS)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .enable_connect_protocol();
    builder
}

/// The host's HTTP/2 connection to one port. Cheap to clone; a transport for the
/// generated Connect clients.
#[derive(Clone)]
pub struct Connection {
    sender: client::SendRequest<Body>,
}

impl Connection {
    /// Starts HTTP/2 on the stream. `closed` turns true when the connection ends.
    pub(super) async fn start(
        stream: ByteStream,
        closed: Arc<watch::Sender<bool>>,
    ) -> hyper::Result<Self> {
        let (sender, connection) = client::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(HOST_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(HOST_STREAM_WINDOW_BYTES * MAX_STREAMS)
            .initial_max_send_streams(MAX_STREAMS as usize)
            .max_frame_size(MAX_FRAME_BYTES)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the guest's HTTP/2 connection ended");
            }
            closed.send_replace(true);
        });
        Ok(Self { sender })
    }

    /// Sends a request. Its URI needs a scheme and an authority: see [`base_uri`].
    pub async fn request(&self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        let mut sender = self.sender.clone();
        sender.ready().await?;
        sender.send_request(request).await
    }
}

impl ClientTransport for Connection {
    type ResponseBody = Incoming;
    type Error = hyper::Error;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<Incoming>, hyper::Error>> {
        let connection = self.clone();
        let request = request.map(|body| body.map_err(BoxError::from).boxed_unsync());
        Box::pin(async move { connection.request(request).await })
    }
}

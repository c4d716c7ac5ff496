//! Connections to ports inside the guest.

use bytes::{Buf as _, Bytes};
use futures::future::BoxFuture;
use futures::stream;
use http::{Request, StatusCode, Uri};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connected, Connection as Connect};
use hyper_util::rt::TokioIo;
use pando_wire::channel::{Body, BoxError, Connection};
use pando_wire::tunnel;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::PollSender;

/// Connections into one guest at once. The channel has 256 streams: files are to have some
/// left. The most they hold of what nobody reads is 512 KiB each.
const MAX_TUNNELS: usize = 224;

/// How long a request waits for another's connection to end; idle ones are closed sooner.
const QUEUE_TIME: Duration = Duration::from_secs(10);

/// Bytes sent as one piece: one HTTP/2 frame on the channel.
const WRITE_BYTES: usize = 32 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    /// Nothing listens.
    #[error("the port is not open")]
    Closed,
    /// There are as many as there may be.
    #[error("the sandbox has {MAX_TUNNELS} connections to its ports")]
    Busy,
    /// The channel ended.
    #[error("the guest went away")]
    Gone(#[source] BoxError),
}

/// Opens connections over the channel's `data` port.
#[derive(Clone)]
pub(crate) struct Dialler {
    data: Connection,
    slots: Arc<Semaphore>,
}

/// A body that holds one of the guest's connections.
pub(crate) struct Held {
    body: Incoming,
    _slot: OwnedSemaphorePermit,
}

impl Dialler {
    pub(crate) fn new(data: Connection) -> Self {
        Self {
            data,
            slots: Arc::new(Semaphore::new(MAX_TUNNELS)),
        }
    }

    /// A connection whose one direction is `body` and whose other is the answer.
    pub(crate) async fn open(&self, port: u16, body: Body) -> Result<Held, TunnelError> {
        let slot = Arc::clone(&self.slots).acquire_owned();
        let slot = tokio::time::timeout(QUEUE_TIME, slot).await;
        let Ok(Ok(slot)) = slot else {
            return Err(TunnelError::Busy);
        };
        let uri = Uri::builder()
            .scheme("http")
            .authority(tunnel::AUTHORITY)
            .path_and_query(format!("/{port}"))
            .build();
        let request = uri.and_then(|uri| Request::post(uri).body(body));
        let request = request.map_err(|error| TunnelError::Gone(error.into()))?;
        let answer = self.data.request(request).await;
        let answer = answer.map_err(|error| TunnelError::Gone(error.into()))?;
        match answer.status() {
            StatusCode::OK => Ok(Held {
                body: answer.into_body(),
                _slot: slot,
            }),
            _ => Err(TunnelError::Closed),
        }
    }

    pub(super) async fn dial(self, port: u16) -> Result<Tunnel, TunnelError> {
        let (sender, mut pieces) = mpsc::channel::<Bytes>(1);
        let pieces = stream::poll_fn(move |context| pieces.poll_recv(context));
        let frames = futures::StreamExt::map(pieces, |piece| Ok(Frame::data(piece)));
        let body = StreamBody::new(frames).boxed_unsync();
        Ok(Tunnel {
            incoming: self.open(port, body).await?,
            rest: Bytes::new(),
            sender: PollSender::new(sender),
        })
    }
}

impl tower::Service<Uri> for Dialler {
    type Response = TokioIo<Tunnel>;
    type Error = TunnelError;
    type Future = BoxFuture<'static, Result<Self::Response, TunnelError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), TunnelError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialler = self.clone();
        Box::pin(async move {
            let port = uri.port_u16().ok_or(TunnelError::Closed)?;
            Ok(TokioIo::new(dialler.dial(port).await?))
        })
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// A connection as a byte stream, for an HTTP client to run on.
pub(crate) struct Tunnel {
    incoming: Held,
    /// Received and not read yet: a part of one frame.
    rest: Bytes,
    sender: PollSender<Bytes>,
}

impl Connect for Tunnel {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
            match frame.transpose().map_err(io::Error::other)? {
                Some(frame) => self.rest = frame.into_data().unwrap_or_default(),
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..length]);
        self.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.sender.poll_reserve(context)).map_err(gone)?;
        let piece = &bytes[..bytes.len().min(WRITE_BYTES)];
        self.sender
            .send_item(Bytes::copy_from_slice(piece))
            .map_err(gone)?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // HTTP/2 takes what was sent by itself.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sender.close();
        Poll::Ready(Ok(()))
    }
}

//! A TCP connection as the two bodies of one HTTP/2 request.
//!
//! ```text
//!   request body  ─► what the outside sends ─► the connection's writing side
//!   response body ◄─ what the inside sends  ◄─ its reading side
//! ```
//! The end of a body is the end of that direction, and a half-closed connection stays one. A
//! body that breaks off is a reset. `CONNECT` would not tell the two apart: what is dropped
//! in the middle looks like an end there.

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use std::io;
use std::pin::pin;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::io::ReaderStream;

use crate::channel::{Body, BoxError};

/// The authority of a request to the agent for a tunnel; its path is `/` and the port. What
/// clients send has another one, which its shim writes.
pub const AUTHORITY: &str = "tunnel";

/// Bytes read at once: one HTTP/2 frame on the channel.
const READ_BYTES: usize = 32 << 10;

/// Why bytes could not be delivered.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// The body broke off: whoever sent it is gone, or was reset.
    #[error("the other side broke off")]
    Broken(#[source] BoxError),
    /// The connection takes no more.
    #[error("the connection takes no more")]
    Write(#[from] io::Error),
}

/// The port that a request for a tunnel names, by the path alone.
pub fn port_of(path: &str) -> Option<u16> {
    path.strip_prefix('/')?
        .parse()
        .ok()
        .filter(|port| *port > 0)
}

/// What a reader gives, to its end. An error of it breaks the body off.
pub fn outgoing(reader: impl AsyncRead + Send + 'static) -> Body {
    outgoing_stream(ReaderStream::with_capacity(reader, READ_BYTES))
}

/// What the reader gives that comes later; one that never comes breaks the body off.
pub fn outgoing_later<R: AsyncRead + Send + 'static>(
    reader: impl Future<Output = Option<R>> + Send + 'static,
) -> Body {
    let reader = async move {
        let reader = reader.await.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok::<_, io::Error>(ReaderStream::with_capacity(reader, READ_BYTES))
    };
    outgoing_stream(futures::stream::once(reader).try_flatten())
}

fn outgoing_stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    let frames = pieces.map(|piece| piece.map(Frame::data).map_err(BoxError::from));
    UnsyncBoxBody::new(StreamBody::new(frames))
}

/// Writes a body to its end, and then ends the writing side.
///
/// # Errors
/// See [`DeliverError`]; the writing side is not ended then.
pub async fn deliver<B>(body: B, mut writer: impl AsyncWrite + Unpin) -> Result<(), DeliverError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = pin!(body);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| DeliverError::Broken(error.into()))?;
        if let Ok(piece) = frame.into_data() {
            writer.write_all(&piece).await?;
        }
    }
    Ok(writer.shutdown().await?)
}

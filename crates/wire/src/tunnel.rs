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

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use tokio::io::{AsyncReadExt as _, ReadBuf};

    /// Some bytes, and then an error.
    struct BreaksOff(bool);

    impl AsyncRead for BreaksOff {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            buffer.put_slice(b"some");
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_path_is_a_port_or_nothing() {
        assert_eq!(port_of("/8080"), Some(8080));
        for bad in ["", "/", "/0", "/65536", "/80/", "80", "/-1", "/80?x"] {
            assert_eq!(port_of(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn what_is_read_is_delivered_and_its_end_is_an_end() {
        let bytes = vec![7; 3 * READ_BYTES + 1];
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let body = outgoing(std::io::Cursor::new(bytes.clone()));
        let delivering = tokio::spawn(deliver(body, ours));
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).await.unwrap();
        assert!(received == bytes);
        delivering.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_breaks_off_is_no_end() {
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let broken = tokio::spawn(async move {
            let mut ours = ours;
            let delivered = deliver(outgoing(BreaksOff(false)), &mut ours).await;
            (delivered, ours)
        });
        let (delivered, ours) = broken.await.unwrap();
        assert!(matches!(delivered, Err(DeliverError::Broken(_))));
        let mut received = [0; 10];
        assert_eq!(theirs.read(&mut received).await.unwrap(), 4);
        let next = tokio::time::timeout(
            std::time::Duration::from_millis(20),
            theirs.read(&mut received),
        );
        assert!(next.await.is_err(), "the writing side was not ended");
        drop(ours);
    }

    #[tokio::test]
    async fn a_reader_that_never_comes_breaks_the_body_off() {
        let body = outgoing_later(async { None::<BreaksOff> });
        assert!(matches!(
            deliver(body, tokio::io::sink()).await,
            Err(DeliverError::Broken(_))
        ));
        let gone = deliver(Full::new(Bytes::from_static(b"x")), tokio::io::duplex(1).0);
        assert!(matches!(gone.await, Err(DeliverError::Write(_))));
    }
}

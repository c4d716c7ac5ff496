//! The agent's end of a port.

use std::future::Future;
use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::frame::{Frame, Kind};
use super::port::{ByteStream, Port, PortControl};

/// Bytes of the nonce that a HELLO begins with and a HELLO_ACK echoes.
pub(super) const NONCE_BYTES: usize = 16;

/// Bytes of the number that joins a THAW to its FREEZE.
pub(super) const SEQUENCE_BYTES: usize = 8;

/// What the agent does at each control frame. Calls come one at a time.
pub trait PortHandler: Send + 'static {
    /// A new epoch: `resume` is the HELLO's payload. The old HTTP/2 connection is
    /// already dropped, the new one starts after the answer, which is returned.
    fn hello(&mut self, resume: Bytes) -> impl Future<Output = Vec<u8>> + Send;

    /// Come to rest; returns FROZEN's payload. The port still takes DATA.
    fn freeze(&mut self) -> impl Future<Output = Vec<u8>> + Send;

    /// Go on: the freeze `sequence` is over, and the host's clock says `wall_clock_ns`
    /// since the Unix epoch (0: unknown). Other ports are to be told by
    /// [`PortControl::thaw`].
    fn thaw(&mut self, sequence: u64, wall_clock_ns: u64) -> impl Future<Output = ()> + Send;
}

/// Runs HTTP/2 on a byte stream until it ends.
pub trait ServePort: Send + 'static {
    /// Serves one epoch's connection; dropped when the next epoch begins.
    fn serve(&self, stream: ByteStream) -> impl Future<Output = ()> + Send + 'static;
}

/// The agent's end of a port: answers control frames, serves HTTP/2.
pub struct GuestPort {
    port: Port,
}

impl GuestPort {
    /// Takes over a port's device.
    pub fn new<R, W>(reader: R, writer: W) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self {
            port: Port::new(reader, writer),
        }
    }

    /// The handle for parking and unparking from elsewhere.
    pub fn control(&self) -> &PortControl {
        self.port.control()
    }

    /// Handles frames until the device ends.
    ///
    /// # Errors
    /// The device can't be written to.
    pub async fn run<H, S>(mut self, mut handler: H, server: S) -> io::Result<()>
    where
        H: PortHandler,
        S: ServePort,
    {
        let mut connection = tokio::task::JoinSet::new();
        while let Some(frame) = self.port.next_event().await {
            let control = self.control().clone();
            match frame.kind {
                Kind::Hello => {
                    connection.abort_all();
                    if let Some(stream) = self.hello(&frame, &mut handler).await? {
                        connection.spawn(server.serve(stream));
                    }
                }
                _ if frame.epoch != control.epoch() => {}
                Kind::Freeze => self.freeze(&frame, &mut handler).await?,
                Kind::Thaw => self.thaw(&frame, &mut handler).await?,
                // The host's answers are the agent's to send.
                Kind::Data | Kind::HelloAck | Kind::Frozen | Kind::Thawed => {}
            }
            while connection.try_join_next().is_some() {}
        }
        Ok(())
    }

    async fn hello<H: PortHandler>(
        &mut self,
        frame: &Frame,
        handler: &mut H,
    ) -> io::Result<Option<ByteStream>> {
        if frame.payload.len() < NONCE_BYTES || frame.epoch == 0 {
            return Ok(None);
        }
        let control = self.control().clone();
        let stream = control.adopt(frame.epoch);
        let answer = handler.hello(frame.payload.slice(NONCE_BYTES..)).await;
        let nonce = &frame.payload[..NONCE_BYTES];
        control
            .send(Kind::HelloAck, frame.epoch, &[nonce, &answer])
            .await?;
        Ok(Some(stream))
    }

    async fn freeze<H: PortHandler>(&mut self, frame: &Frame, handler: &mut H) -> io::Result<()> {
        let Some(sequence) = sequence_of(frame) else {
            return Ok(());
        };
        let answer = handler.freeze().await;
        let payload = [&sequence.to_le_bytes()[..], &answer];
        self.control().park_frozen(sequence, &payload).await
    }

    async fn thaw<H: PortHandler>(&mut self, frame: &Frame, handler: &mut H) -> io::Result<()> {
        let Some(sequence) = sequence_of(frame) else {
            return Ok(());
        };
        let clock = frame.payload[SEQUENCE_BYTES..].first_chunk();
        let wall_clock_ns = clock.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        handler.thaw(sequence, wall_clock_ns).await;
        let control = self.control();
        control
            .send(Kind::Thawed, frame.epoch, &[&sequence.to_le_bytes()])
            .await?;
        control.thaw(sequence);
        Ok(())
    }
}

pub(super) fn sequence_of(frame: &Frame) -> Option<u64> {
    frame
        .payload
        .first_chunk::<SEQUENCE_BYTES>()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

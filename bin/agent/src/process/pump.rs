//! From a process's pipe or terminal into its [`Output`].

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::output::{Output, Stream};

/// One read: as much as one event carries.
const READ_BYTES: usize = 64 << 10;

/// What a pipe holds: the process can go on while its output is being sent.
pub(super) const PIPE_BYTES: usize = 256 << 10;

/// Output that comes faster than this is collected for as long before it is read
/// again. Otherwise every small write would be a wake-up and a message, which cost
/// as much as half a millisecond without KVM. The first after a pause is not held up.
const COLLECT_TIME: Duration = Duration::from_millis(1);

/// After a process has ended, how long its pipes may stay open in children it left
/// behind before its end is reported. What it wrote itself is never cut off.
const DRAIN_TIME: Duration = Duration::from_millis(100);

/// Pipes of ended processes that are still read, so that a child left behind does
/// not die of writing to them. Beyond that it does.
static LINGERING: Semaphore = Semaphore::const_new(256);

/// Moves the bytes of one pipe or terminal.
pub(super) struct Pump {
    source: Arc<AsyncFd<OwnedFd>>,
    stream: Stream,
    output: Arc<Output>,
    buffer: Vec<u8>,
    /// Bytes that may still be passed on; `None`: any number.
    left: Option<u64>,
}

impl Pump {
    pub(super) fn new(
        source: Arc<AsyncFd<OwnedFd>>,
        stream: Stream,
        output: Arc<Output>,
        limit: Option<u64>,
    ) -> Self {
        Self {
            source,
            stream,
            output,
            buffer: vec![0; READ_BYTES],
            left: limit,
        }
    }

    /// Reads until the end of the pipe; reports by `drained` when the process's own
    /// output is all in.
    pub(super) async fn run(
        mut self,
        mut ended: watch::Receiver<bool>,
        drained: oneshot::Sender<()>,
    ) {
        if self.until_end(&mut ended).await.is_none() {
            return;
        }
        if self.until_drained().await.is_none() {
            return;
        }
        drop(drained);
        if let Ok(_permit) = LINGERING.try_acquire() {
            while self.read().await.is_some() {}
        }
    }

    /// Passes on what the limit still allows. Whether that is anything.
    async fn push(&mut self, mut bytes: Bytes) -> bool {
        if let Some(left) = &mut self.left {
            bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= bytes.len() as u64;
        }
        let any = !bytes.is_empty();
        if any {
            self.output.push(self.stream, bytes).await;
        }
        any
    }

    /// The next bytes; `None` at the end.
    async fn read(&mut self) -> Option<Bytes> {
        let Self { source, buffer, .. } = self;
        let read = source
            .async_io(Interest::READABLE, |fd| {
                rustix::io::read(fd, buffer.as_mut_slice()).map_err(io::Error::from)
            })
            .await;
        // A terminal whose other side is closed fails with EIO: the same as an end.
        match read {
            Ok(length @ 1..) => Some(Bytes::copy_from_slice(&self.buffer[..length])),
            _ => None,
        }
    }

    /// Until the process has ended. `None` if the pipe ended first.
    async fn until_end(&mut self, ended: &mut watch::Receiver<bool>) -> Option<()> {
        let mut last_read = None;
        loop {
            let bytes = tokio::select! {
                biased;
                bytes = self.read() => bytes?,
                _ = ended.wait_for(|ended| *ended) => return Some(()),
            };
            if !self.push(bytes).await {
                continue;
            }
            let now = Instant::now();
            if last_read.is_some_and(|last| now - last < COLLECT_TIME * 2) {
                tokio::select! {
                    () = tokio::time::sleep(COLLECT_TIME) => {}
                    _ = ended.wait_for(|ended| *ended) => return Some(()),
                }
            }
            last_read = Some(Instant::now());
        }
    }

    /// What was in the pipe when the process ended, then whatever comes within
    /// [`DRAIN_TIME`]. `None` if the pipe ended.
    async fn until_drained(&mut self) -> Option<()> {
        let deadline = Instant::now() + DRAIN_TIME;
        let mut owed = rustix::io::ioctl_fionread(self.source.get_ref()).unwrap_or(0);
        loop {
            let bytes = if owed > 0 {
                self.read().await?
            } else {
                match tokio::time::timeout_at(deadline, self.read()).await {
                    Ok(bytes) => bytes?,
                    Err(_) => return Some(()),
                }
            };
            owed = owed.saturating_sub(bytes.len() as u64);
            self.push(bytes).await;
            if owed == 0 && Instant::now() >= deadline {
                return Some(());
            }
        }
    }
}

/// Writes all bytes.
///
/// # Errors
/// The reading side is gone.
pub(super) async fn write_all(target: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = target
            .async_io(Interest::WRITABLE, |fd| {
                match rustix::io::write(fd, bytes) {
                    Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
                    other => other.map_err(io::Error::from),
                }
            })
            .await?;
        bytes = &bytes[written..];
    }
    Ok(())
}

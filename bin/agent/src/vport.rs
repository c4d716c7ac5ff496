//! The virtio-serial ports as asynchronous byte streams.
//!
//! Two things differ from a socket. A port whose host side is not connected reads
//! as ended and polls as hung up, and comes back: that is not the end but a reason
//! to wait. And a port can be opened once only, so both directions share an open
//! file and register it with epoll under two descriptors.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::time::Sleep;

use crate::descriptor;

/// How long to leave a hung-up port alone.
const HANG_UP_PAUSE: Duration = Duration::from_millis(20);

/// Opening fails for a moment after boot, until the host's side is announced.
const OPEN_ATTEMPTS: u32 = 500;
const OPEN_PAUSE: Duration = Duration::from_millis(10);

/// Opens a port by its name.
///
/// # Errors
/// There is no such port.
pub(crate) async fn open(name: &str) -> io::Result<(PortHalf, PortHalf)> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..OPEN_ATTEMPTS {
        match open_now(name) {
            Ok(halves) => return Ok(halves),
            Err(error) => failure = error,
        }
        tokio::time::sleep(OPEN_PAUSE).await;
    }
    Err(failure)
}

fn open_now(name: &str) -> io::Result<(PortHalf, PortHalf)> {
    for entry in std::fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        let found = std::fs::read_to_string(entry.path().join("name"))?;
        if found.trim_end() != name {
            continue;
        }
        let path = std::path::Path::new("/dev").join(entry.file_name());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let port = rustix::fs::open(&path, flags, Mode::empty())?;
        let other = port.try_clone()?;
        return Ok((
            PortHalf::new(port, Interest::READABLE),
            PortHalf::new(other, Interest::WRITABLE),
        ));
    }
    Err(io::ErrorKind::NotFound.into())
}

/// One direction of a port.
pub(crate) struct PortHalf {
    state: State,
    interest: Interest,
}

enum State {
    /// Registered with epoll, or about to be.
    Open(Option<AsyncFd<OwnedFd>>, Option<OwnedFd>),
    /// Hung up: not registered, as a hang-up stays set until a new registration.
    Paused(Option<OwnedFd>, Pin<Box<Sleep>>),
}

impl PortHalf {
    fn new(port: OwnedFd, interest: Interest) -> Self {
        Self {
            state: State::Open(None, Some(port)),
            interest,
        }
    }

    fn pause(&mut self) {
        let port = match &mut self.state {
            State::Open(registered, port) => match registered.take() {
                Some(registered) => Some(registered.into_inner()),
                None => port.take(),
            },
            State::Paused(port, _) => port.take(),
        };
        self.state = State::Paused(port, Box::pin(tokio::time::sleep(HANG_UP_PAUSE)));
    }

    /// The registered port; waits out a pause.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&AsyncFd<OwnedFd>>> {
        if let State::Paused(port, sleep) = &mut self.state {
            ready!(sleep.as_mut().poll(cx));
            self.state = State::Open(None, port.take());
        }
        let interest = self.interest;
        match &mut self.state {
            State::Open(registered, port) => {
                if registered.is_none() {
                    let port = port.take().ok_or(io::ErrorKind::BrokenPipe)?;
                    *registered = Some(descriptor::register(port, interest)?);
                }
                let registered = registered.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
                Poll::Ready(Ok(registered))
            }
            State::Paused(..) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

/// What one attempt at the device came to.
enum Attempt {
    Done(usize),
    NotReady,
    HungUp,
}

impl AsyncRead for PortHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let port = ready!(self.poll_open(cx))?;
            let mut guard = ready!(port.poll_read_ready(cx))?;
            let read = rustix::io::read(port.get_ref(), buffer.initialize_unfilled());
            let attempt = match read {
                // No reader or writer on the host's side.
                Ok(0) => Attempt::HungUp,
                Ok(length) => Attempt::Done(length),
                Err(Errno::AGAIN) if guard.ready().is_read_closed() => Attempt::HungUp,
                Err(Errno::AGAIN) => Attempt::NotReady,
                Err(Errno::INTR) => continue,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            match attempt {
                Attempt::Done(length) => {
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
                Attempt::NotReady => guard.clear_ready(),
                Attempt::HungUp => self.pause(),
            }
        }
    }
}

impl AsyncWrite for PortHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let port = ready!(self.poll_open(cx))?;
            let mut guard = ready!(port.poll_write_ready(cx))?;
            let attempt = match rustix::io::write(port.get_ref(), bytes) {
                Ok(length) => Attempt::Done(length),
                Err(Errno::AGAIN) if guard.ready().is_write_closed() => Attempt::HungUp,
                Err(Errno::AGAIN) => Attempt::NotReady,
                // Each write takes kernel memory; under pressure try again.
                Err(Errno::NOMEM) => Attempt::HungUp,
                Err(Errno::INTR) => continue,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            match attempt {
                Attempt::Done(length) => return Poll::Ready(Ok(length)),
                Attempt::NotReady => guard.clear_ready(),
                Attempt::HungUp => self.pause(),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

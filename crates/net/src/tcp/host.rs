//! The host's end of a connection.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// The host's end: a socket to the world, or one to the gateway's own name server.
pub(crate) enum HostEnd {
    World(TcpStream),
    Gateway(UnixStream),
}

impl HostEnd {
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::World(socket) => socket.try_read(bytes),
            Self::Gateway(socket) => socket.try_read(bytes),
        }
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::World(socket) => socket.try_write(bytes),
            Self::Gateway(socket) => socket.try_write(bytes),
        }
    }

    /// Waits until it can be read or written, whichever are asked for; forever where
    /// neither is.
    pub(crate) async fn ready(&self, read: bool, write: bool) {
        let interest = match (read, write) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => return std::future::pending().await,
        };
        // An error shows again when it is used.
        let _ = match self {
            Self::World(socket) => socket.ready(interest).await.map(|_| ()),
            Self::Gateway(socket) => socket.ready(interest).await.map(|_| ()),
        };
    }

    /// Says that nothing more will be written.
    pub(crate) fn finish_writing(&self) {
        // It fails where the other end is gone, which the next read says.
        let _ = match self {
            Self::World(socket) => SockRef::from(socket).shutdown(Shutdown::Write),
            Self::Gateway(socket) => SockRef::from(socket).shutdown(Shutdown::Write),
        };
    }

    /// Has the world see a reset when this is dropped.
    pub(crate) fn reset_when_dropped(&self) {
        if let Self::World(socket) = self {
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
    }
}

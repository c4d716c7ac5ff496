//! A connection's task, from the host's dial on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};

use super::connection::{Connection, Phase};
use super::host::HostEnd;
use super::pump;
use super::stack::Stack;
use crate::frame::{self, Packet, Unreachable};
use crate::shared::{Ends, Shared, add, lock};

/// How long the host tries. Guests give up after two minutes; people before.
const DIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// What a connection is opened to.
pub(crate) enum Opening {
    /// The world.
    Dial,
    /// The gateway's own service at the other end of this.
    Local(UnixStream),
}

/// Takes the connection out of the table at the end, whatever ends it.
struct Listed<'s> {
    shared: &'s Shared,
    connection: Arc<Connection>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        *lock(&self.connection.phase) = Phase::Over;
        let mut connections = self.shared.connections();
        let ends: &Ends = &self.connection.ends;
        // Another may have taken its place already.
        if connections
            .get(ends)
            .is_some_and(|listed| Arc::ptr_eq(listed, &self.connection))
        {
            connections.remove(ends);
        }
    }
}

/// Serves a connection that is in the table, to its end.
pub(crate) async fn serve(shared: Arc<Shared>, connection: Arc<Connection>, opening: Opening) {
    let listed = Listed {
        shared: &shared,
        connection,
    };
    let connection = &listed.connection;
    let host = match opening {
        Opening::Local(socket) => HostEnd::Gateway(socket),
        Opening::Dial => match dial(connection).await {
            Some(Ok(socket)) => HostEnd::World(socket),
            Some(Err(error)) => return refuse(&shared, connection, &error),
            None => {
                if connection.is_cut() {
                    refuse(
                        &shared,
                        connection,
                        &io::ErrorKind::ConnectionRefused.into(),
                    );
                }
                return;
            }
        },
    };
    if accept(&shared, connection) {
        add(&shared.sums.connections, 1);
        pump::run(&shared, connection, host).await;
    }
}

/// Connects to the world; `None` where the guest or a policy took it back meanwhile.
async fn dial(connection: &Connection) -> Option<io::Result<TcpStream>> {
    let remote = connection.ends.remote;
    let taken_back = async {
        loop {
            connection.wake.notified().await;
            let over = matches!(*lock(&connection.phase), Phase::Over);
            if over || connection.is_cut() {
                break;
            }
        }
    };
    tokio::select! {
        connected = tokio::time::timeout(DIAL_TIMEOUT, connect(remote)) => {
            Some(connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
        }
        () = taken_back => None,
    }
}

async fn connect(remote: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(remote).await?;
    // The guest has decided already what goes into a segment.
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Answers the guest's opening; whether that worked.
fn accept(shared: &Shared, connection: &Connection) -> bool {
    let mut phase = lock(&connection.phase);
    let Phase::Dialling(opening) = &*phase else {
        return false;
    };
    let card = Arc::clone(&shared.card);
    let Some(stack) = Stack::accept(card, connection.ends.remote, opening) else {
        return false;
    };
    *phase = Phase::Open(Box::new(stack));
    true
}

/// Tells the guest that the host could not connect.
fn refuse(shared: &Shared, connection: &Connection, error: &io::Error) {
    let phase = lock(&connection.phase);
    let Phase::Dialling(opening) = &*phase else {
        return;
    };
    let no_way = matches!(
        error.kind(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
    );
    if no_way {
        shared
            .card
            .send(|out| frame::unreachable(Unreachable::Host, opening, out));
    } else {
        shared
            .card
            .send(|out| frame::reset(&opening_packet(connection, opening), out));
    }
}

/// The packet that was kept, as it was read.
fn opening_packet<'a>(connection: &Connection, opening: &'a [u8]) -> Packet<'a> {
    Packet {
        bytes: opening,
        source: connection.ends.guest.ip(),
        destination: connection.ends.remote.ip(),
        // Not looked at: the segment is read again from the bytes.
        payload: frame::Payload::Other,
    }
}

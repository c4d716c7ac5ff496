//! Ports of the host that lead to ports of sandboxes: bytes, and nothing looks into them.

use crate::engine::Engine;
use crate::lifetime::by_pieces;
use pando_types::SandboxId;
use pando_wire::tunnel;
use rustix::net::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Connections of one port at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 256;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 256;

/// A peer that says nothing for so long is asked whether it is still there: one that is not
/// must not keep a connection into the guest.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A port that was a sandbox's before this daemon's start and is another program's now is
/// tried again this much later: the number stays the sandbox's.
const BIND_PAUSE: Duration = Duration::from_secs(5);

/// After a failed `accept` (no file descriptors left) it is tried again this much later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The tasks that listen, by the host's port.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    tasks: Mutex<BTreeMap<u16, JoinHandle<()>>>,
    last_given: Mutex<u16>,
}

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u16, JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, host_port: u16, task: JoinHandle<()>) {
        if let Some(before) = self.lock().insert(host_port, task) {
            before.abort();
        }
    }

    /// Nothing listens there any more. Connections that are open go on to their end.
    pub(super) fn end(&self, host_port: u16) {
        if let Some(task) = self.lock().remove(&host_port) {
            task.abort();
        }
    }

    pub(super) fn last_given(&self) -> u16 {
        *self
            .last_given
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn given(&self, port: u16) {
        *self
            .last_given
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = port;
    }
}

/// Listens at an address.
pub(super) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // What the daemon before left behind in TIME_WAIT is in nobody's way.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Engine {
    /// Listens at the ports that sandboxes have had before this daemon's start.
    pub(crate) async fn listen_again(&self) {
        let rows: Vec<_> = self.inner.ports.lock().values().cloned().collect();
        for row in rows {
            if let (Ok(sandbox), Some(host_port)) = (row.sandbox.parse(), row.host_port) {
                let address = SocketAddr::new(self.inner.config.ports.bind, host_port);
                let listener = bind(address).await;
                if let Err(error) = &listener {
                    tracing::warn!(%address, %sandbox, "cannot listen, is tried again: {error}");
                }
                self.listen(&sandbox, row.port, host_port, listener.ok());
            }
        }
    }

    /// Takes connections to a port of the host; without a listener it is made first.
    pub(super) fn listen(
        &self,
        sandbox: &SandboxId,
        port: u16,
        host_port: u16,
        listener: Option<TcpListener>,
    ) {
        let (engine, sandbox) = (self.clone(), sandbox.clone());
        let task = tokio::spawn(async move {
            let address = SocketAddr::new(engine.inner.config.ports.bind, host_port);
            let listener = match listener {
                Some(listener) => listener,
                None => bind_some_day(address).await,
            };
            engine.accept(&sandbox, port, &listener).await;
        });
        self.inner.ports.listeners.keep(host_port, task);
    }

    async fn accept(&self, sandbox: &SandboxId, port: u16, listener: &TcpListener) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (engine, sandbox) = (self.clone(), sandbox.clone());
                    tokio::spawn(async move {
                        engine.carry(&sandbox, port, stream).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Moves a connection's bytes until both sides have ended. One that cannot be made, or
    /// breaks off in the guest, is reset.
    async fn carry(&self, sandbox: &SandboxId, port: u16, stream: TcpStream) {
        prepare(&stream);
        let (reader, mut writer) = stream.into_split();
        let Some(entry) = self.inner.sandboxes.get(sandbox) else {
            return reset(writer);
        };
        let carried = async {
            let shim = self
                .awake(&entry)
                .await
                .map_err(|error| error.to_string())?;
            let outgoing = by_pieces(tunnel::outgoing(reader), &entry.activity);
            let inside = shim.client.port_tcp(port, outgoing).await;
            let inside = inside.map_err(|error| error.to_string())?;
            // From here on its bytes are uses; that it stands open is none.
            drop(shim);
            let inside = by_pieces(inside, &entry.activity);
            let delivered = tunnel::deliver(inside, &mut writer).await;
            delivered.map_err(|error| error.to_string())
        };
        if let Err(why) = carried.await {
            tracing::debug!(%sandbox, port, why, "a connection broke off");
            reset(writer);
        }
    }
}

async fn bind_some_day(address: SocketAddr) -> TcpListener {
    loop {
        tokio::time::sleep(BIND_PAUSE).await;
        if let Ok(listener) = bind(address).await {
            tracing::info!(%address, "listens again");
            return listener;
        }
    }
}

/// None of it is needed for the connection to work.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEP_ALIVE);
}

/// Once the reading half has gone too, the peer gets a reset and no end.
fn reset(writer: OwnedWriteHalf) {
    let _ = writer.as_ref().set_zero_linger();
    writer.forget();
}

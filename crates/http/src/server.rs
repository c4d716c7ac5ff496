//! The listener: accepts connections and serves them until it is told to end.

use crate::gate::Gate;
use crate::proxy::{Connection, Peer};
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections served at once; more wait in the kernel's queue. Two file
/// descriptors each at most, well below the usual hard limit.
const CONNECTIONS: usize = 4096;

/// A client that has not sent a request's head by then is dropped.
const HEADER_DEADLINE: Duration = Duration::from_secs(30);

/// The headers of one request over HTTP/2, as much as goes into a guest.
const HEAD_BYTES: u32 = 64 << 10;

/// How long running requests may take to end on shutdown. Streams of processes
/// are cut: their clients attach again to the next daemon.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// After a failed `accept` (no file descriptors left) it is tried again this much later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` completes, then ends in order.
pub(crate) async fn serve(listener: TcpListener, gate: Gate, shutdown: impl Future<Output = ()>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let builder = builder();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, permit)) => {
                spawn_connection(&builder, &graceful, stream, permit, gate.clone());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::info!("cut connections that did not end in time");
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES)
        .keep_alive_interval(HEADER_DEADLINE);
    builder
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Small answers and terminal output must not wait for more.
    let _ = stream.set_nodelay(true);
    Ok((stream, permit))
}

fn spawn_connection(
    builder: &Builder<TokioExecutor>,
    graceful: &GracefulShutdown,
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    gate: Gate,
) {
    let (client, server) = (stream.peer_addr(), stream.local_addr());
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        let gate = gate.clone();
        if let (Ok(client), Ok(server)) = (&client, &server) {
            let (client, server) = (*client, *server);
            let extensions = request.extensions_mut();
            extensions.insert(Peer(client.ip().to_canonical()));
            extensions.insert(Connection { client, server });
        }
        async move { Ok::<_, Infallible>(gate.serve(request.map(Body::new)).await) }
    });
    let connection = builder
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .into_owned();
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        // Errors here are clients that went away or spoke no HTTP.
        if let Err(error) = connection.await {
            tracing::debug!(error, "connection ended early");
        }
        drop(permit);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::tests::gate;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn an_idle_connection_does_not_hold_the_shutdown() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, gate(), async {
            let _ = ended.await;
        }));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).await.unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200 OK\r\n"));
        end.send(()).unwrap();
        // Well below SHUTDOWN_GRACE: the connection is idle, so it is closed at once.
        tokio::time::timeout(Duration::from_secs(2), serving)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            stream.read(&mut answer).await.unwrap(),
            0,
            "the connection was closed"
        );
    }
}

//! The shim's main: serve the daemon until the VM has ended and that was seen.

use crate::machine::Machine;
use crate::passthrough::{self, Body};
use crate::ports;
use crate::service::Service;
use crate::spec::ShimSpec;
use crate::stall::until_stalled;
use connectrpc::{ConnectRpcService, Limits};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pando_types::limits;
use pando_wire::shim::{ShimExt as _, State};
use std::convert::Infallible;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tower::Service as _;

/// The listening socket that the daemon made, at this number in the shim.
pub const LISTENER_FD: RawFd = 3;

/// How long an ended shim still answers. A daemon that is there reads what it wants and
/// kills the shim long before; one that comes later reads [`CAUSE_FILE`].
const LINGER: Duration = Duration::from_secs(30);

/// The state and cause of the VM's end, for a daemon that was not there.
pub const CAUSE_FILE: &str = "shim/ended";

/// Received but not consumed bytes of one stream and of one connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// One HTTP/2 DATA frame. Each costs a system call or two on both sides.
const FRAME_BYTES: u32 = 64 << 10;

/// The headers of a client's request, as far as the listener takes them.
const HEAD_BYTES: u32 = 64 << 10;

/// Why a shim cannot do its work.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The spec cannot be read.
    #[error("cannot read `spec.json`")]
    Spec(#[source] std::io::Error),
    /// The spec is malformed.
    #[error("`spec.json` is malformed")]
    Malformed(#[source] serde_json::Error),
    /// The listening socket is not what it should be.
    #[error("the listening socket cannot be used")]
    Listener(#[source] std::io::Error),
}

/// Runs the sandbox whose directory is `dir`, to its end.
///
/// # Errors
/// The spec or the listener cannot be used; all else is reported to the daemon.
pub async fn run(dir: &Path, listener: std::os::unix::net::UnixListener) -> Result<(), ShimError> {
    let text = std::fs::read_to_string(dir.join("spec.json")).map_err(ShimError::Spec)?;
    let spec: ShimSpec = serde_json::from_str(&text).map_err(ShimError::Malformed)?;
    listener
        .set_nonblocking(true)
        .map_err(ShimError::Listener)?;
    let listener = UnixListener::from_std(listener).map_err(ShimError::Listener)?;

    let machine = Arc::new(Machine::new(spec, dir.to_path_buf()));
    let serving = tokio::spawn(serve(listener, Arc::clone(&machine)));
    Arc::clone(&machine).run().await;
    let status = machine.status.borrow().clone();
    let word = if status.state == State::STATE_STOPPED {
        "stopped"
    } else {
        "failed"
    };
    // The daemon also learns it over the socket; without the file only a later one would not.
    drop(std::fs::write(
        dir.join(CAUSE_FILE),
        format!("{word}\n{}\n", status.cause),
    ));
    // A snapshot that ended the VM is still being written and answered.
    drop(
        machine
            .requests
            .subscribe()
            .wait_for(|requests| *requests == 0)
            .await,
    );
    tokio::time::sleep(LINGER).await;
    serving.abort();
    Ok(())
}

async fn serve(listener: UnixListener, machine: Arc<Machine>) {
    let service = Arc::new(Service {
        machine: Arc::clone(&machine),
    });
    let router = service.register(connectrpc::Router::new());
    // A request holds an exec's stdin, an answer its output, both of them bounded.
    let message = limits::EXEC_STDIN_BYTES + (1 << 20);
    let limits = Limits::default()
        .with_max_request_body_size(message)
        .with_max_message_size(message);
    let rpc = ConnectRpcService::new(router).with_limits(limits);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(connection(
                stream,
                rpc.clone(),
                Arc::clone(&machine),
            ))),
            // Out of descriptors, most likely: the next try may find one.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection(stream: UnixStream, rpc: ConnectRpcService, machine: Arc<Machine>) {
    let handler = service_fn(move |request: Request<hyper::body::Incoming>| {
        let (mut rpc, machine) = (rpc.clone(), Arc::clone(&machine));
        async move { Ok::<_, Infallible>(route(&mut rpc, &machine, request).await) }
    });
    let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEAD_BYTES)
        .max_concurrent_streams(1024)
        .serve_connection(TokioIo::new(stream), handler)
        .await;
    // The daemon went away in the middle of something; it will come back.
    drop(served);
}

async fn route(
    rpc: &mut ConnectRpcService,
    machine: &Machine,
    request: Request<hyper::body::Incoming>,
) -> Response<Body> {
    let path = request.uri().path();
    if ports::takes(path) {
        let Some(running) = machine.running.get() else {
            return ports::gone();
        };
        let mut stalling = machine.status.subscribe();
        return tokio::select! {
            biased;
            answer = running.ports.answer(request) => answer,
            _ = until_stalled(&mut stalling) => ports::stalled(),
        };
    }
    if path.starts_with(passthrough::PREFIX) && path[passthrough::PREFIX.len()..].starts_with('/') {
        return match machine.running.get() {
            Some(running) => {
                let mut stalling = machine.status.subscribe();
                tokio::select! {
                    biased;
                    answer = passthrough::forward(&running.channel, request) => answer,
                    cause = until_stalled(&mut stalling) => {
                        passthrough::plain(StatusCode::INSUFFICIENT_STORAGE, cause)
                    }
                }
            }
            None => passthrough::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the sandbox is starting".to_owned(),
            ),
        };
    }
    let _counted = Counted::new(machine);
    match rpc.call(request).await {
        Ok(response) => response.map(|body| body.map_err(Into::into).boxed_unsync()),
        Err(never) => match never {},
    }
}

/// A request that is being answered.
struct Counted<'m>(&'m Machine);

impl<'m> Counted<'m> {
    fn new(machine: &'m Machine) -> Self {
        machine.requests.send_modify(|requests| *requests += 1);
        Self(machine)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.requests.send_modify(|requests| *requests -= 1);
    }
}

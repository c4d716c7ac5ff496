//! The HTTP endpoint of each port.
//!
//! | route | `ctl` | `data` |
//! |---|---|---|
//! | `pando.guest.v1.Guest` | yes | no |
//! | `process.Process`, `filesystem.Filesystem` | yes | with the token |
//! | `GET`, `POST /files` | no | with the token or a signature |
//! | `GET /health` | no | yes |
//! | `GET /metrics`, `GET /envs` | no | with the token |
//! | `http://tunnel/PORT` | no | the host's shim alone |

use std::convert::Infallible;
use std::sync::Arc;

use connectrpc::{ConnectRpcService, Limits, Router};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pando_wire::channel::{ByteStream, ServePort, server_builder};
use tower::Service;

use crate::control::GuestService;
use crate::filesystem::FilesystemService;
use crate::process::service::ProcessService;
use crate::reply::{self, Reply};
use crate::sandbox::Sandbox;
use crate::{access, files, metrics, tunnel};

/// One message of an RPC: a piece of stdin, an argument list with its environment.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Which of the two ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortKind {
    /// The host's own.
    Control,
    /// What clients may reach.
    Data,
}

/// The server of one port.
pub(crate) struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    sandbox: Arc<Sandbox>,
    kind: PortKind,
    rpc: ConnectRpcService,
}

impl Server {
    /// The server of the given port.
    pub(crate) fn new(sandbox: &Arc<Sandbox>, kind: PortKind) -> Self {
        let mut router = Router::new()
            .add_service(Arc::new(ProcessService::new(Arc::clone(sandbox))))
            .add_service(Arc::new(FilesystemService::new(Arc::clone(sandbox))));
        if kind == PortKind::Control {
            router = router.add_service(Arc::new(GuestService::new(Arc::clone(sandbox))));
        }
        let limits = Limits::default()
            .with_max_message_size(MAX_MESSAGE_BYTES)
            .with_max_request_body_size(MAX_MESSAGE_BYTES);
        Self {
            inner: Arc::new(Inner {
                sandbox: Arc::clone(sandbox),
                kind,
                rpc: ConnectRpcService::new(router).with_limits(limits),
            }),
        }
    }
}

impl ServePort for Server {
    fn serve(&self, stream: ByteStream) -> impl Future<Output = ()> + Send + 'static {
        let inner = Arc::clone(&self.inner);
        let service = service_fn(move |request| {
            let inner = Arc::clone(&inner);
            async move { Ok::<_, Infallible>(inner.answer(request).await) }
        });
        async move {
            let connection = server_builder().serve_connection(TokioIo::new(stream), service);
            // It ends when the host goes; the next HELLO brings another.
            let _ = connection.await;
        }
    }
}

impl Inner {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        match self.kind {
            PortKind::Control => self.call(request).await,
            PortKind::Data => {
                if request.uri().host() == Some(pando_wire::tunnel::AUTHORITY) {
                    return tunnel::open(request).await;
                }
                let mut reply = self.answer_data(request).await;
                allow_any_origin(&mut reply);
                reply
            }
        }
    }

    async fn answer_data(&self, request: Request<Incoming>) -> Reply {
        let route = (request.method().clone(), request.uri().path().to_owned());
        match (&route.0, route.1.as_str()) {
            (&Method::GET, "/health") => return reply::status(StatusCode::NO_CONTENT),
            // Before it sends a token, a browser asks whether it may.
            (&Method::OPTIONS, _) => return reply::status(StatusCode::NO_CONTENT),
            (&Method::GET | &Method::POST, "/files") => {
                return files::answer(&self.sandbox, request).await;
            }
            _ => {}
        }
        if let Err(refusal) = access::check_token(&self.sandbox, request.headers()) {
            return refusal;
        }
        match (&route.0, route.1.as_str()) {
            (&Method::GET, "/metrics") => {
                reply::json(StatusCode::OK, &metrics::document(&self.sandbox))
            }
            (&Method::GET, "/envs") => reply::json(
                StatusCode::OK,
                &serde_json::json!(self.sandbox.environment()),
            ),
            (&Method::POST, _) => self.call(request).await,
            _ => reply::error(StatusCode::NOT_FOUND, "there is no such route"),
        }
    }

    async fn call(&self, request: Request<Incoming>) -> Reply {
        let mut rpc = self.rpc.clone();
        match rpc.call(request).await {
            Ok(response) => {
                response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
            }
            Err(never) => match never {},
        }
    }
}

/// The token, not the origin, says who may do what.
fn allow_any_origin(reply: &mut Reply) {
    let headers = reply.headers_mut();
    let any = HeaderValue::from_static("*");
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, any.clone());
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, any.clone());
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, any.clone());
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, any);
}

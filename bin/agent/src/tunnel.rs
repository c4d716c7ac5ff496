//! `CONNECT`: from an HTTP/2 stream to a port on the guest's loopback.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::reply::{self, Reply};

/// Hosts that mean the guest itself.
const LOOPBACK_NAMES: [&str; 4] = ["localhost", "127.0.0.1", "[::1]", "guest"];

/// Answers once the port has accepted, then moves bytes both ways until both sides
/// have ended.
pub(crate) async fn connect(request: Request<Incoming>) -> Reply {
    let authority = request.uri().authority();
    let allowed = authority.filter(|a| LOOPBACK_NAMES.contains(&a.host()));
    let Some(port) = allowed.and_then(http::uri::Authority::port_u16) else {
        return reply::error(
            StatusCode::BAD_REQUEST,
            "CONNECT needs localhost and a port",
        );
    };
    let mut inside = match dial(port).await {
        Ok(inside) => inside,
        Err(error) => {
            let message = format!("port {port} is not open: {error}");
            return reply::error(StatusCode::BAD_GATEWAY, &message);
        }
    };
    tokio::spawn(async move {
        if let Ok(outside) = hyper::upgrade::on(request).await {
            let mut outside = TokioIo::new(outside);
            // Either side may end at any time; that is how connections end.
            let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
        }
    });
    Response::new(reply::empty())
}

/// Services listen on either loopback address, or on both.
async fn dial(port: u16) -> std::io::Result<TcpStream> {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpStream::connect(v4).await {
        Ok(stream) => Ok(stream),
        Err(error) => {
            let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
            TcpStream::connect(v6).await.map_err(|_| error)
        }
    }
}

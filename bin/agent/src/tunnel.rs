//! `POST http://tunnel/PORT`: from an HTTP/2 stream to a port inside the guest.
//!
//! Only the host's own shim can ask: what it passes on for clients has another authority.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use pando_wire::tunnel;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use crate::reply::{self, Reply};

/// Where services listen: on either loopback address, on both, or on the network card's alone.
const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15)),
];

/// A service whose queue of connections is full drops further ones; the kernel tries again
/// after 1 s and after 3 s.
const DIAL_TIME: Duration = Duration::from_secs(5);

/// Answers once the port has accepted, then moves bytes both ways until both sides
/// have ended.
pub(crate) async fn open(request: Request<Incoming>) -> Reply {
    let Some(port) = tunnel::port_of(request.uri().path()) else {
        return reply::error(StatusCode::BAD_REQUEST, "a tunnel needs a port");
    };
    let Some(inside) = dial(port).await else {
        return reply::error(StatusCode::BAD_GATEWAY, "the port is not open");
    };
    // Small answers must not wait for more.
    let _ = inside.set_nodelay(true);
    let (reader, writer) = inside.into_split();
    tokio::spawn(deliver(request.into_body(), writer));
    Response::new(tunnel::outgoing(reader))
}

async fn deliver(body: Incoming, mut writer: OwnedWriteHalf) {
    if tunnel::deliver(body, &mut writer).await.is_err() {
        // The service is to see a reset, not an end.
        let _ = writer.as_ref().set_zero_linger();
        writer.forget();
    }
}

async fn dial(port: u16) -> Option<TcpStream> {
    for address in ADDRESSES {
        let dialled = tokio::time::timeout(DIAL_TIME, TcpStream::connect((address, port))).await;
        if let Ok(Ok(stream)) = dialled {
            // A connection to a free port of the range it is dialled from may meet itself.
            let itself = stream.local_addr().ok() == stream.peer_addr().ok();
            return (!itself).then_some(stream);
        }
    }
    None
}

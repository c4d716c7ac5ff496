//! Traffic into guests: `<port>-<id>.<anything>`, or E2B's routing headers.
//!
//! Port 49983 is the agent's user service. It is asked through the channel and
//! needs the API key of the sandbox's tenant. Every other port is a server in the
//! guest. No key of ours reaches either.

mod agent;
mod answer;
mod headers;
mod pass;
mod ports;

pub(crate) use agent::{guest_body, guest_uri};

use crate::dispatch::GuestTarget;
use crate::error::ApiError;
use crate::urls::Urls;
use answer::{Answerer, Trouble};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use pando_engine::request::Caller;
use pando_engine::{AGENT_PORT, Engine};
use std::net::{IpAddr, SocketAddr};

/// Where a request came from, as far as the listener knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// The connection that a request came on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
}

/// Takes a request into a guest.
pub(crate) async fn forward(
    engine: Engine,
    urls: &Urls,
    target: GuestTarget,
    caller: Option<Caller>,
    request: Request,
) -> Response {
    let answerer = Answerer::new(&target, request.headers());
    let Some(sandbox) = target.sandbox.clone() else {
        return answerer.answer(Trouble::Unknown);
    };
    if target.port == AGENT_PORT {
        return agent::forward(&engine, &answerer, &sandbox, caller, request).await;
    }
    ports::forward(
        &engine,
        urls,
        &answerer,
        (&sandbox, target.port),
        caller,
        request,
    )
    .await
}

/// The answer for a port that cannot exist.
pub(crate) fn bad_port() -> Response {
    ApiError::BadParameter("the port of the sandbox must be 1 to 65535".to_owned()).into_response()
}

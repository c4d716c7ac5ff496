//! The daemon's one listener: who gets a request, and the native API behind it.
//!
//! A request passes `gate` (id, `Host`, `Origin`, key) and is handed to a door:
//! `v1` (native), `arrakis` and `e2b` (reserved), or `proxy` (into a guest).
//! Doors translate to requests of the engine and hold no rules.

mod arrakis;
mod dispatch;
mod e2b;
mod error;
mod gate;
mod host;
mod json;
mod metrics;
mod process;
mod proxy;
mod server;
mod trace;
mod urls;
mod v1;

pub use error::{ERRORS, ErrorRow, error_documentation};
pub use urls::{BadPublicUrl, PublicUrl};

use crate::gate::{Doors, Gate, GuestDoor, KeyCheck};
use crate::host::HostRules;
use crate::metrics::Metrics;
use crate::urls::Urls;
use pando_engine::{Engine, Observer};
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;

/// What the listener must know beyond its engine.
#[derive(Clone, Debug, Default)]
pub struct HttpConfig {
    /// Further host names the daemon is known by, without ports.
    pub public_hosts: Vec<String>,
    /// Where ports of sandboxes are reached from other machines.
    pub public_url: Option<PublicUrl>,
}

/// Serves the API on `listener` until `shutdown` completes, then lets running requests end.
///
/// # Errors
/// If the listener has no address.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    config: HttpConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let mut hosts = config.public_hosts;
    hosts.extend(config.public_url.iter().flat_map(PublicUrl::hosts));
    let rules = HostRules::new(address.ip(), hosts);
    let urls = Arc::new(Urls::new(config.public_url, address.port()));
    let metrics = Arc::<Metrics>::default();
    engine.observe(Arc::clone(&metrics) as Arc<dyn Observer>);
    let native = v1::router(engine.clone(), Arc::clone(&metrics), Arc::clone(&urls));
    let guest: GuestDoor = {
        let engine = engine.clone();
        Arc::new(move |target, caller, request| {
            let (engine, urls) = (engine.clone(), Arc::clone(&urls));
            Box::pin(async move { proxy::forward(engine, &urls, target, caller, request).await })
        })
    };
    let key_check: KeyCheck = Arc::new(move |key| {
        let engine = engine.clone();
        Box::pin(async move { engine.authenticate(&key) })
    });
    let gate = Gate::new(rules, key_check, Doors { native, guest }, metrics);
    server::serve(listener, gate, shutdown).await;
    Ok(())
}

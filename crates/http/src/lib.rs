//! The daemon's one listener: who gets a request, and the native API behind it.
//!
//! A request passes `gate` (id, `Host`, `Origin`, key) and is handed to a door:
//! `v1` (native), `arrakis`, `e2b` (reserved), or `proxy` (into a guest).
//! Doors translate to requests of the engine and hold no rules.

mod arrakis;
mod dispatch;
mod e2b;
mod error;
mod gate;
mod guest_files;
mod host;
mod json;
mod metrics;
mod process;
mod proxy;
mod server;
mod to_the_end;
mod trace;
mod urls;
mod v1;

pub use arrakis::TENANT as ARRAKIS_TENANT;
pub use error::{ERRORS, ErrorRow, error_documentation};
pub use urls::{BadPublicUrl, PublicUrl};

use crate::arrakis::access::Keyless;
use crate::gate::{Doors, Gate, GuestDoor, KeyCheck};
use crate::host::HostRules;
use crate::metrics::Metrics;
use crate::urls::Urls;
use axum::Router;
use pando_engine::{Engine, Observer};
use pando_types::TemplateRef;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;

/// What the listener must know beyond its engine.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Further host names the daemon is known by, without ports.
    pub public_hosts: Vec<String>,
    /// Where ports of sandboxes are reached from other machines.
    pub public_url: Option<PublicUrl>,
    /// The Arrakis door's own.
    pub arrakis: ArrakisConfig,
    /// Further routes of the native door, which asks for a key first: `/mcp`.
    pub routes: Router,
}

/// How clients of Arrakis are served.
#[derive(Clone, Debug)]
pub struct ArrakisConfig {
    /// What their VMs are made from; `None` is `desktop` where there is such a template, else
    /// `base`.
    pub template: Option<TemplateRef>,
    /// Whether they need a key, whoever they are.
    pub demands_key: bool,
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
    // It has these for what stands before it and passes others' requests on.
    let is_public = !hosts.is_empty();
    let rules = HostRules::new(address.ip(), hosts);
    let keyless = Keyless::of(
        config.arrakis.demands_key,
        address.ip().is_loopback(),
        is_public,
    );
    let arrakis = arrakis::router(engine.clone(), config.arrakis.template);
    let urls = Arc::new(Urls::new(config.public_url, address.port()));
    let metrics = Arc::<Metrics>::default();
    engine.observe(Arc::clone(&metrics) as Arc<dyn Observer>);
    let native = v1::router(engine.clone(), Arc::clone(&metrics), Arc::clone(&urls));
    let native = native.merge(config.routes);
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
    let doors = Doors {
        native,
        arrakis,
        keyless,
        of_a_sandbox: |connection| {
            pando_engine::may_be_of_a_sandbox(connection.client, connection.server)
        },
        guest,
    };
    let gate = Gate::new(rules, key_check, doors, metrics);
    server::serve(listener, gate, shutdown).await;
    Ok(())
}

//! What one more sandbox costs in memory.

use crate::BenchError;
use crate::figure::Figure;
use crate::procfs;
use crate::session::Session;
use std::io;
use std::time::Duration;

/// Each of them has two siblings.
const SANDBOXES: usize = 3;

/// After this long without a request a sandbox counts as idle.
const REST: Duration = Duration::from_secs(2);

/// In MiB.
struct Cost {
    guest: f64,
    vmm: f64,
    shim: f64,
}

/// Measures some siblings, each of which has run a program.
pub(super) async fn memory(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    session.await_pool().await?;
    let made = session.make_many(SANDBOXES).await?;
    session.await_pool().await?;
    tokio::time::sleep(REST).await;
    let costs: io::Result<Vec<_>> = made.iter().map(|made| cost(session, &made.id)).collect();
    session.remove_all(&made).await?;
    Ok(match costs {
        Ok(costs) => figures(&costs),
        Err(error) => missing(&error),
    })
}

fn cost(session: &Session<'_>, sandbox: &str) -> io::Result<Cost> {
    let shim = session.daemon.shim(sandbox)?;
    let vmm = procfs::vmm_memory(procfs::child_of(shim)?)?;
    let mib = |kib: u64| kib as f64 / 1024.0;
    Ok(Cost {
        guest: mib(vmm.guest_kib),
        vmm: mib(vmm.rest_kib),
        shim: mib(procfs::private_kib(shim)?),
    })
}

fn figures(costs: &[Cost]) -> Vec<Figure> {
    let figure = |name, part: fn(&Cost) -> f64| Figure::new(name, costs.iter().map(part).collect());
    vec![
        figure("memory", |cost| cost.guest + cost.vmm + cost.shim),
        figure("memory-guest", |cost| cost.guest),
        figure("memory-vmm", |cost| cost.vmm),
        figure("memory-shim", |cost| cost.shim),
    ]
}

fn missing(error: &io::Error) -> Vec<Figure> {
    let names = ["memory", "memory-guest", "memory-vmm", "memory-shim"];
    let reason = format!("QEMU's memory maps cannot be read: {error}");
    names
        .into_iter()
        .map(|name| Figure::missing(name, reason.clone()))
        .collect()
}

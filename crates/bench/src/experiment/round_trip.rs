//! A sandbox that is there: programs in it, and the way to its agent.

use super::{BesideContainers, exec_name};
use crate::BenchError;
use crate::figure::{Baseline, Figure, Measured};
use crate::schedule::interleave;
use crate::session::{Session, Start};
use crate::stats::Better;

/// Without KVM the first few make QEMU translate the guest's code; that is `create-…`'s.
const WARM_UP: usize = 5;

/// `/bin/true` in a sandbox, beside the same in a container that runs.
pub(super) async fn exec(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let mut beside = BesideContainers::new(session);
    let mut containers = Vec::new();
    for (at, runtime) in beside.working() {
        containers.push((at, runtime.start().await?));
    }
    let sandbox = warmed_up(session).await?;
    let mut own = Vec::new();
    let turns = beside.turns(session.counts.exec_baseline);
    let turns: Vec<_> = std::iter::once(session.counts.exec).chain(turns).collect();
    for turn in interleave(&turns) {
        match turn.checked_sub(1) {
            None => own.push(session.exec(&sandbox).await?),
            Some(at) => {
                let container = containers.iter().find(|(place, _)| *place == at);
                if let Some((_, container)) = container {
                    let time = beside.runtimes[at].exec(container).await?;
                    beside.samples[at].push(time);
                }
            }
        }
    }
    session.remove(&sandbox).await?;
    for (at, container) in &containers {
        beside.runtimes[*at].remove(container).await;
    }
    let figure = Figure::new("exec", own).baselines(beside.baselines(Better::Less, exec_name));
    Ok(vec![figure])
}

/// To the agent and back, beside to the daemon and back on the same connection.
pub(super) async fn ping(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let sandbox = warmed_up(session).await?;
    for _ in 0..WARM_UP {
        session.ping(&sandbox).await?;
    }
    let (mut own, mut daemon) = (Vec::new(), Vec::new());
    for _ in 0..session.counts.ping {
        own.push(session.ping(&sandbox).await?);
        daemon.push(session.health().await?);
    }
    session.remove(&sandbox).await?;
    let health = Baseline {
        name: "GET /healthz",
        what: "to the daemon and back, on the same connection".to_owned(),
        measured: Measured::of(daemon, Better::Less),
    };
    Ok(vec![Figure::new("ping", own).baselines([health])])
}

/// A sandbox that has run a few programs, and a machine that does nothing else.
pub(super) async fn warmed_up(session: &Session<'_>) -> Result<String, BenchError> {
    let sandbox = session.make(Start::Auto).await?.id;
    warmed(session, &sandbox).await?;
    Ok(sandbox)
}

/// The same of a sandbox that is there.
pub(super) async fn warmed(session: &Session<'_>, sandbox: &str) -> Result<(), BenchError> {
    for _ in 0..WARM_UP {
        session.exec(sandbox).await?;
    }
    session.await_pool().await.map(drop)
}

//! Many sandboxes that do nothing.

use crate::BenchError;
use crate::figure::{Baseline, Figure, Measured};
use crate::machine;
use crate::procfs;
use crate::session::{Made, Session, Start};
use crate::stats::Better;
use std::io;
use std::time::{Duration, Instant};

/// How long they are watched doing nothing.
const REST: Duration = Duration::from_secs(5);

/// Programs run in the one sandbox that the many are compared with.
const ALONE: usize = 10;

/// What a sandbox may take of the host's memory, generously; in MiB.
const SANDBOX_MIB: u64 = 96;

/// Makes many, lets them rest, and asks each of them something.
pub(super) async fn idle(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let count = session.counts.idle;
    if let Some(reason) = lack_of_memory(count) {
        let names = ["idle-exec", "idle-daemon", "idle-cpu"];
        let figures = names.map(|name| Figure::missing(name, reason.clone()));
        return Ok(figures.into());
    }
    let alone = alone(session).await?;
    let made = session.make_many(count).await?;
    session.await_pool().await?;
    let cpu = idle_cpu(session, &made).await;
    let mut times = Vec::new();
    for sandbox in &made {
        times.push(session.exec(&sandbox.id).await?);
    }
    let daemon = procfs::resident(session.daemon.pid);
    session.remove_all(&made).await?;
    session.await_pool().await?;
    let one = Baseline {
        name: "one sandbox",
        what: "the same exec while there is no other sandbox".to_owned(),
        measured: Measured::of(alone, Better::Less),
    };
    let read = |name, value: io::Result<f64>| match value {
        Ok(value) => Figure::new(name, vec![value]),
        Err(error) => Figure::missing(name, format!("a process cannot be read: {error}")),
    };
    Ok(vec![
        Figure::new("idle-exec", times)
            .baselines([one])
            .notes(session.take_pool_note()),
        read("idle-daemon", daemon.map(|of| of.now_kib as f64 / 1024.0)),
        read("idle-cpu", cpu),
    ])
}

fn lack_of_memory(count: usize) -> Option<String> {
    let needed = SANDBOX_MIB * count as u64;
    let available = machine::available_mib();
    (available < needed).then(|| {
        format!("{count} sandboxes need {needed} MiB of free memory, there are {available}")
    })
}

/// Each exec comes after a rest, as it does when there are many.
async fn alone(session: &Session<'_>) -> Result<Vec<f64>, BenchError> {
    let sandbox = session.make(Start::Auto).await?;
    session.await_pool().await?;
    let mut times = Vec::new();
    for _ in 0..ALONE {
        tokio::time::sleep(REST / 20).await;
        times.push(session.exec(&sandbox.id).await?);
    }
    session.remove(&sandbox.id).await?;
    Ok(times)
}

/// What all their VMMs use while nobody asks for anything, in percent of one core.
async fn idle_cpu(session: &Session<'_>, made: &[Made]) -> io::Result<f64> {
    let vmms: io::Result<Vec<u32>> = made
        .iter()
        .map(|made| procfs::child_of(session.daemon.shim(&made.id)?))
        .collect();
    let vmms = vmms?;
    let ticks = || {
        vmms.iter()
            .map(|pid| procfs::cpu_ticks(*pid))
            .sum::<io::Result<u64>>()
    };
    let (before, began) = (ticks()?, Instant::now());
    tokio::time::sleep(REST).await;
    let used = ticks()?.saturating_sub(before) as f64;
    let seconds = used / rustix::param::clock_ticks_per_second() as f64;
    Ok(100.0 * seconds / began.elapsed().as_secs_f64())
}

//! From the request for a sandbox to the answer of its first program.

use super::{BesideContainers, run_name};
use crate::BenchError;
use crate::figure::{Baseline, Figure, Measured};
use crate::schedule::interleave;
use crate::session::{Made, SIDE_BY_SIDE, Session, Start};
use crate::stats::{Better, milliseconds_since};
use std::time::Instant;

/// One at a time, each from a full pool.
pub(super) async fn warm(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let mut beside = BesideContainers::new(session);
    let count = session.counts.create;
    let turns: Vec<_> = std::iter::once(count).chain(beside.turns(count)).collect();
    let mut made = Vec::new();
    let claims = session.await_pool().await?;
    for turn in interleave(&turns) {
        // A pool that fills takes the machine from whoever is measured.
        session.await_pool().await?;
        match turn.checked_sub(1) {
            None => {
                let sandbox = session.make(Start::Auto).await?;
                session.remove(&sandbox.id).await?;
                made.push(sandbox);
            }
            Some(at) => beside.samples[at].push(beside.runtimes[at].run().await?),
        }
    }
    let hits = session.hits(claims, made.len()).await?;
    let figure = of_sandboxes("create-warm", &made)
        .baselines(beside.baselines(Better::Less, run_name))
        .notes(session.take_pool_note());
    Ok(vec![figure, Figure::new("create-warm-hits", vec![hits])])
}

/// Loaded for the request, beside a boot for the request.
pub(super) async fn snapshot(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let turns = [session.counts.snapshot, session.counts.boot];
    let (mut loaded, mut booted) = (Vec::new(), Vec::new());
    for turn in interleave(&turns) {
        session.await_pool().await?;
        let (start, made) = match turn {
            0 => (Start::Snapshot, &mut loaded),
            _ => (Start::Boot, &mut booted),
        };
        let sandbox = session.make(start).await?;
        session.remove(&sandbox.id).await?;
        made.push(sandbox);
    }
    let boot = Baseline {
        name: "boot",
        what: "the same sandbox with `start: boot`: its kernel boots for the request".to_owned(),
        measured: Measured::of(totals(&booted), Better::Less),
    };
    let figure = of_sandboxes("create-snapshot", &loaded)
        .baselines([boot])
        .notes(session.take_pool_note());
    Ok(vec![figure])
}

/// Back to back: the pool refills while it is drained.
pub(super) async fn burst(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let mut beside = BesideContainers::new(session);
    let count = session.counts.burst;
    let claims = session.await_pool().await?;
    let mut made = Vec::new();
    let began = Instant::now();
    for _ in 0..count {
        made.push(session.make(Start::Auto).await?);
    }
    let wall = began.elapsed().as_secs_f64();
    let hits = session.hits(claims, made.len()).await?;
    session.remove_all(&made).await?;
    session.await_pool().await?;
    for (at, runtime) in beside.working() {
        for _ in 0..count {
            beside.samples[at].push(runtime.run().await?);
        }
    }
    let figure = of_sandboxes("create-burst", &made)
        .baselines(beside.baselines(Better::Less, run_name))
        .notes(session.take_pool_note());
    Ok(vec![
        figure,
        Figure::new("create-burst-wall", vec![wall]),
        Figure::new("create-burst-hits", vec![hits]),
    ])
}

/// Eight requests at the same moment.
pub(super) async fn at_once(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let mut beside = BesideContainers::new(session);
    let (mut all, mut walls, mut hits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..session.counts.at_once_rounds {
        let claims = session.await_pool().await?;
        let began = Instant::now();
        let made = session.make_many(SIDE_BY_SIDE).await?;
        walls.push(milliseconds_since(began) / 1e3);
        hits.push(session.hits(claims, made.len()).await?);
        session.remove_all(&made).await?;
        all.extend(made);
        session.await_pool().await?;
        for (at, runtime) in beside.working() {
            beside.samples[at].extend(runtime.run_at_once(SIDE_BY_SIDE).await?);
        }
    }
    let figure = of_sandboxes("create-at-once", &all)
        .baselines(beside.baselines(Better::Less, run_name))
        .notes(session.take_pool_note());
    Ok(vec![
        figure,
        Figure::new("create-at-once-wall", walls),
        Figure::new("create-at-once-hits", hits),
    ])
}

fn of_sandboxes(name: &'static str, made: &[Made]) -> Figure {
    let creates = made.iter().map(|made| made.create_ms).collect();
    let execs = made.iter().map(|made| made.exec_ms).collect();
    Figure::new(name, totals(made))
        .part("create", creates)
        .part("first exec", execs)
}

fn totals(made: &[Made]) -> Vec<f64> {
    made.iter().map(Made::total_ms).collect()
}

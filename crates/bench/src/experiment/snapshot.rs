//! Snapshots of a running sandbox: how long it stands still, and what is kept.

use super::BesidePlain;
use super::round_trip::warmed_up;
use crate::BenchError;
use crate::figure::{Baseline, Figure, Measured};
use crate::plain::Saved;
use crate::schedule::interleave;
use crate::session::Session;
use crate::stats::{Better, Summary, milliseconds_since, slope};
use pando_client::api::Snapshot;
use std::cell::Cell;
use std::time::Instant;

/// What the sandbox writes before each snapshot, in MiB.
pub(super) const DIRTY_MIB: usize = 8;

/// The sizes that the slope is of.
const SIZES_MIB: [usize; SIZES] = [1, 8, 16, 32];
const SIZES: usize = 4;

/// Their pauses, in ms, as parts of the slope.
const PAUSES: [&str; SIZES] = ["pause at 1 MiB", "at 8 MiB", "at 16 MiB", "at 32 MiB"];

/// Snapshots in a row of one sandbox.
const ROW: usize = 10;

/// A page of the guest's memory, in MiB.
const PAGE_MIB: f64 = 1.0 / 256.0;

/// Round trips of a client before and after the snapshot that it is to notice.
const PINGS: usize = 50;

/// Rows of snapshots beside `savevm`, then several sizes, then a client that pings.
pub(super) async fn snapshot(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let mut plain = BesidePlain::start(session, "plain-snapshot").await?;
    let turns = [session.counts.snapshot_rows, plain.turns(session)];
    let (mut rows, mut saved) = (Vec::new(), Vec::new());
    for turn in interleave(&turns) {
        match turn {
            0 => rows.push(Row::take(session).await?),
            _ => saved.push(plain.vm()?.save().await?),
        }
    }
    plain.end().await;
    let sizes = of_sizes(session).await?;
    let gaps = gaps(session).await?;
    Ok(figures(&rows, &saved, &plain.missing, &sizes, gaps))
}

/// Snapshots of one sandbox, one after the other.
struct Row {
    /// Holds what the sandbox wrote since it was made.
    first_ever: Snapshot,
    /// After each of which there were [`DIRTY_MIB`].
    snapshots: Vec<Snapshot>,
}

impl Row {
    async fn take(session: &Session<'_>) -> Result<Self, BenchError> {
        let sandbox = warmed_up(session).await?;
        session.dirty(&sandbox, DIRTY_MIB).await?;
        let first_ever = session.take(&sandbox).await?;
        let mut snapshots = Vec::new();
        for _ in 0..ROW {
            session.dirty(&sandbox, DIRTY_MIB).await?;
            snapshots.push(session.take(&sandbox).await?);
        }
        end(session, &sandbox).await?;
        Ok(Self {
            first_ever,
            snapshots,
        })
    }
}

async fn end(session: &Session<'_>, sandbox: &str) -> Result<(), BenchError> {
    session.remove(sandbox).await?;
    session.forget_snapshots().await
}

/// Snapshots with several sizes in turn, of one sandbox: per size.
async fn of_sizes(session: &Session<'_>) -> Result<[Vec<Snapshot>; SIZES], BenchError> {
    let mut taken = [const { Vec::new() }; SIZES];
    let sandbox = warmed_up(session).await?;
    // All pages are there, and all but the next ones are kept.
    session.dirty(&sandbox, SIZES_MIB[SIZES - 1]).await?;
    session.take(&sandbox).await?;
    for turn in interleave(&[session.counts.snapshot_sizes; SIZES]) {
        session.dirty(&sandbox, SIZES_MIB[turn]).await?;
        taken[turn].push(session.take(&sandbox).await?);
    }
    end(session, &sandbox).await?;
    Ok(taken)
}

/// What a client notices of snapshots.
struct Gaps {
    gaps: Vec<f64>,
    pauses: Vec<f64>,
}

async fn gaps(session: &Session<'_>) -> Result<Gaps, BenchError> {
    let (mut gaps, mut pauses) = (Vec::new(), Vec::new());
    let sandbox = warmed_up(session).await?;
    session.dirty(&sandbox, DIRTY_MIB).await?;
    session.take(&sandbox).await?;
    for _ in 0..session.counts.snapshot_sizes {
        session.dirty(&sandbox, DIRTY_MIB).await?;
        let (gap, snapshot) = gap(session, &sandbox).await?;
        gaps.push(gap);
        pauses.push(snapshot.pause_ms);
    }
    end(session, &sandbox).await?;
    Ok(Gaps { gaps, pauses })
}

/// The longest time between two answers to a client that asks without a rest, from before a
/// snapshot to after it, beyond what is usual.
async fn gap(session: &Session<'_>, sandbox: &str) -> Result<(f64, Snapshot), BenchError> {
    let mut usual = Vec::new();
    for _ in 0..PINGS {
        usual.push(session.ping(sandbox).await?);
    }
    let taken = Cell::new(false);
    let taking = async {
        let snapshot = session.take(sandbox).await;
        taken.set(true);
        snapshot
    };
    let pinging = async {
        let (mut longest, mut last) = (0.0_f64, Instant::now());
        let mut after = 0;
        while after < PINGS {
            session.ping(sandbox).await?;
            longest = longest.max(milliseconds_since(last));
            last = Instant::now();
            after += usize::from(taken.get());
        }
        Ok(longest)
    };
    let (snapshot, longest) = futures::try_join!(taking, pinging)?;
    let usual = Summary::of(&usual, Better::Less).map_or(0.0, |usual| usual.p50);
    Ok((longest - usual, snapshot))
}

fn figures(
    rows: &[Row],
    saved: &[Saved],
    missing: &Option<String>,
    sizes: &[Vec<Snapshot>; SIZES],
    gaps: Gaps,
) -> Vec<Figure> {
    let all = |of: fn(&Snapshot) -> f64| -> Vec<f64> {
        let snapshots = rows.iter().flat_map(|row| &row.snapshots);
        snapshots.map(of).collect()
    };
    let nth = |n: usize, of: fn(&Snapshot) -> f64| -> Vec<f64> {
        rows.iter().map(|row| of(&row.snapshots[n])).collect()
    };
    let ever = |of: fn(&Snapshot) -> f64| rows.iter().map(|row| of(&row.first_ever)).collect();
    let savevm = |of: fn(&Saved) -> f64| {
        super::plain_baseline(
            "savevm",
            "QEMU without Pando keeps the VM of a sandbox that has just been made, with `savevm`; \
         it stands still for all of it",
            saved.iter().map(of).collect(),
            missing,
        )
    };
    let first = |of| Baseline {
        name: "first in a row",
        what: "the first of these ten snapshots, with as much written before it".to_owned(),
        measured: Measured::of(nth(0, of), Better::Less),
    };
    vec![
        Figure::new("snapshot-pause", all(pause))
            .part("first of a sandbox", ever(pause))
            .baselines([savevm(|saved| saved.pause_ms)]),
        slope_figure(sizes),
        Figure::new("snapshot-durable", all(|snapshot| snapshot.durable_ms)),
        Figure::new("snapshot-bytes", all(bytes))
            .part("dirty pages", all(pages))
            .part("first of a sandbox", ever(bytes))
            .baselines([savevm(|saved| saved.mib)]),
        Figure::new("snapshot-tenth", nth(ROW - 1, pause)).baselines([first(pause)]),
        Figure::new("snapshot-tenth-bytes", nth(ROW - 1, bytes)).baselines([first(bytes)]),
        Figure::new("snapshot-gap", gaps.gaps).part("pause", gaps.pauses),
    ]
}

fn pause(snapshot: &Snapshot) -> f64 {
    snapshot.pause_ms
}

/// In MiB.
fn bytes(snapshot: &Snapshot) -> f64 {
    snapshot.bytes as f64 / f64::from(1 << 20)
}

/// In MiB.
fn pages(snapshot: &Snapshot) -> f64 {
    snapshot.dirty_pages as f64 * PAGE_MIB
}

/// Medians of the pauses over medians of the pages that were dirty.
fn slope_figure(sizes: &[Vec<Snapshot>; SIZES]) -> Figure {
    let median = |samples: &[f64]| Summary::of(samples, Better::Less).map(|of| of.p50);
    let samples = |taken: &[Snapshot], of: fn(&Snapshot) -> f64| -> Vec<f64> {
        taken.iter().map(of).collect()
    };
    let points = sizes.iter().map(|taken| {
        let dirty = median(&samples(taken, pages));
        dirty.zip(median(&samples(taken, pause)))
    });
    let points: Option<Vec<_>> = points.collect();
    let figure = match points.and_then(|points| slope(&points)) {
        Some(slope) => Figure::new("snapshot-slope", vec![slope]),
        None => Figure::missing("snapshot-slope", "all snapshots have the same size"),
    };
    let parts = PAUSES.into_iter().zip(sizes);
    parts.fold(figure, |figure, (name, taken)| {
        figure.part(name, samples(taken, pause))
    })
}

//! Back to a kept state: until the sandbox answers, and until it has run a program.

use super::round_trip::warmed_up;
use super::snapshot::DIRTY_MIB;
use super::{BesidePlain, plain_baseline};
use crate::BenchError;
use crate::figure::Figure;
use crate::schedule::interleave;
use crate::session::Session;
use crate::stats::milliseconds_since;
use std::time::Instant;

/// From the request, in ms.
#[derive(Default)]
struct Times {
    answering: Vec<f64>,
    exec: Vec<f64>,
    plain: Vec<f64>,
}

impl Times {
    /// Of the sandbox that was asked to go back then.
    async fn add(
        &mut self,
        session: &Session<'_>,
        sandbox: &str,
        asked: Instant,
    ) -> Result<(), BenchError> {
        session.ping(sandbox).await?;
        self.answering.push(milliseconds_since(asked));
        session.exec(sandbox).await?;
        self.exec.push(milliseconds_since(asked));
        Ok(())
    }
}

/// To the same snapshot again and again, beside `loadvm`.
pub(super) async fn rollback(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let mut plain = BesidePlain::start(session, "plain-rollback").await?;
    if let Ok(vm) = plain.vm() {
        vm.save().await?;
    }
    let sandbox = warmed_up(session).await?;
    session.dirty(&sandbox, DIRTY_MIB).await?;
    let snapshot = session.take(&sandbox).await?.id;
    let mut times = Times::default();
    for turn in interleave(&[session.counts.going_back, plain.turns(session)]) {
        match turn {
            0 => {
                // Something to be left behind.
                session.dirty(&sandbox, DIRTY_MIB).await?;
                let asked = Instant::now();
                session.roll_back(&sandbox, &snapshot).await?;
                times.add(session, &sandbox, asked).await?;
            }
            _ => times.plain.push(plain.vm()?.load().await?),
        }
    }
    plain.end().await;
    session.remove(&sandbox).await?;
    session.forget_snapshots().await?;
    let loadvm = plain_baseline(
        "loadvm",
        "QEMU without Pando brings back what `savevm` kept, with `loadvm`, until the guest's \
         agent answers",
        times.plain,
        &plain.missing,
    );
    Ok(vec![
        Figure::new("rollback", times.answering).baselines([loadvm]),
        Figure::new("rollback-exec", times.exec),
    ])
}

/// From the disk, beside a QEMU that begins with `-loadvm`.
pub(super) async fn resume(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let mut plain = BesidePlain::start(session, "plain-resume").await?;
    if let Ok(vm) = plain.vm() {
        vm.save().await?;
    }
    let sandbox = warmed_up(session).await?;
    let mut times = Times::default();
    for turn in interleave(&[session.counts.going_back, plain.turns(session)]) {
        match turn {
            0 => {
                session.dirty(&sandbox, DIRTY_MIB).await?;
                session.pause(&sandbox).await?;
                let asked = Instant::now();
                session.resume(&sandbox).await?;
                times.add(session, &sandbox, asked).await?;
            }
            _ => times.plain.push(plain.vm()?.load_anew().await?),
        }
    }
    plain.end().await;
    session.remove(&sandbox).await?;
    let loadvm = plain_baseline(
        "-loadvm",
        "QEMU without Pando is started with `-loadvm`, until the guest's agent answers",
        times.plain,
        &plain.missing,
    );
    Ok(vec![
        Figure::new("resume", times.answering).baselines([loadvm]),
        Figure::new("resume-exec", times.exec),
    ])
}

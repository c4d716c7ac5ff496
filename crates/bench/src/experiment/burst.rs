//! A hundred requests for a sandbox at the same moment, far more than there are turns.

use crate::BenchError;
use crate::figure::Figure;
use crate::session::Session;
use crate::stats::milliseconds_since;
use futures::TryStreamExt as _;
use std::time::Instant;

/// How many come at once.
const BURST: usize = 100;

/// Whoever is refused asks again as it is told to, until it has its sandbox.
pub(super) async fn burst(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    session.await_pool().await?;
    let began = Instant::now();
    let coming: futures::stream::FuturesUnordered<_> =
        (0..BURST).map(|_| session.insist()).collect();
    let came: Vec<_> = coming.try_collect().await?;
    let wall = milliseconds_since(began) / 1e3;
    session.await_pool().await?;
    let at_first = came.iter().filter(|came| came.refusals == 0).count();
    let refusals: usize = came.iter().map(|came| came.refusals).sum();
    let times = came.iter().map(|came| came.total_ms).collect();
    let note = format!(
        "{refusals} refusals with `Retry-After`; {:.1} sandboxes a second",
        BURST as f64 / wall
    );
    Ok(vec![
        Figure::new("burst-100", times).notes(Some(note)),
        Figure::new("burst-100-wall", vec![wall]),
        Figure::new(
            "burst-100-first",
            vec![100.0 * at_first as f64 / BURST as f64],
        ),
    ])
}

//! The daemon's own end, as calls that are under way learn of it.
//!
//! What runs in sandboxes runs on. A call that waits for it would keep the daemon, or be
//! cut off without a word: it is answered with what its caller needs to find it again.

use crate::engine::Engine;
use tokio::sync::watch;

/// Whether the daemon ends.
#[derive(Debug)]
pub(crate) struct Ending(watch::Sender<bool>);

impl Default for Ending {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Engine {
    /// The daemon ends: calls that wait for a sandbox end with
    /// [`EngineError::DaemonRestarted`](crate::EngineError::DaemonRestarted), followers of
    /// the journal are let go.
    pub fn end_calls(&self) {
        self.inner.ending.0.send_replace(true);
    }

    /// Completes when the daemon ends.
    pub(crate) fn ending(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ending = self.inner.ending.0.subscribe();
        async move {
            // An engine that is gone has ended too.
            drop(ending.wait_for(|ending| *ending).await);
        }
    }
}

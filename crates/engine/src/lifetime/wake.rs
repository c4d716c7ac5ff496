//! Whoever needs a sandbox running gets it so: one that sleeps is woken, once for all who wait.

use super::activity::Using;
use crate::EngineError;
use crate::engine::Engine;
use crate::observe::Operation;
use crate::sandboxes::Entry;
use crate::shims::Shim;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use pando_types::SandboxState;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// How long a caller waits for a sandbox to be awake. It takes well under a second; a VM that
/// does not come up is given up after a minute, and what has the sandbox's turn before, such
/// as a pause on a slow disk, may take as long.
const WAKE_TIMEOUT: Duration = Duration::from_secs(150);

/// How often a caller wakes a sandbox that somebody puts on disk again before it gets there.
const WAKES: usize = 3;

/// What all who wait for a sandbox wait for.
pub(crate) type Waking = Shared<BoxFuture<'static, Result<(), EngineError>>>;

/// The shim of a sandbox that runs and is used as long as this is there.
#[derive(Debug)]
pub(crate) struct InUse {
    shim: Arc<Shim>,
    using: Using,
}

impl InUse {
    /// The use alone.
    pub(crate) fn into_using(self) -> Using {
        self.using
    }
}

impl Deref for InUse {
    type Target = Arc<Shim>;

    fn deref(&self) -> &Arc<Shim> {
        &self.shim
    }
}

/// The next who comes begins a waking of its own.
struct Woken(Arc<Entry>);

impl Drop for Woken {
    fn drop(&mut self) {
        *self.0.waking() = None;
    }
}

impl Engine {
    /// Begins a use of a sandbox that has to run for it; one that sleeps is woken first.
    pub(crate) async fn awake(&self, entry: &Arc<Entry>) -> Result<InUse, EngineError> {
        let using = self.begin_use(entry).await?;
        let shim = entry.in_use()?;
        Ok(InUse { shim, using })
    }

    /// Begins a use. Afterwards the sandbox is not being put on disk, and does not sleep if
    /// it can be woken; it need not run.
    pub(crate) async fn begin_use(&self, entry: &Arc<Entry>) -> Result<Using, EngineError> {
        let (using, mut open) = entry.activity.begin();
        for _ in 0..WAKES {
            if open && !entry.can_be_woken() {
                break;
            }
            let woken = tokio::time::timeout(WAKE_TIMEOUT, self.waking(entry)).await;
            woken.map_err(|_| EngineError::SpawnFailed("it did not wake in time".to_owned()))??;
            open = !entry.activity.is_closed();
        }
        Ok(using)
    }

    /// The waking that is under way, or a new one. It goes on when nobody waits any more.
    fn waking(&self, entry: &Arc<Entry>) -> Waking {
        let mut under_way = entry.waking();
        if let Some(waking) = under_way.as_ref() {
            return waking.clone();
        }
        let (engine, entry) = (self.clone(), Arc::clone(entry));
        let waking = async move {
            let _turn = entry.turn.lock().await;
            // Dropped before the turn: whoever comes later wakes what the next with the turn
            // puts on disk.
            let _woken = Woken(Arc::clone(&entry));
            engine.wake(&entry).await
        };
        // Part of the trace of whoever came first.
        let task = tokio::spawn(waking.in_current_span());
        let waking = async move {
            let done = task.await;
            done.map_err(|error| EngineError::internal(&error))?
        };
        under_way.insert(waking.boxed().shared()).clone()
    }

    /// The caller has its turn.
    async fn wake(&self, entry: &Arc<Entry>) -> Result<(), EngineError> {
        if !self.inner.sandboxes.has(entry) {
            return Err(EngineError::SandboxNotFound(entry.id.to_string()));
        }
        match entry.can_be_woken() {
            true => {
                let resuming = self.take_off_disk(entry);
                self.observed(Operation::Resume, &entry.id, resuming).await
            }
            // Somebody has done it, or nobody may.
            false => Ok(()),
        }
    }
}

impl Entry {
    /// Whether it sleeps and wakes for whoever needs it.
    fn can_be_woken(&self) -> bool {
        let (state, lifetime) = self.life();
        state == SandboxState::Paused && lifetime.auto_resume
    }
}

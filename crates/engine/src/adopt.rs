//! Taking over what an earlier daemon left.

use crate::EngineError;
use crate::engine::Engine;
use crate::groups;
use crate::lifecycle::{self, Found};
use crate::request::Adoption;
use crate::sandboxes::Entry;
use crate::shims::{Shim, ShimProcess};
use crate::spawn::last_words;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pando_shim::error_chain;
use pando_types::SandboxState;
use pando_wire::shim::ReleaseRequest;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Sandboxes that are taken over at the same time: each waits for its shim, and few of them
/// are awake at once.
const ADOPTED_AT_ONCE: usize = 64;

/// How long one shim may keep a daemon from its first request; they answer in milliseconds.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// What is answered in time.
async fn within<R>(answer: impl Future<Output = R>) -> Option<R> {
    tokio::time::timeout(ANSWER_WAIT, answer).await.ok()
}

impl Engine {
    /// Looks at every row and every directory once, before the first request.
    pub(crate) async fn adopt_all(&self) -> Result<(), EngineError> {
        let rows = self.blocking(|inner| inner.index.sandboxes()).await?;
        let mut known = BTreeSet::new();
        let mut entries = Vec::with_capacity(rows.len());
        for row in rows {
            let id: pando_types::SandboxId = row
                .id
                .parse()
                .map_err(|_| EngineError::Internal("the index holds a malformed id".to_owned()))?;
            let entry = Arc::new(Entry::new(id, row));
            known.insert(entry.home());
            self.inner.sandboxes.insert(Arc::clone(&entry));
            entries.push(entry);
        }
        let adopting = entries.iter().map(|entry| self.adopt_or_fail(entry));
        stream::iter(adopting)
            .buffer_unordered(ADOPTED_AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.note_adoption();
        self.sweep_snapshots().await?;
        let dirs = self.inner.dirs.clone();
        let on_disk = self.blocking(move |_| dirs.list()).await?;
        for id in on_disk.into_iter().filter(|id| !known.contains(id)) {
            // No row: a slot, or a bake or a removal that was cut off.
            let dir = self.inner.dirs.get(&id);
            if self.adopt_slot(&id, &dir) {
                continue;
            }
            ShimProcess::end(&dir).await;
            self.blocking(move |_| dir.remove()).await?;
        }
        // Before any is made anew: those of sandboxes that ended without a daemon.
        if let Some(groups) = pando_sys::cgroup::ours() {
            self.blocking(move |_| {
                groups.sweep();
                Ok::<_, EngineError>(())
            })
            .await?;
        }
        Ok(())
    }

    /// Removes snapshots that have no row and hold no paused sandbox: nobody was told of them.
    async fn sweep_snapshots(&self) -> Result<(), EngineError> {
        let paused = self.inner.sandboxes.paused_in();
        self.blocking(move |inner| {
            for key in inner.snapshots.keys()? {
                if !inner.kept.has(&key) && !paused.contains(&key) {
                    inner.snapshots.remove(&key)?;
                }
            }
            Ok::<_, pando_store::StoreError>(())
        })
        .await
    }

    /// A sandbox that cannot be taken over keeps no daemon from its others.
    async fn adopt_or_fail(&self, entry: &Arc<Entry>) -> Result<(), EngineError> {
        let Err(error) = self.adopt(entry).await else {
            return Ok(());
        };
        let reason = error_chain(&error);
        tracing::error!(sandbox = %entry.id, "cannot take over a sandbox: {reason}");
        self.write_end(entry, SandboxState::Failed, &reason).await
    }

    /// Says, and keeps for who asks, what was taken over and how long it took.
    fn note_adoption(&self) {
        let all = self.inner.sandboxes.all();
        let running = all.iter().filter(|entry| entry.shim().is_some()).count();
        let adoption = Adoption {
            sandboxes: running,
            took: self.inner.started.elapsed(),
        };
        let took_ms = adoption.took.as_secs_f64() * 1e3;
        tracing::info!(running, of = all.len(), took_ms, "took over sandboxes");
        let _ = self.inner.adoption.set(adoption);
    }

    async fn adopt(&self, entry: &Arc<Entry>) -> Result<(), EngineError> {
        let row = entry.row();
        let dir = self.dir_of(entry);
        let shim = match row.state {
            SandboxState::Stopped | SandboxState::Failed | SandboxState::Paused => None,
            _ => within(Shim::find(&dir)).await.flatten().map(Arc::new),
        };
        let found = match (&shim, last_words(&dir)) {
            (_, Some((SandboxState::Stopped, _))) => Found::PoweredOff,
            (Some(_), None) => Found::Answers,
            _ if row.boot_id != self.inner.host.boot_id => Found::HostRestarted,
            _ => Found::Gone,
        };
        match lifecycle::adopt(row.state, row.started_at.is_some(), found) {
            lifecycle::Adoption::Keep(SandboxState::Running) => self.keep(entry, shim).await,
            lifecycle::Adoption::Keep(SandboxState::Paused) => {
                // The daemon that paused it may have died in between.
                self.end_shim(entry).await;
                self.empty_home(entry).await;
                Ok(())
            }
            lifecycle::Adoption::Keep(_) => {
                // The daemon that wrote down its end may have died before its shim did.
                self.end_shim(entry).await;
                Ok(())
            }
            lifecycle::Adoption::Discard => self.erase(entry, "its creation was cut off").await,
            lifecycle::Adoption::Off(reason) => {
                self.write_end(entry, SandboxState::Stopped, reason).await
            }
            lifecycle::Adoption::Fail(reason) => {
                let words = last_words(&dir).map(|(_, cause)| cause);
                let cause = groups::explain(&dir, words.unwrap_or_else(|| reason.to_owned()));
                self.write_end(entry, SandboxState::Failed, &cause).await
            }
        }
    }

    async fn keep(&self, entry: &Arc<Entry>, shim: Option<Arc<Shim>>) -> Result<(), EngineError> {
        let Some(shim) = shim else {
            return self
                .write_end(entry, SandboxState::Failed, "its shim does not answer")
                .await;
        };
        entry.set_shim(Some(Arc::clone(&shim)));
        // A pause that came to nothing leaves it standing still.
        let released = within(shim.client.rpc.release(ReleaseRequest::default())).await;
        if released.is_none() {
            tracing::warn!(sandbox = %entry.id, "its shim is slow to answer");
        }
        if entry.state() != SandboxState::Running {
            let Some(ready) = within(shim.ready()).await else {
                return self
                    .write_end(entry, SandboxState::Failed, "its shim does not answer")
                    .await;
            };
            let ready = ready?;
            if ready.state != pando_wire::shim::State::STATE_RUNNING {
                return self
                    .write_end(entry, SandboxState::Failed, &ready.cause)
                    .await;
            }
            self.set_state(entry, SandboxState::Running, None, None)
                .await?;
        }
        self.watch(entry, &shim);
        Ok(())
    }

    async fn write_end(
        &self,
        entry: &Arc<Entry>,
        state: SandboxState,
        reason: &str,
    ) -> Result<(), EngineError> {
        self.end_shim(entry).await;
        self.set_state(entry, state, Some(reason.to_owned()), None)
            .await
    }
}

//! Snapshots: taken, listed, removed. What is spawned from one is in `restore`.

mod flatten;
mod kept;
mod restore;
mod take;
mod usage;

pub(crate) use kept::Kept;

use crate::EngineError;
use crate::engine::Engine;
use crate::observe::Operation;
use crate::request::{
    Caller, DiskUsage, Fork, Forked, Rollback, RolledBack, Sandbox, Snapshot, TakeSnapshot, Tree,
};
use pando_store::NewEvent;
use std::sync::Arc;

impl Engine {
    /// Keeps a sandbox's present state; answers when that survives a power cut.
    ///
    /// # Errors
    /// There is no such sandbox, it does not run, or the disk is full; it runs on.
    pub async fn snapshot(
        &self,
        caller: &Caller,
        sandbox: &str,
        request: TakeSnapshot,
    ) -> Result<Snapshot, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.detached(move |engine| async move {
            let _using = engine.begin_use(&entry).await?;
            let _turn = entry.turn.lock().await;
            let taking = engine.take_and_keep(&entry, request);
            engine
                .observed(Operation::Snapshot, &entry.id, taking)
                .await
        })
        .await
    }

    /// The caller's snapshots, oldest first.
    ///
    /// # Errors
    /// The index is damaged.
    pub async fn snapshots(&self, caller: &Caller) -> Result<Vec<Snapshot>, EngineError> {
        let rows = self.inner.kept.of(caller);
        rows.iter().map(kept::describe).collect()
    }

    /// A snapshot's description.
    ///
    /// # Errors
    /// There is none that the caller may see.
    pub async fn get_snapshot(
        &self,
        caller: &Caller,
        snapshot: &str,
    ) -> Result<Snapshot, EngineError> {
        kept::describe(&self.inner.kept.find(caller, snapshot)?)
    }

    /// Removes a snapshot. What others need of it they have by links of their own.
    ///
    /// # Errors
    /// There is none that the caller may see.
    pub async fn remove_snapshot(
        &self,
        caller: &Caller,
        snapshot: &str,
    ) -> Result<(), EngineError> {
        let row = self.inner.kept.take_out(caller, snapshot)?;
        let (row, inner) = (Arc::new(row), Arc::clone(&self.inner));
        let removed = Arc::clone(&row);
        let done = self.detached(move |engine| async move {
            engine
                .blocking(move |inner| {
                    let event = NewEvent {
                        tenant: &removed.tenant,
                        kind: "snapshot.removed",
                        subject: &removed.id,
                        detail: removed.name.as_deref().unwrap_or_default(),
                    };
                    // The row first: a directory without one is removed by the next start.
                    let gone = inner.index.remove_snapshot(&removed.id, &event);
                    gone.map_err(|error| EngineError::internal(&error))?;
                    let gone = inner.snapshots.remove(&removed.id);
                    gone.map_err(|error| EngineError::internal(&error))
                })
                .await
        });
        let done = done.await;
        if done.is_err() {
            inner.kept.insert(Arc::unwrap_or_clone(row));
        }
        done
    }

    /// Makes running children of a running sandbox.
    ///
    /// # Errors
    /// No snapshot could be taken; what went wrong with a child alone is in its place.
    pub async fn fork(
        &self,
        caller: &Caller,
        sandbox: &str,
        request: Fork,
    ) -> Result<Forked, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.detached(move |engine| async move {
            let _using = engine.begin_use(&entry).await?;
            let forking = engine.fork_entry(&entry, request);
            engine.observed(Operation::Fork, &entry.id, forking).await
        })
        .await
    }

    /// Puts a sandbox back into a kept state, under its id.
    ///
    /// # Errors
    /// The state cannot be used; the sandbox is as it was then.
    pub async fn roll_back(
        &self,
        caller: &Caller,
        sandbox: &str,
        request: Rollback,
    ) -> Result<RolledBack, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let snapshot = self.inner.kept.find(caller, &request.snapshot)?;
        self.detached(move |engine| async move {
            let _turn = entry.turn.lock().await;
            let going_back = engine.put_back(&entry, &snapshot, request.save);
            let saved = engine
                .observed(Operation::Rollback, &entry.id, going_back)
                .await?;
            let sandbox = entry.describe()?;
            Ok(RolledBack { sandbox, saved })
        })
        .await
    }

    /// Puts a running sandbox on disk, memory included.
    ///
    /// # Errors
    /// It does not run, or the disk is full; it runs on then.
    pub async fn pause(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.detached(move |engine| async move {
            let _turn = entry.turn.lock().await;
            let _closed = entry.activity.close();
            let pausing = engine.put_on_disk(&entry, None);
            engine
                .observed(Operation::Pause, &entry.id, pausing)
                .await?;
            entry.describe()
        })
        .await
    }

    /// Lets a paused sandbox go on.
    ///
    /// # Errors
    /// It is not paused, or its VM does not come up; it stays paused then.
    pub async fn resume(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.detached(move |engine| async move {
            let _turn = entry.turn.lock().await;
            let resuming = engine.take_off_disk(&entry);
            engine
                .observed(Operation::Resume, &entry.id, resuming)
                .await?;
            entry.describe()
        })
        .await
    }

    /// The caller's snapshots and sandboxes.
    ///
    /// # Errors
    /// The index is damaged.
    pub async fn tree(&self, caller: &Caller) -> Result<Tree, EngineError> {
        Ok(Tree {
            snapshots: self.snapshots(caller).await?,
            sandboxes: self.list(caller).await?,
        })
    }

    /// Where disk space has gone.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub async fn disk_usage(&self, _caller: &Caller) -> Result<DiskUsage, EngineError> {
        self.blocking(usage::measure).await
    }
}

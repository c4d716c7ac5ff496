//! Snapshots: taken, forked, gone back to, removed.

use crate::EngineError;
use crate::engine::Engine;
use crate::request::{
    Caller, DiskUsage, Fork, Forked, RolledBack, Rollback, Sandbox, Snapshot, TakeSnapshot, Tree,
};

impl Engine {
    /// Keeps a sandbox's present state; answers when that survives a power cut.
    ///
    /// # Errors
    /// There is no such sandbox, it does not run, or the disk is full; it runs on.
    pub async fn snapshot(
        &self,
        _caller: &Caller,
        _sandbox: &str,
        _request: TakeSnapshot,
    ) -> Result<Snapshot, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// The caller's snapshots, oldest first.
    ///
    /// # Errors
    /// The index is damaged.
    pub async fn snapshots(&self, _caller: &Caller) -> Result<Vec<Snapshot>, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// A snapshot's description.
    ///
    /// # Errors
    /// There is none that the caller may see.
    pub async fn get_snapshot(
        &self,
        _caller: &Caller,
        _snapshot: &str,
    ) -> Result<Snapshot, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// Removes a snapshot. What others need of it they have by links of their own.
    ///
    /// # Errors
    /// There is none that the caller may see.
    pub async fn remove_snapshot(
        &self,
        _caller: &Caller,
        _snapshot: &str,
    ) -> Result<(), EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// Makes running children of a running sandbox.
    ///
    /// # Errors
    /// No snapshot could be taken; what went wrong with a child alone is in its place.
    pub async fn fork(
        &self,
        _caller: &Caller,
        _sandbox: &str,
        _request: Fork,
    ) -> Result<Forked, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// Puts a sandbox back into a kept state, under its id.
    ///
    /// # Errors
    /// The state cannot be used; the sandbox is as it was then.
    pub async fn roll_back(
        &self,
        _caller: &Caller,
        _sandbox: &str,
        _request: Rollback,
    ) -> Result<RolledBack, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// Puts a running sandbox on disk, memory included.
    ///
    /// # Errors
    /// It does not run, or the disk is full; it runs on then.
    pub async fn pause(&self, _caller: &Caller, _sandbox: &str) -> Result<Sandbox, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// Lets a paused sandbox go on. One that runs already is left as it is.
    ///
    /// # Errors
    /// It is not paused, or its VM does not come up; it stays paused then.
    pub async fn resume(&self, _caller: &Caller, _sandbox: &str) -> Result<Sandbox, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// The caller's snapshots and sandboxes.
    ///
    /// # Errors
    /// The index is damaged.
    pub async fn tree(&self, _caller: &Caller) -> Result<Tree, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }

    /// Where disk space has gone.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub async fn disk_usage(&self, _caller: &Caller) -> Result<DiskUsage, EngineError> {
        Err(EngineError::Internal("not there yet".to_owned()))
    }
}

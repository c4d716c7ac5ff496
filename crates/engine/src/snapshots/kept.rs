//! The snapshots that exist: one row each, in memory, mirrored from the index.

use crate::EngineError;
use crate::reference;
use crate::request::{Caller, Snapshot, SnapshotCost};
use pando_store::SnapshotRow;
use pando_types::Size;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All of them, by id.
#[derive(Debug)]
pub(crate) struct Kept(Mutex<BTreeMap<String, SnapshotRow>>);

impl Kept {
    pub(crate) fn new(rows: Vec<SnapshotRow>) -> Self {
        let rows = rows.into_iter().map(|row| (row.id.clone(), row));
        Self(Mutex::new(rows.collect()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SnapshotRow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, row: SnapshotRow) {
        self.lock().insert(row.id.clone(), row);
    }

    /// Whether a snapshot of this id has a row.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    /// Whether one of a tenant's snapshots has this name.
    pub(crate) fn is_named(&self, tenant: &str, name: &str) -> bool {
        let named = |row: &SnapshotRow| row.tenant == tenant && row.name.as_deref() == Some(name);
        self.lock().values().any(named)
    }

    /// The snapshot that `reference` names for this caller: id, name, or the beginning of one id.
    pub(crate) fn find(
        &self,
        caller: &Caller,
        reference: &str,
    ) -> Result<SnapshotRow, EngineError> {
        find(&self.lock(), caller, reference).cloned()
    }

    /// The same, and nobody finds it any more.
    pub(crate) fn take_out(
        &self,
        caller: &Caller,
        reference: &str,
    ) -> Result<SnapshotRow, EngineError> {
        let mut rows = self.lock();
        let row = find(&rows, caller, reference)?.clone();
        rows.remove(&row.id);
        Ok(row)
    }

    /// Bytes of a tenant's snapshots, each beyond its parent's.
    pub(crate) fn bytes_of(&self, tenant: &str) -> u64 {
        let rows = self.lock();
        let own = rows.values().filter(|row| row.tenant == tenant);
        own.map(|row| row.bytes).sum()
    }

    /// A caller's snapshots, oldest first.
    pub(crate) fn of(&self, caller: &Caller) -> Vec<SnapshotRow> {
        let visible = |row: &&SnapshotRow| row.tenant == caller.tenant;
        let mut rows: Vec<_> = self.lock().values().filter(visible).cloned().collect();
        rows.sort_by_key(|row| (row.created_at, row.id.clone()));
        rows
    }
}

fn find<'r>(
    rows: &'r BTreeMap<String, SnapshotRow>,
    caller: &Caller,
    reference: &str,
) -> Result<&'r SnapshotRow, EngineError> {
    let found = reference::find(
        rows,
        reference,
        |row| row.tenant == caller.tenant,
        |row| row.name.as_deref() == Some(reference),
    )?;
    found.ok_or_else(|| EngineError::SnapshotNotFound(reference.chars().take(128).collect()))
}

/// As callers see it.
pub(crate) fn describe(row: &SnapshotRow) -> Result<Snapshot, EngineError> {
    let malformed =
        |what: &str| EngineError::Internal(format!("the index holds a malformed snapshot {what}"));
    let name = row.name.as_deref().map(str::parse).transpose();
    let parent = row.parent.as_deref().map(str::parse).transpose();
    Ok(Snapshot {
        id: row.id.parse().map_err(|_| malformed("id"))?,
        name: name.map_err(|_| malformed("name"))?,
        kind: row.kind,
        sandbox: row.sandbox.parse().map_err(|_| malformed("sandbox"))?,
        parent: parent.map_err(|_| malformed("parent"))?,
        template: row.template.parse().map_err(|_| malformed("template"))?,
        size: Size::new(row.cpus, row.memory_mib).map_err(|_| malformed("size"))?,
        labels: serde_json::from_str(&row.labels).map_err(|_| malformed("label set"))?,
        note: row.note.clone(),
        created_at: row.created_at,
        cost: SnapshotCost {
            pause_ms: row.pause_ms,
            durable_ms: row.durable_ms,
            bytes: row.bytes,
            dirty_pages: row.dirty_pages,
            clean: row.clean,
        },
    })
}

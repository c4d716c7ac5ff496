//! Taking a snapshot: the shim writes what changed into the slot, the daemon makes files of
//! its own of it and publishes them.
//!
//! ```text
//!   shim: pause, pages and device state in the slot, disk layer sealed
//!   daemon: staging: links to the parent's layers, own inodes of the new ones
//!           publish (fsync, manifest, rename), row, event
//!           the sandbox's parent is the new snapshot from now on
//! ```
//! A crash before the row leaves nothing: the directory has no row and is removed, and the
//! next snapshot, which is compared with the same parent as this one, holds what it held.

use super::kept;
use crate::bake::{now_ms, untrusted};
use crate::engine::{Change, Engine, Inner, Moved};
use crate::lifecycle::Operation;
use crate::request::{Snapshot, SnapshotCost, TakeSnapshot};
use crate::sandboxes::Entry;
use crate::shims::Shim;
use crate::spawn::{check_labels, to_json};
use crate::trace;
use crate::{EngineError, Interruption, ids};
use connectrpc::{ConnectError, ErrorCode};
use pando_shim::spec;
use pando_store::{
    IndexError, Manifest, NewEvent, SandboxDir, SavedState, Snapshot as Stored, SnapshotRow,
    StoreError, fault,
};
use pando_types::{SandboxState, SnapshotId, SnapshotKind, limits};
use pando_wire::shim::{ReleaseRequest, SnapshotRequest, SnapshotResponse};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// A snapshot that is published and has no row yet.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) stored: Stored,
    /// But for the time until it is durable, which ends with its row.
    cost: SnapshotCost,
    begun: Instant,
}

impl Taken {
    /// What it cost until now.
    pub(super) fn cost(&self) -> SnapshotCost {
        SnapshotCost {
            durable_ms: self.begun.elapsed().as_secs_f64() * 1000.0,
            ..self.cost
        }
    }
}

impl Engine {
    /// Takes a snapshot that the caller wants to keep. The caller has the sandbox's turn.
    pub(super) async fn take_and_keep(
        &self,
        entry: &Arc<Entry>,
        request: TakeSnapshot,
    ) -> Result<Snapshot, EngineError> {
        check_labels(&request.labels)?;
        if request.note.len() > limits::NOTE_BYTES {
            return Err(EngineError::Invalid(format!(
                "`note` has more than {} bytes",
                limits::NOTE_BYTES
            )));
        }
        let tenant = entry.row().tenant;
        if let Some(name) = &request.name
            && self.inner.kept.is_named(&tenant, name.as_str())
        {
            return Err(EngineError::SnapshotNameTaken(name.to_string()));
        }
        let used = self.inner.kept.bytes_of(&tenant);
        self.inner.admission.tenant_limits().check_snapshots(used)?;
        let id = ids::snapshot();
        let taken = self.take(entry, &id, request.kind, false).await?;
        let kept = self.keep_taken(entry, &id, request, &taken).await;
        if kept.is_err() {
            self.drop_snapshot(&id).await;
        }
        kept
    }

    async fn keep_taken(
        &self,
        entry: &Arc<Entry>,
        id: &SnapshotId,
        request: TakeSnapshot,
        taken: &Taken,
    ) -> Result<Snapshot, EngineError> {
        let (sandbox, cost) = (entry.row(), taken.cost());
        let row = SnapshotRow {
            id: id.to_string(),
            tenant: sandbox.tenant,
            name: request.name.as_ref().map(ToString::to_string),
            kind: request.kind,
            sandbox: sandbox.id,
            parent: sandbox.parent,
            template: sandbox.template,
            cpus: sandbox.cpus,
            memory_mib: sandbox.memory_mib,
            labels: to_json(&request.labels)?,
            note: request.note,
            created_at: SystemTime::now(),
            pause_ms: cost.pause_ms,
            durable_ms: cost.durable_ms,
            bytes: cost.bytes,
            dirty_pages: cost.dirty_pages,
            clean: cost.clean,
            egress: sandbox.egress,
            limits: sandbox.limits,
        };
        self.write_row(row.clone()).await?;
        // The row itself is the last that must be on the disk.
        let row = SnapshotRow {
            durable_ms: taken.cost().durable_ms,
            ..row
        };
        fault::point("take.indexed");
        entry.update(|sandbox| sandbox.parent = Some(row.id.clone()));
        let described = kept::describe(&row);
        self.inner.kept.insert(row);
        self.follow_on(entry, taken).await;
        self.flatten_later(entry, &taken.stored);
        described
    }

    async fn write_row(&self, row: SnapshotRow) -> Result<(), EngineError> {
        let name = row.name.clone().unwrap_or_default();
        let added = self.aside(move |inner| {
            let event = NewEvent {
                tenant: &row.tenant,
                kind: "snapshot.taken",
                subject: &row.id,
                detail: &row.sandbox,
            };
            inner.index.add_snapshot(&row, &event)
        });
        match added.await? {
            Err(IndexError::NameTaken) => Err(EngineError::SnapshotNameTaken(name)),
            other => other.map_err(|error| EngineError::index(&error)),
        }
    }

    /// Makes a published snapshot what the sandbox's next one is compared with. Without it
    /// the next one is larger than it must be, and as good.
    pub(super) async fn follow_on(&self, entry: &Arc<Entry>, taken: &Taken) {
        let (dir, stored) = (self.dir_of(entry), taken.stored.clone());
        let followed = self
            .blocking(move |inner| follow_on(inner, &dir, &stored))
            .await;
        if let Err(error) = followed {
            tracing::warn!(sandbox = %entry.id, "the next snapshot will be larger: {error}");
        }
        fault::point("take.parent_replaced");
    }

    /// Takes a snapshot and publishes it, without a row. With `hold` the VM stands still
    /// when this was successful. The caller has the sandbox's turn.
    pub(super) async fn take(
        &self,
        entry: &Arc<Entry>,
        id: &SnapshotId,
        kind: SnapshotKind,
        hold: bool,
    ) -> Result<Taken, EngineError> {
        entry.check(Operation::Snapshot)?;
        let shim = entry.in_use()?;
        let taken = self
            .capture_and_publish(entry, &shim, id, (kind, hold))
            .await;
        if hold && taken.is_err() {
            // It may have come as far as standing still.
            self.release(entry, &shim).await;
        }
        taken
    }

    async fn capture_and_publish(
        &self,
        entry: &Entry,
        shim: &Shim,
        id: &SnapshotId,
        (kind, hold): (SnapshotKind, bool),
    ) -> Result<Taken, EngineError> {
        let begun = Instant::now();
        let dir = self.dir_of(entry);
        let parent = {
            let dir = dir.clone();
            self.blocking(move |_| dir.parent()).await?
        };
        let no_parent = || EngineError::Internal("the sandbox has lost its parent".to_owned());
        let parent = parent.ok_or_else(no_parent)?;
        let request = SnapshotRequest {
            base: parent.manifest.id.clone(),
            name: id.to_string(),
            memory: kind == SnapshotKind::Full,
            hold,
            ..SnapshotRequest::default()
        };
        let from = SystemTime::now();
        let response = shim.client.rpc.snapshot(request).await;
        let response = response
            .map_err(|error| snapshot_error(entry, error))?
            .into_owned();
        trace::snapshot(from, &response);
        fault::point("take.captured");
        tracing::debug!(
            sandbox = %entry.id, pause_ms = response.pause_ms, pages = response.dirty_pages,
            method = response.method, forced = response.forced, timing_ms = ?response.timing_ms,
            "captured"
        );
        let cost = SnapshotCost {
            pause_ms: response.pause_ms,
            dirty_pages: response.dirty_pages,
            clean: !response.forced,
            ..SnapshotCost::default()
        };
        let draft = Draft {
            id: id.to_string(),
            kind,
            parent,
            response,
        };
        let published = self.aside(move |inner| draft.publish(inner, &dir)).await?;
        let (stored, bytes) = published.map_err(|error| store_error(&error))?;
        Ok(Taken {
            stored,
            begun,
            cost: SnapshotCost { bytes, ..cost },
        })
    }

    /// Lets a VM that stands still for a snapshot go on.
    pub(super) async fn release(&self, entry: &Entry, shim: &Shim) {
        if let Err(error) = shim.client.rpc.release(ReleaseRequest::default()).await {
            tracing::error!(sandbox = %entry.id, %error, "the sandbox does not go on");
        }
    }

    /// Removes a published snapshot that came to nothing.
    pub(super) async fn drop_snapshot(&self, id: &SnapshotId) {
        let key = id.to_string();
        let removed = self
            .blocking(move |inner| inner.snapshots.remove(&key))
            .await;
        if let Err(error) = removed {
            tracing::warn!(snapshot = %id, "cannot remove a snapshot that came to nothing: {error}");
        }
    }

    /// Puts a running sandbox on disk. The caller has its turn, and has closed it to new uses:
    /// one that began now would be cut off.
    pub(crate) async fn put_on_disk(
        &self,
        entry: &Arc<Entry>,
        why: Option<&str>,
    ) -> Result<(), EngineError> {
        entry.check(Operation::Pause)?;
        let shim = entry.in_use()?;
        let id = ids::snapshot();
        let taken = self.take(entry, &id, SnapshotKind::Full, true).await?;
        let row = entry.row();
        let change = Change {
            state: SandboxState::Paused,
            reason: why.map(str::to_owned),
            isolation: None,
            place: Some(Moved {
                home: row.home,
                parent: row.parent,
                paused_in: Some(id.to_string()),
                event: None,
            }),
        };
        if let Err(error) = self.change(entry, change).await {
            self.release(entry, &shim).await;
            self.drop_snapshot(&id).await;
            return Err(error);
        }
        fault::point("pause.indexed");
        shim.interrupt(Interruption::Paused);
        self.end_shim(entry).await;
        fault::point("pause.ended");
        self.empty_home(entry).await;
        self.flatten_later(entry, &taken.stored);
        Ok(())
    }

    /// Frees what a paused sandbox has in its directory: the snapshot has it all.
    pub(crate) async fn empty_home(&self, entry: &Arc<Entry>) {
        let dir = self.dir_of(entry);
        if let Err(error) = self.blocking(move |_| dir.empty()).await {
            tracing::warn!(sandbox = %entry.id, "files of a paused sandbox are left: {error}");
        }
    }
}

/// What a snapshot is made of.
struct Draft {
    id: String,
    kind: SnapshotKind,
    parent: Stored,
    response: SnapshotResponse,
}

impl Draft {
    /// Returns the bytes that it takes beyond its parent, too.
    fn publish(self, inner: &Inner, dir: &SandboxDir) -> Result<(Stored, u64), StoreError> {
        let staging = inner.snapshots.stage(&self.id)?;
        let parent = &self.parent;
        let link = |layer| staging.link(&parent.path(layer), layer);
        let old = &parent.manifest;
        let full = self.kind == SnapshotKind::Full;
        let mut fresh = Vec::new();
        let mut adopt = |found: &str, name: &str| {
            let layer = staging.adopt(&untrusted(dir, found)?, name)?;
            fresh.push(layer.clone());
            Ok::<_, StoreError>(layer)
        };
        let mut manifest = Manifest {
            id: self.id.clone(),
            kind: SavedState::Disk,
            machine: old.machine.clone(),
            created_at_ms: now_ms(),
            root: old.root.clone(),
            root_image: old.root_image.as_ref().map(link).transpose()?,
            disks: old.disks.iter().map(link).collect::<Result<_, _>>()?,
            memory: None,
            pages: Vec::new(),
            device_state: None,
            network: None,
            clean_barrier: !self.response.forced,
        };
        if full {
            manifest.kind = SavedState::Running;
            manifest.memory = old.memory.as_ref().map(link).transpose()?;
            manifest.pages = old.pages.iter().map(link).collect::<Result<_, _>>()?;
            let name = spec::pages(manifest.pages.len());
            manifest
                .pages
                .push(adopt(&self.response.pages_file, &name)?);
            let state = adopt(&self.response.device_state_file, spec::DEVICE_STATE)?;
            manifest.device_state = Some(state);
            manifest.network = Some(adopt(&self.response.network_file, spec::NETWORK)?);
        }
        for file in &self.response.disk_files {
            let name = spec::disk(manifest.disks.len());
            manifest.disks.push(adopt(file, &name)?);
        }
        let stored = inner.snapshots.publish(staging, &self.id, &manifest)?;
        let bytes = fresh.iter().map(|layer| {
            // Synced by now: what it takes is decided.
            pando_sys::file::allocated_bytes(&stored.path(layer)).unwrap_or(0)
        });
        let bytes = bytes.sum::<u64>() + stored.manifest_bytes();
        for name in [
            spec::TAKEN_PAGES,
            spec::TAKEN_DEVICE_STATE,
            spec::TAKEN_NETWORK,
        ] {
            // They have served; the next snapshot removes them too.
            drop(dir.unlink(name));
        }
        Ok((stored, bytes))
    }
}

/// The sandbox's parent becomes this snapshot, and the slot's sealed disk layers the
/// store's own. A snapshot of the disk alone leaves the memory that is compared with.
fn follow_on(inner: &Inner, dir: &SandboxDir, stored: &Stored) -> Result<(), StoreError> {
    let manifest = &stored.manifest;
    let Some(parent) = dir.parent()? else {
        return Ok(());
    };
    // The VM has the old inodes open; the next one on this disk opens the store's.
    let fresh = manifest.disks.iter().enumerate();
    for (index, layer) in fresh.skip(parent.manifest.disks.len()) {
        let relinked = dir.relink(&stored.path(layer), &spec::disk(index));
        relinked.map_err(|source| StoreError::Io {
            action: "link",
            path: stored.path(layer),
            source,
        })?;
    }
    if manifest.kind == SavedState::Disk {
        let manifest = Manifest {
            id: manifest.id.clone(),
            disks: manifest.disks.clone(),
            ..parent.manifest.clone()
        };
        return dir.replace_parent(|fresh| parent.link_with(fresh, &manifest, stored));
    }
    if inner.materialized.shares() {
        // A copy that costs nothing: whatever is spawned from this one maps it.
        if let Err(error) = inner.materialized.make(stored) {
            tracing::warn!("cannot put a memory together ahead: {error}");
        }
    }
    dir.set_parent(stored)
}

/// What a shim's refusal to take a snapshot means.
fn snapshot_error(entry: &Entry, error: ConnectError) -> EngineError {
    let message = error.message.unwrap_or_default();
    match error.code {
        ErrorCode::ResourceExhausted | ErrorCode::Aborted => EngineError::NoSpace(message),
        ErrorCode::Unavailable => entry.gone(),
        _ => EngineError::SnapshotFailed(message),
    }
}

fn store_error(error: &StoreError) -> EngineError {
    match error.is_no_space() {
        true => EngineError::NoSpace(pando_shim::error_chain(error)),
        false => EngineError::SnapshotFailed(pando_shim::error_chain(error)),
    }
}

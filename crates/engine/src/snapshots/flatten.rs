//! Long chains are made short, in the background.
//!
//! Every snapshot adds a layer of pages and one of the disk to what a sandbox is spawned from.
//! A long chain is replaced by one that reads the same, with its middle merged to one layer:
//!
//! ```text
//!   disks   template  bake  2 3 4 … 16 17  18 … 24        pages   0 1 … 14 15  16 … 24
//!              │       │    └─ merged ──┘   │    │                └─ merged ─┘  │    │
//!   disks   template  bake        2         3 …  9        pages         0       1 …  9
//! ```
//! What is merged ends at a multiple of [`STEP`] layers, so that the next snapshots of the
//! same sandbox merge the same ones, and share the result. Nobody waits for it, unless the
//! chain is so long that its owner must have been quicker than this several times, by
//! resuming whatever was paused at once: then the spawn waits. So no VM begins with more than
//! [`SPAWN_LAYERS_MAX`] layers.

use crate::EngineError;
use crate::engine::{Engine, Inner};
use crate::sandboxes::Entry;
use pando_store::{Manifest, Merges, SandboxDir, Snapshot as Stored, StoreError};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Layers of a kind that are let be. QEMU 10.0 starts 0.03 s later with so many of the disk's
/// than with none, with 100 it is 0.2 s and with 400 12 s.
const LAYERS_MAX: usize = 24;

/// Layers of a kind that nothing is spawned from.
const SPAWN_LAYERS_MAX: usize = LAYERS_MAX + 8;

/// How long the background waits for those who spawn from what is to be replaced. It takes
/// them a second, but there may be many.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a spawn waits; then it is from a long chain after all.
const SPAWN_PATIENCE: Duration = Duration::from_secs(5);

/// The template's disk and the bake's: every sandbox has them, so merging them would cost
/// space.
const LOWEST_DISKS: usize = 2;

/// The newest stay as they are: the next snapshots have them too.
const NEWEST: usize = 4;

/// So many more layers until another merged one is made.
const STEP: usize = 16;

impl Engine {
    /// Makes a snapshot's chain short if it is long, and the one that its sandbox is compared
    /// with.
    pub(super) fn flatten_later(&self, entry: &Arc<Entry>, stored: &Stored) {
        if merges(&stored.manifest).is_empty() {
            return;
        }
        let (engine, entry) = (self.clone(), Arc::clone(entry));
        let id = stored.manifest.id.clone();
        tokio::spawn(async move {
            {
                let _alone = engine.inner.flattening.lock().await;
                engine.flatten(&id, PATIENCE).await;
            }
            engine.shorten_parent(&entry).await;
        });
    }

    /// The same for the latter alone: what the snapshot is for is over soon.
    pub(super) fn shorten_parent_later(&self, entry: &Arc<Entry>, stored: &Stored) {
        if merges(&stored.manifest).pages.is_none() {
            return;
        }
        let (engine, entry) = (self.clone(), Arc::clone(entry));
        tokio::spawn(async move { engine.shorten_parent(&entry).await });
    }

    /// A snapshot's files, to spawn from them.
    pub(super) async fn short(&self, id: &str) -> Result<Stored, EngineError> {
        self.shortened(self.stored(id).await?).await
    }

    /// The same snapshot with a chain that is not too long to spawn from.
    pub(super) async fn shortened(&self, stored: Stored) -> Result<Stored, EngineError> {
        let manifest = &stored.manifest;
        if manifest.disks.len().max(manifest.pages.len()) <= SPAWN_LAYERS_MAX {
            return Ok(stored);
        }
        let id = manifest.id.clone();
        // It is replaced when nobody uses it.
        drop(stored);
        let alone = tokio::time::timeout(SPAWN_PATIENCE, self.inner.flattening.lock()).await;
        if let Ok(_alone) = alone {
            self.flatten(&id, SPAWN_PATIENCE).await;
        }
        self.stored(&id).await
    }

    /// Makes all long chains short that an earlier daemon left.
    pub(crate) async fn flatten_all(self) {
        let keys = self.blocking(|inner| inner.snapshots.keys()).await;
        for key in keys.unwrap_or_default() {
            let _alone = self.inner.flattening.lock().await;
            self.flatten(&key, PATIENCE).await;
        }
    }

    async fn flatten(&self, id: &str, patience: Duration) {
        let (key, begun) = (id.to_owned(), Instant::now());
        let flattened = self.blocking(move |inner| flatten(inner, &key, patience));
        match flattened.await {
            Ok(true) => {
                let took = begun.elapsed();
                tracing::debug!(snapshot = id, ?took, "its chain is short now");
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(snapshot = id, "its chain stays long: {error}"),
        }
    }

    /// The disk stays as it is: the VM's own layers have its numbers.
    async fn shorten_parent(&self, entry: &Arc<Entry>) {
        let shortened = async {
            // Without the turn what takes long, then with it what uses that. Never both: who
            // has the turn may wait for a chain to be short.
            {
                let _alone = self.inner.flattening.lock().await;
                let dir = self.dir_of(entry);
                self.blocking(move |inner| merge_parent(inner, &dir))
                    .await?;
            }
            let _turn = entry.turn.lock().await;
            let dir = self.dir_of(entry);
            self.blocking(move |inner| shorten_parent(inner, &dir))
                .await
        };
        if let Err(error) = shortened.await {
            tracing::warn!(sandbox = %entry.id, "what it is compared with stays long: {error}");
        }
    }
}

/// What of a snapshot is to be merged.
fn merges(manifest: &Manifest) -> Merges {
    Merges {
        pages: stretch(manifest.pages.len(), 0),
        disks: stretch(manifest.disks.len(), LOWEST_DISKS),
    }
}

fn stretch(layers: usize, lowest: usize) -> Option<Range<usize>> {
    if layers <= LAYERS_MAX {
        return None;
    }
    let steps = (layers - lowest - NEWEST) / STEP;
    Some(lowest..lowest + steps * STEP)
}

/// Whether there was something to do, and still is a snapshot.
fn flatten(inner: &Inner, key: &str, patience: Duration) -> Result<bool, StoreError> {
    let Some(old) = inner.snapshots.get(key)? else {
        return Ok(false);
    };
    let merges = merges(&old.manifest);
    if merges.is_empty() {
        return Ok(false);
    }
    let replaced = replace(inner, old, &merges, patience);
    // It may be removed at any time.
    if replaced.is_err() && inner.snapshots.get(key)?.is_none() {
        return Ok(false);
    }
    replaced
}

fn replace(
    inner: &Inner,
    old: Stored,
    merges: &Merges,
    patience: Duration,
) -> Result<bool, StoreError> {
    verify(inner, &old)?;
    let key = old.manifest.id.clone();
    let staging = inner.snapshots.stage(&format!("flat-{key}"))?;
    let manifest = inner.snapshots.shorten(&old, staging.dir(), merges)?;
    let before = old.manifest.clone();
    // It is replaced when nobody uses it.
    drop(old);
    let replaced = inner
        .snapshots
        .replace(staging, &key, &manifest, patience)?;
    if replaced && let Err(error) = inner.materialized.alias(&before, &manifest) {
        tracing::debug!("a memory has to be put together again: {error}");
    }
    Ok(replaced)
}

/// What is damaged must not get a checksum that says that it is not.
fn verify(inner: &Inner, stored: &Stored) -> Result<(), StoreError> {
    let id = || stored.manifest.id.clone();
    let verified = inner.snapshots.verify(stored);
    verified.map_err(|error| StoreError::Layer(id(), error))
}

/// A sandbox's parent and what of it is to be merged, if there is something.
fn long_parent(dir: &SandboxDir) -> Result<Option<(Stored, Merges)>, StoreError> {
    Ok(dir.parent()?.and_then(|parent| {
        let merges = Merges {
            pages: stretch(parent.manifest.pages.len(), 0),
            disks: None,
        };
        (!merges.is_empty()).then_some((parent, merges))
    }))
}

/// Merges what [`shorten_parent`] will need, which is kept for it.
fn merge_parent(inner: &Inner, dir: &SandboxDir) -> Result<(), StoreError> {
    let Some((parent, merges)) = long_parent(dir)? else {
        return Ok(());
    };
    verify(inner, &parent)?;
    let staging = inner
        .snapshots
        .stage(&format!("flat-parent-{}", parent.manifest.id))?;
    inner
        .snapshots
        .shorten(&parent, staging.dir(), &merges)
        .map(drop)
}

fn shorten_parent(inner: &Inner, dir: &SandboxDir) -> Result<(), StoreError> {
    let Some((parent, merges)) = long_parent(dir)? else {
        return Ok(());
    };
    verify(inner, &parent)?;
    dir.replace_parent(|fresh| inner.snapshots.shorten_to(&parent, fresh, &merges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_chain_becomes_short_and_the_next_ones_merge_the_same() {
        assert_eq!(stretch(LAYERS_MAX, 0), None);
        for lowest in [0, LOWEST_DISKS] {
            let mut made = 0;
            let mut last = None;
            for layers in LAYERS_MAX + 1..400 {
                let merged = stretch(layers, lowest).unwrap();
                assert_eq!(merged.start, lowest);
                assert!(merged.end + NEWEST <= layers);
                assert!(layers - merged.len() < LAYERS_MAX, "{layers}: {merged:?}");
                made += usize::from(last.as_ref() != Some(&merged));
                last = Some(merged);
            }
            assert!(made <= 400 / STEP, "{made} were made");
        }
    }
}

//! Everything Pando keeps on disk: layers, manifests, sandbox directories, the index.
//!
//! Nobody else opens the state or cache directory. What is published is immutable;
//! files reach their final name only whole (temporary name, fsync, rename, fsync of
//! the directory), the manifest last. A crash at any instant leaves the old state or
//! the new one; [`Snapshots::open`] removes what has no manifest.
//!
//! ```text
//! CACHE_DIR/v1/bakes/<content hash>/   manifest, memory, device state, disk layer
//! STATE_DIR/v1/sandboxes/<id>/         spec, socket, log, process id: the daemon's
//! STATE_DIR/v1/sandboxes/<id>/shim/    what the shim writes
//! STATE_DIR/v1/sandboxes/<id>/slot/    what the VMM may see: hard links to layers, its own disk
//! STATE_DIR/pando.db                   the index (SQLite, WAL)
//! ```

pub mod fault;
mod index;
mod journal;
mod layer;
mod lease;
mod lifetime;
mod manifest;
mod materialized;
mod merged;
pub mod pages;
mod ports;
pub mod qcow2;
mod sandbox_dir;
mod snapshots;

pub use index::{
    EventRow, Index, IndexError, NewEvent, Place, SCHEMA_VERSION, SandboxRow, SnapshotRow,
    StateChange, TemplateRow,
};
pub use journal::{EventPage, EventQuery};
pub use layer::{Layer, LayerError, Verified, hash_file};
pub use lifetime::LifetimeRow;
pub use manifest::{Machine, Manifest, ManifestError, SavedState};
pub use materialized::{Materialized, MemorySource};
pub use merged::Merges;
pub use ports::PortRow;
pub use sandbox_dir::{SHIM, SLOT, SandboxDir, SandboxDirs, read_untrusted};
pub use snapshots::{Snapshot, Snapshots, Staging, StoreError, link_or_copy};

/// The version in the name of the on-disk layout's top directory.
pub const LAYOUT: &str = "v1";

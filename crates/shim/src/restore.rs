//! Writing layers of pages over a VM's memory, before its device state is loaded. Each page is
//! written once, whatever the number of layers that have it: a spawn costs what differs from
//! the memory's file, not how often it changed.

use crate::machine::{Machine, StartError};
use crate::spec;
use pando_store::pages::{Pages, PagesError, Run, Topmost};
use pando_sys::memory::{FileRange, GuestMemory, MemoryError};
use pando_vmm::{ChangeTracker, Qemu, Vmm as _};
use std::fs::File;
use std::path::PathBuf;

/// Bytes written by one call.
const BATCH_BYTES: u64 = 4 << 20;

/// Why a layer could not be written over the memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WritePagesError {
    #[error(transparent)]
    Layer(#[from] PagesError),
    #[error("the VM's memory cannot be written")]
    Memory(#[from] MemoryError),
    #[error("what changes in the memory cannot be followed")]
    Track(#[from] pando_vmm::CaptureError),
    #[error("the thread that did it died")]
    Died,
}

impl From<std::io::Error> for WritePagesError {
    fn from(error: std::io::Error) -> Self {
        Self::Layer(error.into())
    }
}

impl Machine {
    /// Writes the slot's layers of pages over the memory, the oldest first. They are the
    /// snapshot's, so the first snapshot of this VM does not hold them.
    pub(crate) async fn write_pages(&self, qemu: &Qemu, layers: usize) -> Result<(), StartError> {
        let memory = qemu.guest_memory()?;
        let bytes = u64::from(self.spec.memory_mib) << 20;
        let files: Vec<PathBuf> = (0..layers)
            .map(|index| self.slot().join(spec::pages(index)))
            .collect();
        let written = tokio::task::spawn_blocking(move || {
            write_layers(&memory, &files, bytes)?;
            let mut tracker = ChangeTracker::new(memory);
            tracker.rebase()?;
            Ok::<_, WritePagesError>(tracker)
        });
        let tracker = written.await.map_err(|_| WritePagesError::Died)??;
        self.chain.lock().await.tracker = Some(tracker);
        Ok(())
    }
}

fn write_layers(
    memory: &GuestMemory,
    files: &[PathBuf],
    memory_bytes: u64,
) -> Result<(), WritePagesError> {
    let open = |file: &PathBuf| Pages::open(File::open(file)?, memory_bytes);
    let layers: Vec<Pages> = files.iter().map(open).collect::<Result<_, _>>()?;
    let (mut batch, mut held) = (Vec::new(), 0);
    for (layer, piece) in Topmost::of(&layers, memory_bytes)? {
        if held + piece.bytes > BATCH_BYTES {
            write_batch(memory, &batch)?;
            batch.clear();
            held = 0;
        }
        held += piece.bytes;
        batch.push((layer, piece));
    }
    write_batch(memory, &batch)
}

fn write_batch(memory: &GuestMemory, batch: &[(&Pages, Run)]) -> Result<(), WritePagesError> {
    let (mut bytes, mut piece) = (Vec::new(), Vec::new());
    let mut places = Vec::with_capacity(batch.len());
    for (layer, run) in batch {
        layer.read(run, &mut piece)?;
        bytes.extend_from_slice(&piece);
        places.push(FileRange {
            offset: run.offset,
            bytes: run.bytes,
        });
    }
    memory.write(&memory.ranges_at(&places)?, &bytes)?;
    Ok(())
}

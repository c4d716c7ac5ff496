//! Writing layers of pages over a VM's memory, before its device state is loaded.

use crate::machine::{Machine, StartError};
use crate::spec;
use pando_store::pages::{Pages, PagesError, Run};
use pando_sys::memory::{FileRange, GuestMemory, MemoryError};
use pando_vmm::{ChangeTracker, Qemu, Vmm as _};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
            for file in &files {
                write_layer(&memory, file, bytes)?;
            }
            let mut tracker = ChangeTracker::new(memory);
            tracker.rebase()?;
            Ok::<_, WritePagesError>(tracker)
        });
        let tracker = written.await.map_err(|_| WritePagesError::Died)??;
        self.chain.lock().await.tracker = Some(tracker);
        Ok(())
    }
}

fn write_layer(
    memory: &Arc<GuestMemory>,
    file: &Path,
    memory_bytes: u64,
) -> Result<(), WritePagesError> {
    let pages = Pages::open(File::open(file)?, memory_bytes)?;
    let (mut batch, mut held) = (Vec::new(), 0);
    for run in pages.runs().iter().flat_map(|run| pieces(*run)) {
        if held + run.bytes > BATCH_BYTES {
            write_batch(memory, &pages, &batch)?;
            batch.clear();
            held = 0;
        }
        held += run.bytes;
        batch.push(run);
    }
    write_batch(memory, &pages, &batch)
}

/// A run in pieces of at most a batch.
fn pieces(run: Run) -> impl Iterator<Item = Run> {
    (0..run.bytes)
        .step_by(BATCH_BYTES as usize)
        .map(move |at| Run {
            offset: run.offset + at,
            bytes: BATCH_BYTES.min(run.bytes - at),
            data: run.data.map(|data| data + at),
        })
}

fn write_batch(memory: &GuestMemory, pages: &Pages, batch: &[Run]) -> Result<(), WritePagesError> {
    let (mut bytes, mut piece) = (Vec::new(), Vec::new());
    let mut places = Vec::with_capacity(batch.len());
    for run in batch {
        pages.read(run, &mut piece)?;
        bytes.extend_from_slice(&piece);
        places.push(FileRange {
            offset: run.offset,
            bytes: run.bytes,
        });
    }
    memory.write(&memory.ranges_at(&places)?, &bytes)?;
    Ok(())
}

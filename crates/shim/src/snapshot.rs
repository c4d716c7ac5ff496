//! Saving a running VM: freeze, stop, copy what changed, go on, write.

use crate::error_chain::error_chain;
use crate::machine::{Machine, Running, make_overlay};
use crate::spec;
use connectrpc::ConnectError;
use pando_sys::file::{share_or_copy, write_sparse};
use pando_vmm::capture::ARENA_BYTES;
use pando_vmm::memory_image::seal_cold;
use pando_vmm::{Arena, CaptureError, Captured, ChangeTracker, Vmm as _};
use pando_wire::guest::Frozen;
use pando_wire::shim::{SnapshotRequest, SnapshotResponse};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the guest may take to freeze its processes; after that the snapshot is forced.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(4);

/// How long the guest may take to go on; it then goes on without having said so.
const THAW_TIMEOUT: Duration = Duration::from_secs(4);

/// Takes a snapshot into the slot. The disk's writable layer becomes a sealed one and a
/// new one is put on it, unless the VM ends with the snapshot.
pub(crate) async fn take(
    machine: &Arc<Machine>,
    running: &Running,
    request: &SnapshotRequest,
) -> Result<SnapshotResponse, ConnectError> {
    let failed = |error: &dyn std::error::Error| ConnectError::internal(error_chain(error));
    // Held to the end: one snapshot at a time, and the numbers of its files are its own.
    let mut disks = machine.disk_layers.lock().await;
    let cold = matches!(
        machine.spec.begin,
        spec::Begin::BakeReady | spec::Begin::BakePreMount
    );
    let names = Names::new(*disks, cold && request.stop);
    let slot = machine.slot();
    let prepared = if cold {
        None
    } else {
        Some(prepare(machine, &names).await?)
    };
    let overlay = slot.join(spec::disk(*disks));
    let overlay = if request.stop {
        None
    } else {
        make_overlay(&overlay).map_err(|error| failed(&error))?;
        Some(
            running
                .qemu
                .prepare_disk_overlay(&overlay)
                .await
                .map_err(|error| failed(&error))?,
        )
    };

    let paused = Instant::now();
    let frozen = running.channel.freeze(FREEZE_TIMEOUT).await;
    running.qemu.stop().await.map_err(|error| failed(&error))?;
    running
        .qemu
        .save_device_state(&slot.join(&names.device_state))
        .await
        .map_err(|error| failed(&error))?;
    let captured = match prepared {
        None => None,
        Some(prepared) => Some(capture(running, prepared).await?),
    };
    if let Some(overlay) = overlay {
        running
            .qemu
            .switch_disk_overlay(overlay)
            .await
            .map_err(|error| failed(&error))?;
        *disks += 1;
    }
    if request.stop {
        machine.quit().await;
    } else {
        running.qemu.cont().await.map_err(|error| failed(&error))?;
        running
            .channel
            .thaw(THAW_TIMEOUT)
            .await
            .map_err(|error| failed(&error))?;
    }
    let pause = paused.elapsed();
    let dirty_pages = match captured {
        Some((image, captured)) => {
            let pages = captured.pages;
            blocking(move || image.finish(&captured)).await?;
            pages
        }
        None => {
            let cold_memory = slot.join(spec::MEMORY);
            blocking(move || seal_cold(&cold_memory).map(drop)).await?;
            0
        }
    };
    Ok(answer(frozen, names, pause, dirty_pages))
}

/// The files of one snapshot in the slot.
struct Names {
    memory: String,
    device_state: String,
    disk: String,
}

impl Names {
    /// `disks` layers are open now; the uppermost is sealed. A cold VM that ends leaves
    /// its own memory file, which is complete.
    fn new(disks: usize, cold_and_stop: bool) -> Self {
        Self {
            memory: if cold_and_stop {
                spec::MEMORY.to_owned()
            } else {
                format!("memory.{disks}")
            },
            device_state: format!("device-state.{disks}"),
            disk: spec::disk(disks - 1),
        }
    }
}

fn answer<E>(
    frozen: Result<Frozen, E>,
    names: Names,
    pause: Duration,
    dirty_pages: u64,
) -> SnapshotResponse {
    let forced = frozen.is_err();
    SnapshotResponse {
        memory_file: names.memory,
        device_state_file: names.device_state,
        disk_file: names.disk,
        pause_ms: pause.as_secs_f64() * 1000.0,
        dirty_pages,
        unfrozen_pids: frozen
            .map(|frozen| frozen.unfrozen_pids)
            .unwrap_or_default(),
        forced,
        ..SnapshotResponse::default()
    }
}

/// A memory file in the making: the parent's, with what the VM wrote laid over it.
struct Image {
    file: File,
    arena: Arena,
    /// Set in the pause.
    tracker: Option<ChangeTracker>,
}

impl Image {
    fn finish(mut self, captured: &Captured) -> Result<(), CaptureError> {
        if let Some(tracker) = &mut self.tracker {
            let write = &mut |offset, bytes: &[u8]| write_sparse(&self.file, offset, bytes);
            tracker.emit(captured, &self.arena, write)?;
        }
        self.file.sync_all().map_err(CaptureError::Keep)
    }
}

/// Copies the parent's memory beside it, before the pause.
async fn prepare(machine: &Machine, names: &Names) -> Result<Image, ConnectError> {
    let slot = machine.slot();
    let target = slot.join(&names.memory);
    let start = move || -> io::Result<Image> {
        let base = File::open(slot.join(spec::MEMORY))?;
        let file = File::create_new(&target)?;
        share_or_copy(&base, &file)?;
        Ok(Image {
            file,
            arena: Arena::faulted_in(ARENA_BYTES),
            tracker: None,
        })
    };
    blocking(start).await
}

/// Copies the private pages, inside the pause.
async fn capture(running: &Running, mut image: Image) -> Result<(Image, Captured), ConnectError> {
    let memory = running
        .qemu
        .guest_memory()
        .map_err(|error| ConnectError::internal(error_chain(&error)))?;
    blocking(move || {
        // All private pages, since the file begins as the one that the VM was spawned from.
        let mut tracker = ChangeTracker::comparing(memory);
        let write = &mut |offset, bytes: &[u8]| write_sparse(&image.file, offset, bytes);
        let captured = tracker.capture(&mut image.arena, write)?;
        image.tracker = Some(tracker);
        Ok::<_, CaptureError>((image, captured))
    })
    .await
}

async fn blocking<R, E>(
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
) -> Result<R, ConnectError>
where
    R: Send + 'static,
    E: std::error::Error + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| ConnectError::internal(error_chain(&error))),
        Err(_) => Err(ConnectError::internal("the snapshot's thread died")),
    }
}

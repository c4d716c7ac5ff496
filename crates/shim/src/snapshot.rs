//! Saving a running VM: freeze, stop, copy what changed, go on, write.
//!
//! ```text
//!   before the pause   a new disk layer is made and opened, the copy's memory is faulted in
//!   in the pause       freeze, stop, device state, changed pages -> memory, switch layers,
//!                      go on, thaw
//!   after the pause    the pages are written into the slot
//! ```
//! Making it durable is the daemon's: it makes inodes of its own of what lies in the slot.

use crate::chain::Chain;
use crate::error_chain::error_chain;
use crate::machine::{Machine, Running, make_overlay};
use crate::spec;
use connectrpc::ConnectError;
use pando_store::fault;
use pando_store::pages::PagesWriter;
use pando_vmm::capture::ARENA_BYTES;
use pando_vmm::memory_image::seal_cold;
use pando_vmm::{Arena, Captured, ChangeTracker, Vmm as _};
use pando_wire::Steps;
use pando_wire::channel::ThawError;
use pando_wire::guest::{Frozen, SyncRequest};
use pando_wire::shim::{BakeResponse, SnapshotRequest, SnapshotResponse};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long the guest may take to freeze its processes; after that the snapshot is forced.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(4);

/// How long the guest may take to go on; it then goes on without having said so.
const THAW_TIMEOUT: Duration = Duration::from_secs(4);

/// How long the guest may take to write out its file systems. Without KVM and with a full
/// page cache it takes seconds.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// What the device state may take. QEMU says nothing of a disk that is full while it writes
/// it, so the room is seen to be there before.
const DEVICE_STATE_ROOM: usize = 256 << 10;

/// What a VM may write between a look at its memory and its standing still.
const ARENA_SLACK_BYTES: u64 = 4 << 20;

/// Ends a bake: saves a VM that was booted for that, whose memory is a file of its own.
pub(crate) async fn bake(
    machine: &Machine,
    running: &Running,
) -> Result<BakeResponse, ConnectError> {
    let chain = machine.chain.lock().await;
    let frozen = running.channel.freeze(FREEZE_TIMEOUT).await;
    running.qemu.stop().await.map_err(failed)?;
    let slot = machine.slot();
    let device_state = slot.join(spec::TAKEN_DEVICE_STATE);
    let saved = running.qemu.save_device_state(&device_state).await;
    saved.map_err(failed)?;
    machine.quit().await;
    let memory = slot.join(spec::MEMORY);
    blocking(move || seal_cold(&memory).map(drop)).await?;
    Ok(BakeResponse {
        memory_file: spec::MEMORY.to_owned(),
        device_state_file: spec::TAKEN_DEVICE_STATE.to_owned(),
        disk_file: spec::disk(chain.disks - 1),
        forced: frozen.is_err(),
        ..BakeResponse::default()
    })
}

/// Takes a snapshot into the slot. The disk's writable layer becomes a sealed one and a
/// new one is put on it. Whatever goes wrong, the VM runs on.
pub(crate) async fn take(
    machine: &Machine,
    running: &Running,
    request: &SnapshotRequest,
) -> Result<SnapshotResponse, ConnectError> {
    // Held to the end: one snapshot at a time, and the numbers of its files are its own.
    let mut chain = machine.chain.lock().await;
    if chain.held {
        return Err(ConnectError::failed_precondition("it is held already"));
    }
    if !chain.settle(&request.base) {
        return Err(ConnectError::internal(format!(
            "`{}` is not in this VM's past",
            request.base
        )));
    }
    if chain.is_full(request.hold) {
        return Err(ConnectError::failed_precondition(format!(
            "its disk has {} layers, one for each snapshot since it was started, and can have no more: pause and resume it",
            chain.disks
        )));
    }
    if !request.memory {
        write_out(running).await?;
    }
    let prepared = Prepared::new(machine, running, &mut chain, request).await?;
    let mut steps = Steps::begin();
    let frozen = running.channel.freeze(FREEZE_TIMEOUT).await;
    steps.mark("frozen");
    reached("shim.frozen", running);
    let known = machine.gateway()?.save();
    let saved = prepared
        .save(running, &mut chain, request, &mut steps)
        .await;
    if request.hold && saved.is_ok() {
        chain.held = true;
    } else {
        go_on(running, &mut steps).await?;
    }
    let pause_ms = steps.mark("thawed");
    reached("shim.went_on", running);
    let (captured, writer) = saved?;
    if request.memory {
        let path = machine.slot().join(spec::TAKEN_NETWORK);
        std::fs::write(path, known).map_err(failed)?;
    }
    let (dirty_pages, method) = match (captured, writer) {
        (Some(captured), Some(writer)) => write(&mut chain, captured, writer).await?,
        _ => (0, ""),
    };
    reached("shim.written", running);
    steps.mark("written");
    let mut answer = answer(frozen, request, &chain, (dirty_pages, method));
    answer.pause_ms = pause_ms;
    answer.timing_ms = steps.done.into_iter().collect();
    Ok(answer)
}

/// Lets a VM that is held go on.
pub(crate) async fn release(machine: &Machine, running: &Running) -> Result<(), ConnectError> {
    let mut chain = machine.chain.lock().await;
    if chain.held {
        go_on(running, &mut Steps::begin()).await?;
        chain.held = false;
    }
    Ok(())
}

/// Has the guest write its file systems to their disks.
async fn write_out(running: &Running) -> Result<(), ConnectError> {
    let synced = running.guest.sync(SyncRequest::default());
    match tokio::time::timeout(SYNC_TIMEOUT, synced).await {
        Ok(synced) => synced.map(drop),
        Err(_) => Err(ConnectError::deadline_exceeded(
            "the guest did not write its disk out in time",
        )),
    }
}

async fn go_on(running: &Running, steps: &mut Steps) -> Result<(), ConnectError> {
    running.qemu.cont().await.map_err(failed)?;
    steps.mark("went on");
    match running.channel.thaw(THAW_TIMEOUT).await {
        // It did not answer the freeze either, or it will answer later: it runs.
        Ok(()) | Err(ThawError::Timeout(_)) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// What is made ready before the pause.
struct Prepared {
    overlay: pando_vmm::PreparedOverlay,
    device_state: std::path::PathBuf,
    memory: Option<PreparedMemory>,
}

struct PreparedMemory {
    tracker: ChangeTracker,
    arena: Arena,
    writer: PagesWriter,
}

/// What is left of it after the pause.
type Saved = (Option<(Captured, Arena)>, Option<PagesWriter>);

impl Prepared {
    async fn new(
        machine: &Machine,
        running: &Running,
        chain: &mut Chain,
        request: &SnapshotRequest,
    ) -> Result<Self, ConnectError> {
        let slot = machine.slot();
        for name in [
            spec::TAKEN_PAGES,
            spec::TAKEN_DEVICE_STATE,
            spec::TAKEN_NETWORK,
        ] {
            remove(&slot.join(name)).map_err(failed)?;
        }
        let memory = match request.memory {
            true => {
                see_room(&slot.join(spec::TAKEN_DEVICE_STATE)).map_err(failed)?;
                Some(prepare_memory(machine, running, chain).await?)
            }
            false => None,
        };
        let path = slot.join(spec::disk(chain.disks));
        // Left by one that failed before it came into use.
        remove(&path).map_err(failed)?;
        make_overlay(&path).map_err(failed)?;
        let overlay = running.qemu.prepare_disk_overlay(&path).await;
        Ok(Self {
            overlay: overlay.map_err(failed)?,
            device_state: slot.join(spec::TAKEN_DEVICE_STATE),
            memory,
        })
    }

    /// All that happens while the VM stands still.
    async fn save(
        self,
        running: &Running,
        chain: &mut Chain,
        request: &SnapshotRequest,
        steps: &mut Steps,
    ) -> Result<Saved, ConnectError> {
        let qemu = &running.qemu;
        let mut saved = (None, None);
        let stood = async {
            qemu.stop().await.map_err(failed)?;
            steps.mark("stopped");
            if let Some(memory) = self.memory {
                qemu.save_device_state(&self.device_state)
                    .await
                    .map_err(failed)?;
                steps.mark("devices saved");
                let PreparedMemory {
                    mut tracker,
                    mut arena,
                    mut writer,
                } = memory;
                let (tracker, captured, arena, writer) = blocking(move || {
                    let captured =
                        tracker.capture(&mut arena, &mut |offset, bytes| writer.add(offset, bytes));
                    Ok::<_, pando_vmm::CaptureError>((tracker, captured, arena, writer))
                })
                .await?;
                // What was seen to have changed is in the next one, if not in this.
                chain.tracker = Some(tracker);
                saved = (Some((captured.map_err(failed)?, arena)), Some(writer));
                steps.mark("pages copied");
            }
            Ok::<_, ConnectError>(())
        };
        let stood = stood.await;
        reached("shim.saved", running);
        if let Err(error) = stood {
            drop(qemu.discard_disk_overlay(self.overlay).await);
            return Err(error);
        }
        qemu.switch_disk_overlay(self.overlay)
            .await
            .map_err(failed)?;
        chain.taken(&request.name, request.memory);
        steps.mark("disk switched");
        reached("shim.switched", running);
        Ok(saved)
    }
}

async fn prepare_memory(
    machine: &Machine,
    running: &Running,
    chain: &mut Chain,
) -> Result<PreparedMemory, ConnectError> {
    let memory = running.qemu.guest_memory().map_err(failed)?;
    let tracker = chain.tracker.take();
    let tracker = tracker.unwrap_or_else(|| ChangeTracker::new(memory));
    let memory_bytes = u64::from(machine.spec.memory_mib) << 20;
    let path = machine.slot().join(spec::TAKEN_PAGES);
    blocking(move || {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // Room for what is written until the VM stands still, or a guess that is only worse.
        let expected = tracker.estimate().unwrap_or(memory_bytes) * 5 / 4 + ARENA_SLACK_BYTES;
        let arena = usize::try_from(expected.min(memory_bytes)).unwrap_or(ARENA_BYTES);
        Ok::<_, io::Error>(PreparedMemory {
            tracker,
            arena: Arena::faulted_in(arena.min(ARENA_BYTES)),
            writer: PagesWriter::new(file, memory_bytes),
        })
    })
    .await
}

/// Writes what was captured; returns the pages, and how they were found.
async fn write(
    chain: &mut Chain,
    (captured, arena): (Captured, Arena),
    mut writer: PagesWriter,
) -> Result<(u64, &'static str), ConnectError> {
    let lost = || ConnectError::internal("the memory is not followed");
    let mut tracker = chain.tracker.take().ok_or_else(lost)?;
    let (tracker, pages) = blocking(move || {
        let emitted = tracker.emit(&captured, &arena, &mut |offset, bytes| {
            writer.add(offset, bytes)
        });
        let pages = match emitted {
            Ok(()) => writer.finish().map_err(pando_vmm::CaptureError::Keep),
            Err(error) => Err(error),
        };
        Ok::<_, io::Error>((tracker, pages))
    })
    .await?;
    let method = tracker.method();
    chain.tracker = Some(tracker);
    Ok((pages.map_err(failed)?, method))
}

fn answer<E>(
    frozen: Result<Frozen, E>,
    request: &SnapshotRequest,
    chain: &Chain,
    (dirty_pages, method): (u64, &str),
) -> SnapshotResponse {
    let file = |name: &str| match request.memory {
        true => name.to_owned(),
        false => String::new(),
    };
    SnapshotResponse {
        pages_file: file(spec::TAKEN_PAGES),
        device_state_file: file(spec::TAKEN_DEVICE_STATE),
        network_file: file(spec::TAKEN_NETWORK),
        disk_files: chain.unkept_disks().map(spec::disk).collect(),
        dirty_pages,
        forced: frozen.is_err(),
        unfrozen_pids: frozen
            .map(|frozen| frozen.unfrozen_pids)
            .unwrap_or_default(),
        method: method.to_owned(),
        ..SnapshotResponse::default()
    }
}

/// A point at which a test makes this process, or the VMM, die.
fn reached(point: &'static str, running: &Running) {
    if fault::asks_for(point, "vmm") {
        running.qemu.kill();
    }
    fault::point(point);
}

/// Fails where the device state would find no room.
fn see_room(path: &Path) -> io::Result<()> {
    let written = std::fs::write(path, vec![0; DEVICE_STATE_ROOM]);
    remove(path)?;
    written
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// An error of any part; a full disk is told apart, since its owner can do something.
fn failed(error: impl std::error::Error + 'static) -> ConnectError {
    let chain = error_chain(&error);
    if is_no_space(&error) || chain.contains("No space left on device") {
        return ConnectError::resource_exhausted(chain);
    }
    ConnectError::internal(chain)
}

fn is_no_space(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            return true;
        }
        next = error.source();
    }
    false
}

async fn blocking<R, E>(
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
) -> Result<R, ConnectError>
where
    R: Send + 'static,
    E: std::error::Error + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(failed),
        Err(_) => Err(ConnectError::internal("the snapshot's thread died")),
    }
}

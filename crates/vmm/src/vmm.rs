//! What every VMM can do.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pando_sys::memory::GuestMemory;
use tokio::sync::broadcast;

use crate::error::VmmError;
use crate::event::{VmEvent, VmExit};

/// Whether a VM executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It executes.
    Running,
    /// It was stopped, or has not started yet.
    Paused,
    /// It waits for its state to be loaded.
    AwaitingLoad,
    /// It stopped itself because a disk request failed; [`Vmm::cont`] retries the request.
    IoError,
    /// It has powered off.
    Shutdown,
}

/// A disk layer that the VMM has opened but does not use yet.
#[derive(Debug)]
#[must_use = "an overlay that is not switched to keeps its file open"]
pub struct PreparedOverlay {
    pub(crate) index: usize,
    /// The descriptors that it was given.
    pub(crate) descriptors: u64,
    pub(crate) path: PathBuf,
}

/// A running VMM process with one VM in it.
///
/// Every method may be called from any task; the VMM carries them out one by
/// one. Each fails with [`VmmError::Ended`] once the process has ended.
pub trait Vmm: Send + Sync {
    /// Loads the device state of a snapshot whose memory the VM was launched on.
    /// Once, before the first [`Vmm::cont`]. The VM is paused afterwards.
    fn load(&self, device_state: &Path) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Lets the VM execute; also after an I/O error, whose request is then retried.
    fn cont(&self) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Stops the VM, waiting for disk requests in flight.
    fn stop(&self) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Whether the VM executes.
    fn run_state(&self) -> impl Future<Output = Result<RunState, VmmError>> + Send;

    /// Writes the state of all devices, without the memory, to a new file. Only while the VM is stopped. Not yet durable.
    fn save_device_state(&self, path: &Path) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Opens an empty disk layer, so that switching to it takes no
    /// time. Before the pause.
    fn prepare_disk_overlay(
        &self,
        path: &Path,
    ) -> impl Future<Output = Result<PreparedOverlay, VmmError>> + Send;

    /// Makes the prepared layer the one that is written. Returns the path of
    /// the layer below, which the VMM writes no more; it is not yet durable.
    /// Only while the VM is stopped.
    fn switch_disk_overlay(
        &self,
        overlay: PreparedOverlay,
    ) -> impl Future<Output = Result<PathBuf, VmmError>> + Send;

    /// Closes a prepared layer that is not switched to. Its file stays.
    fn discard_disk_overlay(
        &self,
        overlay: PreparedOverlay,
    ) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// The VM's memory, to be read while the VM is stopped.
    ///
    /// # Errors
    /// It has none yet: it was not bound to a snapshot.
    fn guest_memory(&self) -> Result<Arc<GuestMemory>, VmmError>;

    /// The VMM's process id.
    fn pid(&self) -> u32;

    /// The jail layers in force around the VMM, as short names.
    fn layers(&self) -> &[String];

    /// What happens to the VM from now on.
    fn subscribe(&self) -> broadcast::Receiver<VmEvent>;

    /// Waits for the VMM's end, which every caller is told.
    fn exited(&self) -> impl Future<Output = VmExit> + Send;

    /// The last of what the guest wrote to its console.
    fn console_tail(&self) -> String;

    /// Ends the VMM as a crash would, without a word.
    fn kill(&self);

    /// Ends the VMM: asked first, killed after `grace`.
    fn quit(&self, grace: Duration) -> impl Future<Output = VmExit> + Send;
}

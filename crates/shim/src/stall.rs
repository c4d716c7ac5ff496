//! A VM that stands still because the host could not write for it.
//!
//! QEMU stops a VM whose disk request fails for want of space, and says so once. Nothing is
//! lost: the request is done again when the VM goes on, which somebody has to tell it.

use crate::machine::{Machine, Status};
use pando_vmm::{Qemu, RunState, VmEvent, Vmm as _, VmmError};
use pando_wire::shim::State;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

/// Why a VM stands still, or did not come up, where there is no room on the host.
pub const NO_SPACE: &str = "the host's disk is full";

/// Between two tries. Each is one disk request that fails again.
const RETRY: Duration = Duration::from_millis(500);

/// A VM that went on fails its request within this, if it still fails.
const SETTLE: Duration = Duration::from_millis(50);

/// How long a caller waits for a VM that stands still before it is told.
const PATIENCE: Duration = Duration::from_secs(3);

impl Machine {
    /// Lets the VM go on whenever the host can write for it again.
    pub(crate) async fn follow_stalls(&self, qemu: &Qemu) {
        let mut events = qemu.subscribe();
        // What came before may have been missed.
        self.outlast(qemu, "a disk request failed").await;
        loop {
            match events.recv().await {
                Ok(VmEvent::BlockIoError {
                    stopped: true,
                    no_space,
                    reason,
                }) => {
                    let what = match no_space {
                        true => NO_SPACE,
                        false => reason.as_str(),
                    };
                    self.outlast(qemu, what).await;
                }
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => self.outlast(qemu, "a disk request failed").await,
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Tries until the VM runs, or has ended. A QEMU that does not answer for a while, busy
    /// with a disk that hangs, is asked again: it says only once that it has stopped the VM.
    async fn outlast(&self, qemu: &Qemu, why: &str) {
        loop {
            match qemu.run_state().await {
                Ok(RunState::IoError) => self.say(format!("it stands still: {why}")),
                Err(VmmError::Timeout { .. }) => {}
                Ok(_) | Err(_) => break,
            }
            tokio::time::sleep(RETRY).await;
            // Not in the middle of a snapshot.
            let _chain = self.chain.lock().await;
            if let Ok(RunState::IoError) = qemu.run_state().await {
                // Whether it goes on is seen above.
                drop(qemu.cont().await);
            }
            tokio::time::sleep(SETTLE).await;
        }
        self.say(String::new());
    }

    /// Says why a running VM stands still, or that it does not. One that has ended keeps its
    /// own cause.
    fn say(&self, cause: String) {
        self.status.send_if_modified(|status| {
            let new = status.state == State::STATE_RUNNING && status.cause != cause;
            if new {
                status.cause = cause;
            }
            new
        });
    }
}

/// Resolves when a disk request of the VM fails for want of space; never, once QEMU is gone.
pub(crate) async fn until_no_space(qemu: &Qemu) {
    let mut events = qemu.subscribe();
    loop {
        match events.recv().await {
            Ok(VmEvent::BlockIoError { no_space: true, .. }) => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Status {
    /// Why the VM stands still, if it does.
    pub(crate) fn stalled(&self) -> Option<&str> {
        let stalled = self.state == State::STATE_RUNNING && !self.cause.is_empty();
        stalled.then_some(self.cause.as_str())
    }
}

/// Resolves when the VM has stood still for a while, and says why.
pub(crate) async fn until_stalled(status: &mut watch::Receiver<Status>) -> String {
    loop {
        let stalled = status.wait_for(|status| status.stalled().is_some()).await;
        let Ok(cause) = stalled.map(|status| status.cause.clone()) else {
            // The shim ends, and the request with it.
            return std::future::pending().await;
        };
        let goes_on = status.wait_for(|status| status.stalled().is_none());
        if tokio::time::timeout(PATIENCE, goes_on).await.is_err() {
            return cause;
        }
    }
}

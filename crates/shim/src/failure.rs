//! Why a VM ended, in a sentence for a person.

use pando_vmm::{ShutdownReason, VmExit};
use pando_wire::shim::State;

/// The state and cause that a VM's end means for its sandbox.
///
/// A power-off that the guest or we asked for is `stopped`; everything else failed,
/// and the cause says how: panic, signal, exit code, last words.
pub(crate) fn judge(exit: &VmExit) -> (State, String) {
    if let Some(panic) = &exit.panic {
        return (
            State::STATE_FAILED,
            format!("the guest's kernel panicked: {panic}"),
        );
    }
    match &exit.shutdown {
        Some(ShutdownReason::GuestReset | ShutdownReason::GuestShutdown) => (
            State::STATE_STOPPED,
            "the guest powered itself off".to_owned(),
        ),
        Some(ShutdownReason::HostQuit) => (State::STATE_STOPPED, "it was stopped".to_owned()),
        _ => {
            let words = exit.stderr.trim();
            let said = if words.is_empty() {
                String::new()
            } else {
                format!("; it said: {words}")
            };
            (
                State::STATE_FAILED,
                format!("QEMU died: {}{said}", exit.exit),
            )
        }
    }
}

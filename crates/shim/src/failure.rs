//! Why a VM ended, in a sentence for a person.

use pando_sys::spawn::ChildExit;
use pando_vmm::{ShutdownReason, VmExit};
use pando_wire::shim::State;

/// What the kernel counts; see proc(5).
const VMSTAT: &str = "/proc/vmstat";

/// SIGKILL, the same number on every Linux.
const SIGKILL: i32 = 9;

/// How often the host's kernel has killed for want of memory, of the whole host or of a
/// cgroup, since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OomKills(Option<u64>);

impl OomKills {
    /// It was not looked.
    pub(crate) const UNKNOWN: Self = Self(None);

    /// So far; nothing where the kernel does not say it.
    pub(crate) fn so_far() -> Self {
        let text = std::fs::read_to_string(VMSTAT).unwrap_or_default();
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Self(line.and_then(|number| number.trim().parse().ok()))
    }
}

/// Who may have killed a VMM that we did not kill, by what the kernel counted before and after.
fn killer(before: OomKills, after: OomKills) -> &'static str {
    match (before.0, after.0) {
        (Some(before), Some(after)) if after > before => {
            ", most likely by the host's out-of-memory killer, which was at work"
        }
        (Some(_), Some(_)) => ", not by the host's out-of-memory killer",
        _ => ", perhaps by the host's out-of-memory killer",
    }
}

/// The state and cause that a VM's end means for its sandbox.
///
/// A power-off that the guest or we asked for is `stopped`; everything else failed,
/// and the cause says how: panic, signal, exit code, last words.
pub(crate) fn judge(exit: &VmExit, before: OomKills) -> (State, String) {
    cause(exit, killer(before, OomKills::so_far()))
}

fn cause(exit: &VmExit, killer: &str) -> (State, String) {
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
            let by = match exit.exit {
                ChildExit::Signal(SIGKILL) => killer,
                _ => "",
            };
            let said = if words.is_empty() {
                String::new()
            } else {
                format!("; it said: {words}")
            };
            (
                State::STATE_FAILED,
                format!("QEMU died: {}{by}{said}", exit.exit),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_laid_at_the_door_of_who_was_at_work() {
        let counted = |text| OomKills::parse(text);
        let before = counted("pgfault 1\noom_kill 3\noom_kill_other 9\n");
        assert_eq!(before, OomKills(Some(3)));
        assert_eq!(counted("oom_killer 3\n"), OomKills(None));
        let exit = |exit| VmExit {
            exit,
            shutdown: None,
            panic: None,
            stderr: "last words\n".to_owned(),
        };
        let said = |ended, after| {
            let by = killer(before, OomKills(after));
            cause(&exit(ended), by).1
        };
        let killed = ChildExit::Signal(SIGKILL);
        assert_eq!(
            said(killed, Some(4)),
            "QEMU died: signal 9, most likely by the host's out-of-memory killer, which was at work; it said: last words"
        );
        assert!(said(killed, Some(3)).contains(", not by the host's"));
        assert!(said(killed, None).contains(", perhaps by the host's"));
        for other in [ChildExit::Code(1), ChildExit::Signal(11)] {
            assert_eq!(
                said(other, Some(4)),
                format!("QEMU died: {other}; it said: last words")
            );
        }
    }
}

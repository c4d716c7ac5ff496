//! What a sandbox may be asked in which state: pure, no I/O.
//!
//! ```text
//!            create                 start
//!              |                      |
//!              v                      v          pause
//!          creating --- ready --> running ------------------> paused
//!              |                   |   |  ^------- resume ------/
//!        spawn failed    VM died   |   |  +------- stop ---> stopping
//!        (row removed)             |   |  guest powered off     | off
//!                                  v   +----------+             |
//!                               failed            v             v
//!                                  \----------> stopped <-------+
//!                                    start: creating again
//! ```
//! `remove` is legal everywhere and ends everything. A rollback makes a sandbox that runs,
//! is paused, is off or failed a running one. Snapshots and forks leave a sandbox as it is.

use pando_types::SandboxState;

/// What a caller asks of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Anything that needs a living guest: exec, files, ping.
    Use,
    /// Power off in order, keep the disk.
    Stop,
    /// Spawn again on the kept disk.
    Start,
    /// Keep the present state.
    Snapshot,
    /// Make running children.
    Fork,
    /// Go back to a kept state.
    RollBack,
    /// To disk, memory included.
    Pause,
    /// Go on from there.
    Resume,
    /// Destroy.
    Remove,
}

impl Operation {
    #[cfg(test)]
    const ALL: [Self; 9] = [
        Self::Use,
        Self::Stop,
        Self::Start,
        Self::Snapshot,
        Self::Fork,
        Self::RollBack,
        Self::Pause,
        Self::Resume,
        Self::Remove,
    ];

    /// For the sentence "sandbox X is stopped: cannot …".
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Use => "use it",
            Self::Stop => "stop it",
            Self::Start => "start it",
            Self::Snapshot => "take a snapshot of it",
            Self::Fork => "fork it",
            Self::RollBack => "roll it back",
            Self::Pause => "pause it",
            Self::Resume => "resume it",
            Self::Remove => "remove it",
        }
    }
}

/// Whether `operation` is legal in `state`.
pub(crate) fn allows(state: SandboxState, operation: Operation) -> bool {
    use SandboxState as S;
    match operation {
        Operation::Use
        | Operation::Stop
        | Operation::Snapshot
        | Operation::Fork
        | Operation::Pause => state == S::Running,
        Operation::Resume => state == S::Paused,
        Operation::RollBack => {
            matches!(state, S::Running | S::Paused | S::Stopped | S::Failed)
        }
        Operation::Start => matches!(state, S::Stopped | S::Failed),
        Operation::Remove => true,
    }
}

/// What the sandbox was doing when a daemon's life ended, seen by the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its shim answers.
    Answers,
    /// Its shim ended after the guest powered off.
    PoweredOff,
    /// Its shim is gone without a word, on this boot of the host.
    Gone,
    /// The host was started anew since.
    HostRestarted,
}

/// What a new daemon does with a row it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adoption {
    /// Go on with it in this state.
    Keep(SandboxState),
    /// Nobody was ever told of it: remove all of it.
    Discard,
    /// Write down that it failed.
    Fail(&'static str),
    /// Write down that it is off.
    Off(&'static str),
}

/// Decides what becomes of a sandbox that an earlier daemon left. `ever_ran` is false
/// for one whose creation was never answered.
pub(crate) fn adopt(state: SandboxState, ever_ran: bool, found: Found) -> Adoption {
    use SandboxState as S;
    match (state, found) {
        (S::Stopped | S::Failed | S::Paused, _) => Adoption::Keep(state),
        (S::Creating, _) if !ever_ran => Adoption::Discard,
        (_, Found::Answers) => Adoption::Keep(S::Running),
        (_, Found::PoweredOff) => Adoption::Off("the guest powered itself off"),
        (S::Stopping, Found::Gone | Found::HostRestarted) => Adoption::Off("it was stopped"),
        (_, Found::HostRestarted) => Adoption::Fail("the host restarted"),
        (_, Found::Gone) => Adoption::Fail("its shim died while no daemon ran"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_can_be_left_by_remove_and_used_only_when_running() {
        for state in SandboxState::ALL {
            assert!(allows(state, Operation::Remove));
            assert_eq!(
                allows(state, Operation::Use),
                state == SandboxState::Running
            );
            // Never both: a sandbox is either on or off.
            assert!(!(allows(state, Operation::Stop) && allows(state, Operation::Start)));
        }
        for operation in Operation::ALL {
            let somewhere = SandboxState::ALL
                .into_iter()
                .any(|state| allows(state, operation));
            assert!(somewhere, "{operation:?}");
            assert!(
                !allows(SandboxState::Creating, operation) || operation == Operation::Remove,
                "{operation:?}"
            );
        }
    }

    #[test]
    fn a_new_daemon_keeps_what_lives_and_loses_no_answered_sandbox() {
        for state in SandboxState::ALL {
            for found in [
                Found::Answers,
                Found::PoweredOff,
                Found::Gone,
                Found::HostRestarted,
            ] {
                let adoption = adopt(state, true, found);
                assert_ne!(adoption, Adoption::Discard, "{state} {found:?}");
                if found == Found::HostRestarted {
                    assert_ne!(adoption, Adoption::Keep(SandboxState::Running));
                }
            }
        }
        assert_eq!(
            adopt(SandboxState::Creating, false, Found::Answers),
            Adoption::Discard
        );
        assert_eq!(
            adopt(SandboxState::Running, true, Found::Answers),
            Adoption::Keep(SandboxState::Running)
        );
    }
}

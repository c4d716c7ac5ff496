//! When a sandbox's time is over, and what becomes of it then: pure, no I/O.
//!
//! ```text
//!               deadline passed, or unused for long enough
//!    running ────────────────────────────────────────────> kill: gone, or pause: paused
//!    stopped, failed ── deadline passed, and `kill` ─────> gone
//!    paused, creating, stopping ─────────────────────────> nothing
//! ```
//! The deadline is counted from the moment at which a sandbox first runs. One that is put on
//! disk has none until it goes on: then its time begins anew.

use pando_types::{OnTimeout, SandboxState};
use std::time::{Duration, SystemTime};

/// All that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// What the sandbox does.
    pub(crate) state: SandboxState,
    /// Until its deadline, none when that has passed; `None` without one.
    pub(crate) expires_in: Option<Duration>,
    /// How long it may be unused.
    pub(crate) idle_timeout: Option<Duration>,
    /// How long it has been unused; `None` while it is used.
    pub(crate) idle: Option<Duration>,
    /// What becomes of it.
    pub(crate) on_timeout: OnTimeout,
}

/// Why a sandbox's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its deadline.
    Timeout,
    /// Nobody used it.
    Idle,
}

impl Cause {
    /// For events and as the reason of a state.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Timeout => "its timeout passed",
            Self::Idle => "nothing used it for its idle timeout",
        }
    }
}

/// What is to be done with a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing, as long as its state stays as it is.
    Never,
    /// Nothing before this time has passed; then it is looked at again.
    In(Duration),
    /// It is to be ended now.
    Now(OnTimeout, Cause),
}

/// Decides.
pub(crate) fn verdict(view: &View) -> Verdict {
    use SandboxState as S;
    let (expires_in, idle_left) = match view.state {
        S::Running => (view.expires_in, idle_left(view)),
        // There is nothing to be put on disk.
        S::Stopped | S::Failed if view.on_timeout == OnTimeout::Kill => (view.expires_in, None),
        S::Stopped | S::Failed | S::Paused | S::Creating | S::Stopping => (None, None),
    };
    if expires_in == Some(Duration::ZERO) {
        return Verdict::Now(view.on_timeout, Cause::Timeout);
    }
    if idle_left == Some(Duration::ZERO) {
        return Verdict::Now(view.on_timeout, Cause::Idle);
    }
    let next = expires_in.into_iter().chain(idle_left).min();
    next.map_or(Verdict::Never, Verdict::In)
}

/// How long it may still be unused. One that is used now could be left this moment: it is
/// looked at again when it could have been unused for long enough, and no end of a use has
/// to tell anybody.
fn idle_left(view: &View) -> Option<Duration> {
    let (may, is) = (view.idle_timeout?, view.idle.unwrap_or_default());
    Some(may.saturating_sub(is))
}

/// A sandbox's deadline once it is in `state`, from the one before.
pub(crate) fn deadline(
    state: SandboxState,
    before: Option<SystemTime>,
    timeout: Option<Duration>,
    now: SystemTime,
) -> Option<SystemTime> {
    let timeout = timeout?;
    match state {
        SandboxState::Paused => None,
        SandboxState::Running => Some(before.unwrap_or(now + timeout)),
        // A start after the deadline, of one that is paused by it, gets a new one.
        SandboxState::Creating => before.filter(|at| *at > now),
        SandboxState::Stopping | SandboxState::Stopped | SandboxState::Failed => before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    fn seconds(range: std::ops::Range<u64>) -> impl Strategy<Value = Option<Duration>> {
        proptest::option::of(range.prop_map(Duration::from_secs))
    }

    prop_compose! {
        fn views()(
            state in proptest::sample::select(SandboxState::ALL.to_vec()),
            expires_in in seconds(0..5),
            idle_timeout in seconds(1..5),
            idle in seconds(0..5),
            on_timeout in proptest::sample::select(OnTimeout::ALL.to_vec()),
        ) -> View {
            View { state, expires_in, idle_timeout, idle, on_timeout }
        }
    }

    /// The same sandbox later, if nothing happens to it: one that is used goes on to be.
    fn later(view: View, by: Duration) -> View {
        View {
            expires_in: view.expires_in.map(|left| left.saturating_sub(by)),
            idle: view.idle.map(|idle| idle + by),
            ..view
        }
    }

    proptest! {
        #[test]
        fn only_what_is_due_is_ended_and_nothing_before(view in views()) {
            let expired = view.expires_in == Some(Duration::ZERO);
            let unused = view.idle_timeout.zip(view.idle).is_some_and(|(may, is)| is >= may);
            let runs = view.state == SandboxState::Running;
            let is_off = matches!(view.state, SandboxState::Stopped | SandboxState::Failed);
            let due = (runs && (expired || unused))
                || (is_off && expired && view.on_timeout == OnTimeout::Kill);
            match verdict(&view) {
                Verdict::Now(deed, cause) => {
                    prop_assert!(due);
                    prop_assert_eq!(deed, view.on_timeout);
                    // The deadline's word counts where both have passed: it asks for no idleness.
                    prop_assert_eq!(cause == Cause::Timeout, expired);
                    prop_assert!(runs || deed == OnTimeout::Kill);
                }
                _ => prop_assert!(!due),
            }
        }

        #[test]
        fn who_looks_again_when_told_to_misses_nothing(view in views(), part in 0.0..1.0) {
            match verdict(&view) {
                Verdict::In(wait) => {
                    prop_assert!(wait > Duration::ZERO);
                    // Not even one whose use ends right away is due before.
                    let left_now = View { idle: Some(view.idle.unwrap_or_default()), ..view };
                    let before = later(left_now, wait.mul_f64(part));
                    prop_assert!(!matches!(verdict(&before), Verdict::Now(..)));
                    let at = verdict(&later(left_now, wait));
                    prop_assert!(matches!(at, Verdict::Now(..)), "{:?}", at);
                }
                Verdict::Never => {
                    let later = verdict(&later(view, Duration::from_secs(1 << 30)));
                    prop_assert_eq!(later, Verdict::Never);
                }
                Verdict::Now(..) => {}
            }
        }

        #[test]
        fn a_sandbox_in_use_ends_by_its_deadline_alone(view in views()) {
            let used = View { idle: None, ..view };
            let verdict = verdict(&used);
            prop_assert!(!matches!(verdict, Verdict::Now(_, Cause::Idle)));
        }

        #[test]
        fn the_deadline_stays_but_for_a_pause(
            state in proptest::sample::select(SandboxState::ALL.to_vec()),
            before in proptest::option::of(0u64..2000),
            timeout in seconds(1..1000),
        ) {
            let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
            let (now, before) = (at(1000), before.map(at));
            let after = deadline(state, before, timeout, now);
            if timeout.is_none() || state == SandboxState::Paused {
                prop_assert_eq!(after, None);
            } else if before.is_some() && (state != SandboxState::Creating || before > Some(now)) {
                prop_assert_eq!(after, before, "also one that has passed");
            } else if state == SandboxState::Running {
                prop_assert_eq!(after, timeout.map(|timeout| now + timeout));
            } else {
                prop_assert_eq!(after, None);
            }
        }
    }
}

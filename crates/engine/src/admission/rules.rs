//! Whether a sandbox may come up now: pure, no I/O.
//!
//! ```text
//!   available ─┬─ reserve: the host's own
//!              ├─ owed: what was promised and is not resident yet
//!              └─ left: a sandbox is admitted if what it is expected to need fits
//! ```
//! Expected is what those that live have for their own, and a quarter more; or, where an
//! overcommit is configured, the part of its size that this leaves. In the second case what
//! lives is owed the rest of its part, too.

use pando_types::Size;
use std::ops::RangeInclusive;

/// What a VMM and its shim take beside the guest's memory, at most; measured without KVM,
/// where the translator's code is most of it (docs/performance.md).
pub(crate) const VMM_BYTES: u64 = 96 << 20;

/// Memory that is left to the host where nothing is configured: a sixteenth of it, within
/// these.
pub(crate) const RESERVE_PART: u64 = 16;
pub(crate) const RESERVE_BYTES: RangeInclusive<u64> = (256 << 20)..=(4 << 30);

/// How the memory of a sandbox is reckoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reckoning {
    /// By what those that live have for their own, on average; `None` where none lives.
    Measured(Option<u64>),
    /// By its size: all sizes together may be so many percent of the memory.
    Overcommit(u32),
}

/// What a sandbox is expected to need, and is owed as long as it does not have it.
pub(crate) fn expected_bytes(size: Size, reckoning: Reckoning) -> u64 {
    let whole = (u64::from(size.memory_mib()) << 20) + VMM_BYTES;
    match reckoning {
        Reckoning::Measured(None) => VMM_BYTES.min(whole),
        // A quarter of headroom: the next one is as like the others as that.
        Reckoning::Measured(Some(average)) => (average + average / 4).clamp(VMM_BYTES, whole),
        Reckoning::Overcommit(percent) => {
            let part = u128::from(whole) * 100 / u128::from(percent.max(1));
            u64::try_from(part).unwrap_or(u64::MAX).max(VMM_BYTES)
        }
    }
}

/// All that a decision depends on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// What the host could give to new processes.
    pub(crate) available: u64,
    /// What is left to the host.
    pub(crate) reserve: u64,
    /// What was promised and is not resident yet.
    pub(crate) owed: u64,
    /// What the next one is expected to need.
    pub(crate) expected: u64,
}

impl View {
    /// What can still be promised.
    pub(crate) fn left(&self) -> u64 {
        self.available
            .saturating_sub(self.reserve)
            .saturating_sub(self.owed)
    }

    /// Whether the next one may come up.
    pub(crate) fn admits(&self) -> bool {
        self.expected <= self.left()
    }
}

/// Starts that wait for their turn, for each CPU: each is half a second of one without KVM,
/// so that the last one's turn comes within its caller's patience.
const QUEUE_PER_CPU: usize = 32;

/// How many starts may wait.
pub(crate) fn queue_length(cpus: usize) -> usize {
    QUEUE_PER_CPU * cpus.max(1)
}

/// How many starts go on at once: each keeps a CPU busy.
pub(crate) fn at_once(cpus: usize) -> usize {
    cpus.max(1)
}

/// Bounds of what a caller is told to wait, in seconds.
const RETRY_AFTER_S: RangeInclusive<u64> = 1..=30;

/// When to ask again, in seconds, where `ahead` starts of `mean_ms` each come before.
pub(crate) fn retry_after_s(ahead: usize, mean_ms: u64, at_once: usize) -> u64 {
    let ahead = u64::try_from(ahead).unwrap_or(u64::MAX);
    let at_once = u64::try_from(at_once.max(1)).unwrap_or(1);
    let wait_ms = ahead.saturating_mul(mean_ms) / at_once;
    wait_ms
        .div_ceil(1000)
        .clamp(*RETRY_AFTER_S.start(), *RETRY_AFTER_S.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::{CPUS, MEMORY_MIB};
    use proptest::prelude::*;

    fn sizes() -> impl Strategy<Value = Size> {
        (0..CPUS.len(), 0..MEMORY_MIB.len())
            .prop_map(|(cpus, memory)| Size::new(CPUS[cpus], MEMORY_MIB[memory]).unwrap())
    }

    fn reckonings() -> impl Strategy<Value = Reckoning> {
        prop_oneof![
            Just(Reckoning::Measured(None)),
            (0..(1u64 << 40)).prop_map(|average| Reckoning::Measured(Some(average))),
            any::<u32>().prop_map(Reckoning::Overcommit),
        ]
    }

    /// What happens to a host.
    #[derive(Clone, Debug)]
    enum Happening {
        Asked(Size),
        /// One that was promised has its memory, or ends.
        Settled(usize),
    }

    fn happenings() -> impl Strategy<Value = Vec<Happening>> {
        let one = prop_oneof![
            3 => sizes().prop_map(Happening::Asked),
            1 => (0usize..64).prop_map(Happening::Settled),
        ];
        prop::collection::vec(one, 0..200)
    }

    proptest! {
        /// However asks and arrivals come, what is promised never exceeds what there was
        /// beyond the reserve.
        #[test]
        fn no_more_is_promised_than_there_is(
            total in 0u64..(64 << 30),
            reserve in 0u64..(8 << 30),
            reckoning in reckonings(),
            happenings in happenings(),
        ) {
            let mut resident = 0u64;
            let mut promised: Vec<u64> = Vec::new();
            for happening in happenings {
                match happening {
                    Happening::Asked(size) => {
                        let view = View {
                            available: total.saturating_sub(resident),
                            reserve,
                            owed: promised.iter().sum(),
                            expected: expected_bytes(size, reckoning),
                        };
                        if view.admits() {
                            promised.push(view.expected);
                        }
                    }
                    Happening::Settled(which) if !promised.is_empty() => {
                        // It has all that it was promised.
                        resident += promised.remove(which % promised.len());
                    }
                    Happening::Settled(_) => {}
                }
                let all = resident + promised.iter().sum::<u64>();
                prop_assert!(all <= total.saturating_sub(reserve), "{all}");
            }
        }

        /// More memory, less owed or a smaller wish never turn an admission into a refusal.
        #[test]
        fn less_in_the_way_admits_no_less(
            available in any::<u64>(), reserve in any::<u64>(), owed in any::<u64>(),
            expected in any::<u64>(), less in any::<u64>(),
        ) {
            let view = View { available, reserve, owed, expected };
            let easier = [
                View { available: available.saturating_add(less), ..view },
                View { reserve: reserve.saturating_sub(less), ..view },
                View { owed: owed.saturating_sub(less), ..view },
                View { expected: expected.saturating_sub(less), ..view },
            ];
            for easier in easier {
                prop_assert!(easier.admits() >= view.admits());
            }
        }

        /// Nothing is expected to need more than all of its memory, unless less than its
        /// memory is to be promised; and never nothing.
        #[test]
        fn what_is_expected_is_bounded(size in sizes(), average in proptest::option::of(any::<u32>())) {
            let average = average.map(|mib| u64::from(mib) << 20);
            let whole = (u64::from(size.memory_mib()) << 20) + VMM_BYTES;
            let expected = expected_bytes(size, Reckoning::Measured(average));
            prop_assert!((VMM_BYTES..=whole).contains(&expected));
            prop_assert_eq!(expected_bytes(size, Reckoning::Overcommit(100)), whole);
            prop_assert!(expected_bytes(size, Reckoning::Overcommit(200)) >= whole / 2);
        }

        /// A longer queue is never promised an earlier turn.
        #[test]
        fn whoever_comes_later_waits_no_shorter(
            ahead in 0usize..10_000, mean_ms in 0u64..100_000, cpus in 1usize..256,
        ) {
            let told = retry_after_s(ahead, mean_ms, cpus);
            prop_assert!(told <= retry_after_s(ahead + 1, mean_ms, cpus));
            prop_assert!((1..=30).contains(&told));
        }
    }

    #[test]
    fn a_host_without_a_number_of_cpus_still_starts_one() {
        assert_eq!((queue_length(0), at_once(0)), (32, 1));
        assert_eq!((queue_length(2), at_once(2)), (64, 2));
        assert_eq!(retry_after_s(64, 500, 2), 16);
    }
}

//! What the pool does next: pure, no I/O.
//!
//! ```text
//!   want ── Fill ──> filling ── it waits ──> waiting ── claim ──> a sandbox
//!                      │                        │
//!                      └── it failed, it died ──┴── Retire ──> gone
//! ```
//! In this order:
//! 1. what nobody wants is retired;
//! 2. under memory pressure everything that waits is retired, the least wanted first;
//! 3. what is wanted is filled, a few at a time, while no request needs the CPUs, and as
//!    long as the host keeps its reserve of memory and disk.

use std::time::Duration;

/// What a slot is, the most useful first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A clone that answered and is stopped: only the identity is missing.
    Warm,
    /// A VMM with a snapshot's layers open: only the load is missing.
    Bound,
    /// A VMM that fits any snapshot of one size.
    Generic,
}

impl Kind {
    /// The word in the API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Bound => "bound",
            Self::Generic => "generic",
        }
    }

    /// Memory that one takes from the host, at most, VMM and shim included; measured
    /// without KVM, where the translator's code is most of it (docs/performance.md).
    pub(crate) fn cost_bytes(self) -> u64 {
        match self {
            Self::Warm => 96 << 20,
            Self::Bound | Self::Generic => 40 << 20,
        }
    }
}

/// Disk that stays free of slots: what a sandbox needs to start must be there.
pub(crate) const DISK_RESERVE_BYTES: u64 = 512 << 20;

/// After a request the next one often follows at once.
pub(crate) const QUIET: Duration = Duration::from_millis(30);

/// Requests that never pause put a fill off for this long, then one goes on beside them.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// How often the host's memory is looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What a slot is made from, and how far.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The snapshot's key; of a generic one the key of all snapshots that it fits.
    pub(crate) key: String,
    /// How far.
    pub(crate) kind: Kind,
}

/// A wish for slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// For which.
    pub(crate) target: Target,
    /// How many are to wait.
    pub(crate) count: usize,
    /// Filling it failed a short while ago.
    pub(crate) blocked: bool,
}

/// A slot that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Have<I> {
    /// Which.
    pub(crate) id: I,
    /// What it is made from.
    pub(crate) target: Target,
    /// Or is being made.
    pub(crate) waiting: bool,
}

/// All that a decision depends on.
#[derive(Clone, Debug)]
pub(crate) struct View<I> {
    /// The most wanted first.
    pub(crate) wants: Vec<Want>,
    /// The oldest first.
    pub(crate) haves: Vec<Have<I>>,
    /// Memory that the host could give to new processes.
    pub(crate) memory_available_bytes: u64,
    /// Memory that the pool leaves to others.
    pub(crate) memory_reserve_bytes: u64,
    /// Free space where sandboxes are kept.
    pub(crate) disk_free_bytes: u64,
    /// CPUs of the host.
    pub(crate) cpus: usize,
    /// Sandboxes that are being started for requests.
    pub(crate) spawns: usize,
    /// Since the last request.
    pub(crate) quiet: Duration,
    /// How long requests have put a fill off.
    pub(crate) put_off: Duration,
}

/// What keeps the pool from being full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The host's memory.
    Memory,
    /// The disk.
    Disk,
    /// Requests need the CPUs.
    Requests,
    /// Filling failed; the log says why.
    Failures,
}

impl Limit {
    /// For a person.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "the host's memory",
            Self::Disk => "the disk",
            Self::Requests => "requests come first",
            Self::Failures => "slots could not be made; `pando logs` says why",
        }
    }
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<I> {
    /// Begin to make one.
    Fill(Target),
    /// End one that waits.
    Retire(I),
    /// Nothing, for now.
    Rest {
        /// Look again then, whatever happens; `None`: when something happens.
        again_in: Option<Duration>,
        /// Why not all that is wanted waits.
        limited_by: Option<Limit>,
    },
}

/// Decides.
pub(crate) fn next<I: Clone>(view: &View<I>) -> Step<I> {
    if let Some(id) = unwanted(view) {
        return Step::Retire(id);
    }
    if view.memory_available_bytes < view.memory_reserve_bytes {
        return match least_wanted(view) {
            Some(id) => Step::Retire(id),
            None => rest(view, missing(view).map(|_| Limit::Memory)),
        };
    }
    let filling = view.haves.iter().filter(|have| !have.waiting).count();
    let Some(want) = missing(view).filter(|_| filling < at_once(view.cpus)) else {
        return rest(view, None);
    };
    match obstacle(view, want) {
        None => Step::Fill(want.target.clone()),
        Some(limit) => rest(view, Some(limit)),
    }
}

fn rest<I>(view: &View<I>, limited_by: Option<Limit>) -> Step<I> {
    let idle = view.wants.is_empty() && view.haves.is_empty();
    let again_in = match limited_by {
        _ if idle => None,
        Some(Limit::Requests) => Some(QUIET),
        _ => Some(LOOK_AGAIN),
    };
    Step::Rest {
        again_in,
        limited_by,
    }
}

fn count<I>(view: &View<I>, target: &Target) -> usize {
    let same = view.haves.iter().filter(|have| have.target == *target);
    same.count()
}

/// A waiting slot of a target that has too many, the oldest.
fn unwanted<I: Clone>(view: &View<I>) -> Option<I> {
    let is_unwanted = |have: &&Have<I>| {
        let want = view.wants.iter().find(|want| want.target == have.target);
        have.waiting && count(view, &have.target) > want.map_or(0, |want| want.count)
    };
    view.haves
        .iter()
        .find(is_unwanted)
        .map(|have| have.id.clone())
}

/// The waiting slot that would be missed least.
pub(super) fn least_wanted<I: Clone>(view: &View<I>) -> Option<I> {
    let rank = |have: &&Have<I>| {
        let same = |want: &Want| want.target == have.target;
        view.wants.iter().position(same)
    };
    let waiting = view.haves.iter().filter(|have| have.waiting);
    waiting.max_by_key(rank).map(|have| have.id.clone())
}

/// The most wanted target that lacks a slot, one that can be filled before one that cannot.
fn missing<I>(view: &View<I>) -> Option<&Want> {
    let lacking = |want: &&Want| count(view, &want.target) < want.count;
    let mut lacking = view.wants.iter().filter(lacking).peekable();
    let first = lacking.peek().copied();
    lacking.find(|want| !want.blocked).or(first)
}

/// Why this cannot be filled now.
fn obstacle<I>(view: &View<I>, want: &Want) -> Option<Limit> {
    let filling = view.haves.iter().filter(|have| !have.waiting);
    let under_way: u64 = filling.map(|have| have.target.kind.cost_bytes()).sum();
    let needed = view.memory_reserve_bytes + under_way + want.target.kind.cost_bytes();
    let busy = view.spawns > 0 || view.quiet < QUIET;
    if want.blocked {
        Some(Limit::Failures)
    } else if view.memory_available_bytes < needed {
        Some(Limit::Memory)
    } else if view.disk_free_bytes < DISK_RESERVE_BYTES {
        Some(Limit::Disk)
    } else if busy && view.put_off < PATIENCE {
        Some(Limit::Requests)
    } else {
        None
    }
}

/// Slots that are made at once: each is one busy CPU for a while.
pub(crate) fn at_once(cpus: usize) -> usize {
    (cpus / 2).max(1)
}

#[cfg(test)]
mod tests;

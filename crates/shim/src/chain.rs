//! What the next snapshot of this VM is compared with.
//!
//! A snapshot is relative to the newest one that the daemon has. Whether it has the last one
//! is known only when it asks for the next, by name: until then what that one held is in the
//! next one too. So nothing is lost when a snapshot could not be kept, for want of space or
//! because the daemon died.

use pando_types::limits;
use pando_vmm::ChangeTracker;

/// Layers that a VM with the most of them may get by pauses that came to nothing.
const SPARE_DISKS: usize = 16;

/// The chain of this VM's snapshots, as far as it matters for the next one.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Layers of the writable disk, the uppermost included; a snapshot adds one.
    pub(crate) disks: usize,
    /// Those of them that the daemon has.
    kept_disks: usize,
    /// What the daemon has.
    base: String,
    /// The last snapshot that was taken, if the daemon may not have it.
    last: Option<Last>,
    /// What changed in the memory; made when it is first needed.
    pub(crate) tracker: Option<ChangeTracker>,
    /// The VM is stopped until the daemon says what becomes of it.
    pub(crate) held: bool,
}

/// A snapshot that was taken.
#[derive(Debug)]
struct Last {
    name: String,
    /// How many of the disk's layers it has.
    disks: usize,
    /// Whether it has what changed in the memory.
    memory: bool,
}

impl Chain {
    pub(crate) fn new(disks: usize, kept_disks: usize, base: String) -> Self {
        Self {
            disks,
            kept_disks,
            base,
            last: None,
            tracker: None,
            held: false,
        }
    }

    /// Learns what the daemon has; false if that is nothing of this VM's past.
    pub(crate) fn settle(&mut self, base: &str) -> bool {
        if base == self.base {
            return true;
        }
        let Some(last) = self.last.take_if(|last| last.name == base) else {
            return false;
        };
        self.base = last.name;
        self.kept_disks = last.disks;
        if let Some(tracker) = &mut self.tracker
            && last.memory
        {
            tracker.confirm();
        }
        true
    }

    /// Whether no further snapshot can be taken that the VM runs on after. One that it ends
    /// with can: it goes on with a short chain then.
    pub(crate) fn is_full(&self, hold: bool) -> bool {
        let spare = if hold { SPARE_DISKS } else { 0 };
        self.disks >= limits::DISK_LAYERS + spare
    }

    /// A snapshot was taken, with the memory or without: the uppermost layer of the disk is
    /// sealed, and a new one lies on it.
    pub(crate) fn taken(&mut self, name: &str, memory: bool) {
        self.last = Some(Last {
            name: name.to_owned(),
            disks: self.disks,
            memory,
        });
        self.disks += 1;
    }

    /// The sealed layers that the daemon does not have.
    pub(crate) fn unkept_disks(&self) -> std::ops::Range<usize> {
        self.kept_disks..self.disks.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_chain_can_still_be_paused() {
        let chain = |disks| Chain::new(disks, 2, "bake".into());
        assert!(!chain(limits::DISK_LAYERS - 1).is_full(false));
        assert!(chain(limits::DISK_LAYERS).is_full(false));
        assert!(!chain(limits::DISK_LAYERS).is_full(true));
        assert!(chain(limits::DISK_LAYERS + SPARE_DISKS).is_full(true));
    }

    #[test]
    fn what_was_not_kept_is_in_the_next_one() {
        let mut chain = Chain::new(3, 2, "bake".into());
        assert!(chain.settle("bake"));
        chain.taken("one", true);
        assert_eq!(chain.unkept_disks(), 2..3);
        // The daemon does not have it: it asks relative to the same as before.
        assert!(chain.settle("bake"));
        chain.taken("two", true);
        assert_eq!(chain.unkept_disks(), 2..4);
        assert!(!chain.settle("one"), "its files are gone");
        assert!(chain.settle("two"));
        chain.taken("three", true);
        assert_eq!(chain.unkept_disks(), 4..5);
        assert!(!chain.settle("bake"));
    }
}

//! What the next snapshot of this VM is compared with.
//!
//! A snapshot is relative to the newest one that the daemon has. Whether it has the last one
//! is known only when it asks for the next, by name: until then what that one held is in the
//! next one too. So nothing is lost when a snapshot could not be kept, for want of space or
//! because the daemon died.

use pando_vmm::ChangeTracker;

/// The chain of this VM's snapshots, as far as it matters for the next one.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Layers of the writable disk, the uppermost included; a snapshot adds one.
    pub(crate) disks: usize,
    /// Those of them that the daemon has.
    kept_disks: usize,
    /// What the daemon has.
    base: String,
    /// The last snapshot that was taken, if the daemon may not have it: its name, and how
    /// many of the disk's layers it has.
    last: Option<(String, usize)>,
    /// What changed in the memory; made when it is first needed.
    pub(crate) tracker: Option<ChangeTracker>,
    /// The VM is stopped until the daemon says what becomes of it.
    pub(crate) held: bool,
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
        let Some((_, disks)) = self.last.take_if(|(name, _)| name == base) else {
            return false;
        };
        base.clone_into(&mut self.base);
        self.kept_disks = disks;
        if let Some(tracker) = &mut self.tracker {
            tracker.confirm();
        }
        true
    }

    /// A snapshot was taken: the uppermost layer is sealed, and a new one lies on it.
    pub(crate) fn taken(&mut self, name: &str) {
        self.last = Some((name.to_owned(), self.disks));
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
    fn what_was_not_kept_is_in_the_next_one() {
        let mut chain = Chain::new(3, 2, "bake".into());
        assert!(chain.settle("bake"));
        chain.taken("one");
        assert_eq!(chain.unkept_disks(), 2..3);
        // The daemon does not have it: it asks relative to the same as before.
        assert!(chain.settle("bake"));
        chain.taken("two");
        assert_eq!(chain.unkept_disks(), 2..4);
        assert!(!chain.settle("one"), "its files are gone");
        assert!(chain.settle("two"));
        chain.taken("three");
        assert_eq!(chain.unkept_disks(), 4..5);
        assert!(!chain.settle("bake"));
    }
}

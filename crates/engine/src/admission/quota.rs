//! What a tenant may have at once: pure, no I/O.

use crate::EngineError;
use pando_types::Size;

/// What each tenant may have; `None` is as much as the host gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Sandboxes that run.
    pub sandboxes: Option<u64>,
    /// CPUs of those.
    pub cpus: Option<u64>,
    /// Memory of those, in MiB.
    pub memory_mib: Option<u64>,
    /// Bytes of snapshots, in GiB.
    pub snapshot_gib: Option<u64>,
}

/// What a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    sandboxes: u64,
    cpus: u64,
    memory_mib: u64,
}

impl Used {
    /// With one more of this size.
    pub(crate) fn and(self, size: Size) -> Self {
        Self {
            sandboxes: self.sandboxes + 1,
            cpus: self.cpus + u64::from(size.cpus()),
            memory_mib: self.memory_mib + u64::from(size.memory_mib()),
        }
    }
}

impl TenantLimits {
    /// Whether whoever has this may have one more of this size.
    ///
    /// # Errors
    /// Names the limit that is in the way.
    pub(crate) fn check(&self, used: Used, size: Size) -> Result<(), EngineError> {
        let with = used.and(size);
        let limits = [
            (
                "max_sandboxes",
                self.sandboxes,
                used.sandboxes,
                with.sandboxes,
            ),
            ("max_cpus", self.cpus, used.cpus, with.cpus),
            (
                "max_memory_mib",
                self.memory_mib,
                used.memory_mib,
                with.memory_mib,
            ),
        ];
        for (limit, most, used, with) in limits {
            if let Some(most) = most.filter(|most| with > *most) {
                return Err(EngineError::Quota {
                    limit,
                    most,
                    used,
                    asked: with - used,
                });
            }
        }
        Ok(())
    }

    /// Whether whoever has snapshots of so many bytes may take another.
    ///
    /// # Errors
    /// All that there may be is used.
    pub(crate) fn check_snapshots(&self, used_bytes: u64) -> Result<(), EngineError> {
        match self.snapshot_gib {
            Some(most) if used_bytes >= most << 30 => Err(EngineError::Quota {
                limit: "max_snapshot_gib",
                most,
                used: used_bytes.div_ceil(1 << 30),
                // What it will take is known once it is taken.
                asked: 1,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::{CPUS, MEMORY_MIB};
    use proptest::prelude::*;

    #[test]
    fn the_limit_in_the_way_is_named_with_what_is_used_and_asked() {
        let limits = TenantLimits {
            sandboxes: Some(2),
            cpus: Some(4),
            memory_mib: Some(1024),
            snapshot_gib: Some(1),
        };
        let used = Used::default().and(Size::DEFAULT);
        assert!(limits.check(used, Size::DEFAULT).is_ok());
        let said = |used, size| limits.check(used, size).unwrap_err().to_string();
        assert_eq!(
            said(used.and(Size::DEFAULT), Size::DEFAULT),
            "the limit `max_sandboxes` is 2: 2 in use, 1 asked for"
        );
        assert_eq!(
            said(used, Size::new(4, 512).unwrap()),
            "the limit `max_cpus` is 4: 1 in use, 4 asked for"
        );
        assert_eq!(
            said(used, Size::new(1, 1024).unwrap()),
            "the limit `max_memory_mib` is 1024: 512 in use, 1024 asked for"
        );
        assert!(limits.check_snapshots((1 << 30) - 1).is_ok());
        assert_eq!(
            limits.check_snapshots(1 << 30).unwrap_err().code(),
            "quota_exceeded"
        );
        assert!(TenantLimits::default().check_snapshots(u64::MAX).is_ok());
    }

    proptest! {
        /// However many are asked for, in whatever order, no limit is ever passed.
        #[test]
        fn no_limit_is_ever_passed(
            most in proptest::option::of(0u64..20), cpus in proptest::option::of(0u64..40),
            memory_mib in proptest::option::of(0u64..40_000),
            asks in prop::collection::vec((0..CPUS.len(), 0..MEMORY_MIB.len()), 0..60),
        ) {
            let limits = TenantLimits { sandboxes: most, cpus, memory_mib, snapshot_gib: None };
            let mut used = Used::default();
            for (cpu, memory) in asks {
                let size = Size::new(CPUS[cpu], MEMORY_MIB[memory]).unwrap();
                if limits.check(used, size).is_ok() {
                    used = used.and(size);
                }
                prop_assert!(most.is_none_or(|most| used.sandboxes <= most));
                prop_assert!(cpus.is_none_or(|most| used.cpus <= most));
                prop_assert!(memory_mib.is_none_or(|most| used.memory_mib <= most));
            }
        }
    }
}

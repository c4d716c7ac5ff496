//! What one sandbox may use of its host, beside its size.

use std::fmt;
use std::ops::RangeInclusive;

/// A limit that is out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`limits.{name}` is from {} to {}, not {value}", bounds.start(), bounds.end())]
pub struct LimitError {
    /// The field.
    pub name: &'static str,
    /// What was asked for.
    pub value: u32,
    /// What can be had.
    pub bounds: RangeInclusive<u32>,
}

/// What one sandbox may use of its host; `None` is as much as there is.
///
/// The values are plain: [`SandboxLimits::check`] says whether they can be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxLimits {
    /// Percent of one CPU of the host. 100 times its CPUs, or more, is no limit.
    pub cpu_percent: Option<u32>,
    /// Processes and threads of the guest's users.
    pub processes: Option<u32>,
    /// What its disk may hold beyond what it was made from, in MiB.
    pub disk_mib: Option<u32>,
    /// Reads and writes of its disks together, in MiB a second.
    pub disk_mib_s: Option<u32>,
    /// Requests to its disks, a second.
    pub disk_iops: Option<u32>,
    /// Payload of its network, each way, in MiB a second.
    pub net_mib_s: Option<u32>,
    /// Files that one process of the guest's users may have open.
    pub open_files: Option<u32>,
}

/// A field of [`SandboxLimits`]: its name, its bounds, and how it is read and set.
#[derive(Clone, Debug)]
pub struct LimitField {
    /// As callers write it.
    pub name: &'static str,
    /// What can be had.
    pub bounds: RangeInclusive<u32>,
    /// Reads it.
    pub get: fn(&SandboxLimits) -> Option<u32>,
    /// Where it is.
    pub of: fn(&mut SandboxLimits) -> &mut Option<u32>,
}

macro_rules! field {
    ($name:ident, $bounds:expr) => {
        LimitField {
            name: stringify!($name),
            bounds: $bounds,
            get: |limits| limits.$name,
            of: |limits| &mut limits.$name,
        }
    };
}

impl SandboxLimits {
    /// No limits but those that every sandbox has.
    pub const NONE: Self = Self {
        cpu_percent: None,
        processes: None,
        disk_mib: None,
        disk_mib_s: None,
        disk_iops: None,
        net_mib_s: None,
        open_files: None,
    };

    /// Every field, in the order in which they are shown. Below the lower bounds a guest
    /// cannot even come up in the time that it is given; above the upper ones nothing is
    /// limited that the size, or the format of a disk, does not limit already.
    pub const FIELDS: [LimitField; 7] = [
        // The largest size has 8 CPUs.
        field!(cpu_percent, 5..=800),
        // A shell with a pipeline, and the most that a Linux has numbers for.
        field!(processes, 16..=4_194_304),
        // The journal of its file system alone takes a few; the disk has 8 GiB.
        field!(disk_mib, 64..=8192),
        field!(disk_mib_s, 1..=100_000),
        // Below it the mount of a disk takes longer than a spawn may.
        field!(disk_iops, 10..=10_000_000),
        field!(net_mib_s, 1..=100_000),
        // A shell and its program, and the kernel's own bound.
        field!(open_files, 32..=1_048_576),
    ];

    /// Whether these can be had.
    ///
    /// # Errors
    /// Names the first that cannot, and what can be had.
    pub fn check(&self) -> Result<(), LimitError> {
        for field in Self::FIELDS {
            if let Some(value) = (field.get)(self)
                && !field.bounds.contains(&value)
            {
                return Err(LimitError {
                    name: field.name,
                    value,
                    bounds: field.bounds,
                });
            }
        }
        Ok(())
    }

    /// These, and where nothing is said, those of `defaults`.
    #[must_use]
    pub fn or(mut self, defaults: &Self) -> Self {
        for field in Self::FIELDS {
            let value = (field.of)(&mut self);
            *value = value.or((field.get)(defaults));
        }
        self
    }

    /// The share of its CPUs that a sandbox with so many may use, where that is less than
    /// all: in percent of one CPU.
    pub fn cpu_limit_percent(&self, cpus: u32) -> Option<u32> {
        self.cpu_percent
            .filter(|percent| *percent < cpus.saturating_mul(100))
    }

    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl fmt::Display for SandboxLimits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for field in Self::FIELDS {
            if let Some(value) = (field.get)(self) {
                write!(formatter, "{separator}{} {value}", field.name)?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_bounds_that_are_named_when_they_are_passed() {
        assert!(SandboxLimits::NONE.check().is_ok());
        for field in SandboxLimits::FIELDS {
            let with = |value| {
                let mut limits = SandboxLimits::NONE;
                *(field.of)(&mut limits) = Some(value);
                assert_eq!((field.get)(&limits), Some(value));
                limits
            };
            let (low, high) = (*field.bounds.start(), *field.bounds.end());
            assert!(with(low).check().is_ok() && with(high).check().is_ok());
            for value in [0, low - 1, high + 1, u32::MAX] {
                let error = with(value).check().unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!(
                        "`limits.{}` is from {low} to {high}, not {value}",
                        field.name
                    )
                );
            }
        }
    }

    #[test]
    fn what_is_said_goes_before_the_default() {
        let mut said = SandboxLimits::NONE;
        said.cpu_percent = Some(50);
        let mut defaults = SandboxLimits::NONE;
        defaults.cpu_percent = Some(100);
        defaults.disk_mib = Some(1024);
        let both = said.or(&defaults);
        assert_eq!((both.cpu_percent, both.disk_mib), (Some(50), Some(1024)));
        assert_eq!(both.to_string(), "cpu_percent 50, disk_mib 1024");
        assert!(!both.is_none() && SandboxLimits::NONE.or(&SandboxLimits::NONE).is_none());
    }

    #[test]
    fn a_share_of_all_its_cpus_is_no_limit() {
        let limits = SandboxLimits {
            cpu_percent: Some(200),
            ..SandboxLimits::NONE
        };
        assert_eq!(limits.cpu_limit_percent(2), None);
        assert_eq!(limits.cpu_limit_percent(4), Some(200));
        assert_eq!(SandboxLimits::NONE.cpu_limit_percent(4), None);
    }
}

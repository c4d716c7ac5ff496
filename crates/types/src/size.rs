//! CPUs and memory of a sandbox: a short list, since each pair is baked once.

use std::fmt;

/// Virtual CPUs a sandbox may have.
pub const CPUS: [u32; 4] = [1, 2, 4, 8];

/// Memory a sandbox may have, in MiB.
pub const MEMORY_MIB: [u32; 7] = [256, 512, 1024, 2048, 4096, 8192, 16384];

/// A size that is not in the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No such number of CPUs.
    #[error("{0} CPUs cannot be had: choose 1, 2, 4 or 8")]
    Cpus(u32),
    /// No such amount of memory.
    #[error("{0} MiB of memory cannot be had: choose 256, 512, 1024, 2048, 4096, 8192 or 16384")]
    Memory(u32),
}

/// CPUs and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    cpus: u32,
    memory_mib: u32,
}

impl Size {
    /// The size of a sandbox when none is asked for.
    pub const DEFAULT: Self = Self {
        cpus: 1,
        memory_mib: 512,
    };

    /// A size from the list.
    ///
    /// # Errors
    /// Names the value that is not in the list, and those that are.
    pub fn new(cpus: u32, memory_mib: u32) -> Result<Self, SizeError> {
        if !CPUS.contains(&cpus) {
            return Err(SizeError::Cpus(cpus));
        }
        if !MEMORY_MIB.contains(&memory_mib) {
            return Err(SizeError::Memory(memory_mib));
        }
        Ok(Self { cpus, memory_mib })
    }

    /// Virtual CPUs.
    pub fn cpus(self) -> u32 {
        self.cpus
    }

    /// Memory in MiB.
    pub fn memory_mib(self) -> u32 {
        self.memory_mib
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} CPU, {} MiB", self.cpus, self.memory_mib)
    }
}

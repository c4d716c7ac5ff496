//! What a process costs in memory, from `/proc/PID/smaps_rollup`.

use std::io;

/// Memory of one process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident, shared pages included.
    pub resident: u64,
    /// Resident, each shared page divided by the number of its users.
    pub proportional: u64,
    /// Its own: anonymous, which a written page of a private file mapping also is.
    pub anonymous: u64,
    /// Swapped out.
    pub swapped: u64,
}

impl ProcessMemory {
    /// Reads it for the process `pid`.
    ///
    /// # Errors
    /// When the process is gone or not ours.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string(format!(
            "/proc/{pid}/smaps_rollup"
        ))?))
    }

    /// What would be free if the process ended: anonymous and swapped bytes.
    pub fn unique(self) -> u64 {
        self.anonymous + self.swapped
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            text.lines()
                .filter_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))
                .find_map(|kib| kib.trim().parse::<u64>().ok())
                .unwrap_or(0)
                * 1024
        };
        Self {
            resident: field("Rss:"),
            proportional: field("Pss:"),
            anonymous: field("Anonymous:"),
            swapped: field("Swap:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let text = "Rss:  10 kB\nPss: 8 kB\nPss_Anon: 99 kB\nAnonymous:  4 kB\nSwap: 2 kB\nSwapPss: 77 kB\n";
        let usage = ProcessMemory::parse(text);
        assert_eq!((usage.resident, usage.proportional), (10 << 10, 8 << 10));
        assert_eq!(usage.unique(), 6 << 10);
    }

    #[test]
    fn this_process_has_memory_of_its_own() {
        assert!(ProcessMemory::of(std::process::id()).unwrap().unique() > 0);
    }
}

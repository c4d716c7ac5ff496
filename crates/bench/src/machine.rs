//! What the numbers were measured on.

use serde::Serialize;
use std::fs;

/// The host.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    pub(crate) system: String,
    /// Over the last 1, 5 and 15 minutes before the benchmark.
    pub(crate) load: String,
}

impl Machine {
    /// This one, now. What cannot be read is empty.
    pub(crate) fn look() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg");
        let load: Vec<_> = load.split(' ').take(3).collect();
        let system = field(&read("/etc/os-release"), "PRETTY_NAME", '=');
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name", ':'),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: kib(&read("/proc/meminfo"), "MemTotal") >> 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: system.trim_matches('"').to_owned(),
            load: load.join(" "),
        }
    }
}

/// Memory that new processes can have, in MiB.
pub(crate) fn available_mib() -> u64 {
    kib(
        &fs::read_to_string("/proc/meminfo").unwrap_or_default(),
        "MemAvailable",
    ) >> 10
}

/// The first value of this name.
fn field(text: &str, name: &str, separator: char) -> String {
    let values = text.lines().filter_map(|line| line.split_once(separator));
    let mut values = values.filter(|(key, _)| key.trim() == name);
    values
        .next()
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default()
}

fn kib(text: &str, name: &str) -> u64 {
    let value = field(text, name, ':');
    value.trim_end_matches("kB").trim().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 85\nmodel name\t: A CPU: fast\nmodel name\t: other\n";
        assert_eq!(field(text, "model name", ':'), "A CPU: fast");
        assert_eq!(field(text, "cache", ':'), "");
        assert_eq!(
            kib("MemFree: 1 kB\nMemTotal:   2048 kB\n", "MemTotal"),
            2048
        );
    }

    #[test]
    fn this_machine_has_a_kernel() {
        let machine = Machine::look();
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && machine.memory_mib > 0);
        assert!(available_mib() > 0);
    }
}

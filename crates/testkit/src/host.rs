//! What tests must know of the host that they run on.

/// Memory that the host has left, in MiB.
pub fn available_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("it is there");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("the kernel says it") >> 10
}

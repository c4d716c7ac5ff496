//! Lets an idle guest sleep: without KVM every wake-up of its kernel costs the host about
//! a tenth of a millisecond, and fifty sandboxes do nothing most of the time.

use crate::log::log;

const SETTINGS: [(&str, &str); 2] = [
    // Else twice a second: is memory so fragmented that huge pages are to be made?
    ("/proc/sys/vm/compaction_proactiveness", "0"),
    // Else every second: counters of single CPUs into the common ones.
    ("/proc/sys/vm/stat_interval", "10"),
];

/// Turns off what wakes the kernel regularly. A guest that wakes up is still one.
pub(super) fn settle() {
    for (file, value) in SETTINGS {
        if let Err(error) = std::fs::write(file, value) {
            log!("cannot set {file}: {error}");
        }
    }
}

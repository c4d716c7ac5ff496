//! What a sandbox may use of its host, and what it costs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a sandbox may use of its host, beside its size. What is left out is not limited, or is what the snapshot's sandbox
/// had, or the daemon's default (`limits` in the configuration).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Percent of one CPU of the host: 5 to 800. 100 for each of its CPUs is no limit. A hard bound where the daemon has
    /// cgroups; a lower priority otherwise, which counts where others want the CPUs too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Processes and threads inside: 16 to 4194304.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// MiB that its disk may hold: 64 to 8192. Beyond it programs are told that the disk is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// MiB a second that are read from its disks and written to them: 1 to 100000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib_s: Option<u32>,
    /// Requests to its disks a second: 10 to 10000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_iops: Option<u32>,
    /// MiB a second of its network, each way: 1 to 100000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_mib_s: Option<u32>,
    /// Files that one process inside may have open: 32 to 1048576.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
}

impl Limits {
    /// Whether nothing is said.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What a sandbox costs its host now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Memory of its VMM and its shim that nobody shares with them; 0 where it does not run.
    pub memory_bytes: u64,
    /// CPU time of both since it came up, in ms.
    pub cpu_ms: u64,
    /// Bytes on the host's disk of what is its own alone. What its snapshots hold counts there.
    pub disk_bytes: u64,
    /// Bytes that it sent by its network since it came up.
    pub net_sent_bytes: u64,
    /// Bytes that it received.
    pub net_received_bytes: u64,
}

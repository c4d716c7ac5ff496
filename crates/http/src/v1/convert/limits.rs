//! Limits and costs of sandboxes.

use crate::error::ApiError;
use pando_api as api;
use pando_engine::request as engine;
use pando_types::SandboxLimits;

/// What a sandbox may use.
pub(super) fn limits(limits: &api::Limits) -> Result<SandboxLimits, ApiError> {
    let limits = SandboxLimits {
        cpu_percent: limits.cpu_percent,
        processes: limits.processes,
        disk_mib: limits.disk_mib,
        disk_mib_s: limits.disk_mib_s,
        disk_iops: limits.disk_iops,
        net_mib_s: limits.net_mib_s,
        open_files: limits.open_files,
    };
    limits.check().map_err(super::invalid)?;
    Ok(limits)
}

/// The same as the API says it.
pub(super) fn limits_of(limits: &SandboxLimits) -> api::Limits {
    api::Limits {
        cpu_percent: limits.cpu_percent,
        processes: limits.processes,
        disk_mib: limits.disk_mib,
        disk_mib_s: limits.disk_mib_s,
        disk_iops: limits.disk_iops,
        net_mib_s: limits.net_mib_s,
        open_files: limits.open_files,
    }
}

/// What a sandbox costs.
pub(super) fn usage(usage: engine::SandboxUsage) -> api::Usage {
    api::Usage {
        memory_bytes: usage.memory_bytes,
        cpu_ms: usage.cpu_ms,
        disk_bytes: usage.disk_bytes,
        net_sent_bytes: usage.net_sent_bytes,
        net_received_bytes: usage.net_received_bytes,
    }
}

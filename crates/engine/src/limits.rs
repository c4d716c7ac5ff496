//! A sandbox's limits, as the index keeps them and as its shim is told.

use crate::EngineError;
use crate::request::CreateSandbox;
use pando_shim::spec;
use pando_store::SandboxRow;
use pando_types::SandboxLimits;
use pando_wire::shim;

/// Refuses limits that cannot be had.
pub(crate) fn check_limits(request: &CreateSandbox) -> Result<(), EngineError> {
    let checked = request.limits.check();
    checked.map_err(|error| EngineError::Invalid(error.to_string()))
}

/// As a row keeps them: what a shim's spec has, which is never changed either.
pub(crate) fn limits_json(limits: &SandboxLimits) -> Result<String, EngineError> {
    let spec = spec::Limits {
        cpu_percent: limits.cpu_percent,
        processes: limits.processes,
        disk_mib: limits.disk_mib,
        disk_mib_s: limits.disk_mib_s,
        disk_iops: limits.disk_iops,
        net_mib_s: limits.net_mib_s,
        open_files: limits.open_files,
    };
    serde_json::to_string(&spec).map_err(|error| EngineError::internal(&error))
}

/// Reads what [`limits_json`] wrote.
pub(crate) fn limits_of(text: &str) -> Result<SandboxLimits, EngineError> {
    let malformed = |_| EngineError::Internal("the index holds malformed limits".to_owned());
    let spec: spec::Limits = serde_json::from_str(text).map_err(malformed)?;
    Ok(SandboxLimits {
        cpu_percent: spec.cpu_percent,
        processes: spec.processes,
        disk_mib: spec.disk_mib,
        disk_mib_s: spec.disk_mib_s,
        disk_iops: spec.disk_iops,
        net_mib_s: spec.net_mib_s,
        open_files: spec.open_files,
    })
}

/// What the shim of a new VM is told.
pub(crate) fn spec_of(row: &SandboxRow) -> Result<spec::Limits, EngineError> {
    let limits = limits_of(&row.limits)?;
    Ok(spec::Limits {
        // All of its CPUs is not less than all.
        cpu_percent: limits.cpu_limit_percent(row.cpus),
        processes: limits.processes,
        disk_mib: limits.disk_mib,
        disk_mib_s: limits.disk_mib_s,
        disk_iops: limits.disk_iops,
        net_mib_s: limits.net_mib_s,
        open_files: limits.open_files,
    })
}

/// What a slot is told that becomes this sandbox.
pub(crate) fn message_of(row: &SandboxRow) -> Result<shim::Limits, EngineError> {
    let spec = spec_of(row)?;
    Ok(shim::Limits {
        cpu_percent: spec.cpu_percent,
        processes: spec.processes,
        disk_mib: spec.disk_mib,
        disk_mib_s: spec.disk_mib_s,
        disk_iops: spec.disk_iops,
        net_mib_s: spec.net_mib_s,
        open_files: spec.open_files,
        ..shim::Limits::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_back_from_a_row_as_they_were() {
        for index in 0..SandboxLimits::FIELDS.len() {
            let field = &SandboxLimits::FIELDS[index];
            let mut limits = SandboxLimits::NONE;
            *(field.of)(&mut limits) = Some(*field.bounds.start());
            let text = limits_json(&limits).unwrap();
            assert!(text.contains(field.name), "{text}");
            assert_eq!(limits_of(&text).unwrap(), limits);
        }
        assert_eq!(limits_json(&SandboxLimits::NONE).unwrap(), "{}");
        assert_eq!(limits_of("{}").unwrap(), SandboxLimits::NONE);
        assert!(limits_of(r#"{"unknown":1}"#).is_err());
    }
}

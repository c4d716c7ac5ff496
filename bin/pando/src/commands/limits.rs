//! Limits: of sandboxes, of tenants, of the host; as they are configured and asked for.

use super::doctor::{Check, Outcome};
use crate::config::{Config, SettingKey};
use crate::exit::Failure;
use anyhow::Context as _;
use pando_client::api::Limits;
use pando_engine::{AdmissionConfig, TenantLimits};
use pando_types::SandboxLimits;

/// The least that an overcommit can be, in percent: below it not even half of the memory is
/// ever used.
const LEAST_OVERCOMMIT: u64 = 50;

/// The most: a hundred times the memory that there is.
const MOST_OVERCOMMIT: u64 = 10_000;

/// Reads `NAME=VALUE`.
///
/// # Errors
/// There is no such limit, or it cannot be had; the text says which there are.
fn read(into: &mut SandboxLimits, text: &str) -> Result<(), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("`{text}` is not NAME=VALUE"));
    };
    let fields = SandboxLimits::FIELDS;
    let Some(field) = fields.iter().find(|field| field.name == name.trim()) else {
        let names: Vec<_> = fields.iter().map(|field| field.name).collect();
        return Err(format!(
            "`{name}` is not a limit; there are {}",
            names.join(", ")
        ));
    };
    let number = value.trim().parse();
    let number = number.map_err(|_| format!("`{name}` is `{value}`: give a number"))?;
    *(field.of)(into) = Some(number);
    into.check().map_err(|error| error.to_string())
}

/// Reads one limit of the command line.
///
/// # Errors
/// See [`read`].
pub(crate) fn flag(text: &str) -> Result<SandboxLimits, String> {
    let mut limits = SandboxLimits::NONE;
    read(&mut limits, text)?;
    Ok(limits)
}

/// What the flags ask for; a later one goes before an earlier one of the same name.
pub(super) fn of_flags(flags: &[SandboxLimits]) -> Limits {
    let all = flags
        .iter()
        .fold(SandboxLimits::NONE, |all, limits| limits.or(&all));
    Limits {
        cpu_percent: all.cpu_percent,
        processes: all.processes,
        disk_mib: all.disk_mib,
        disk_mib_s: all.disk_mib_s,
        disk_iops: all.disk_iops,
        net_mib_s: all.net_mib_s,
        open_files: all.open_files,
    }
}

/// What sandboxes may use that do not say it.
///
/// # Errors
/// The setting is malformed.
pub(super) fn defaults(config: &Config) -> anyhow::Result<SandboxLimits> {
    let mut limits = SandboxLimits::NONE;
    let words = config.get(SettingKey::Limits).split(',').map(str::trim);
    for word in words.filter(|word| !word.is_empty()) {
        read(&mut limits, word).map_err(|error| Failure::usage(format!("`limits`: {error}")))?;
    }
    Ok(limits)
}

/// Who may start, and when.
///
/// # Errors
/// A setting is no number, or one that cannot be.
pub(super) fn admission(config: &Config) -> anyhow::Result<AdmissionConfig> {
    let number = |key, name| super::serve::number(config, key, name);
    let overcommit = number(SettingKey::MemoryOvercommit, "memory_overcommit")?;
    if let Some(percent) = overcommit
        && !(LEAST_OVERCOMMIT..=MOST_OVERCOMMIT).contains(&percent)
    {
        return Err(Failure::usage(format!(
            "`memory_overcommit` is {percent}: give {LEAST_OVERCOMMIT} to {MOST_OVERCOMMIT} (percent)"
        ))
        .into());
    }
    // None and 0 are the same: no limit.
    let most = |key, name| anyhow::Ok(number(key, name)?.filter(|most| *most > 0));
    Ok(AdmissionConfig {
        reserve_mib: number(SettingKey::MemoryReserveMib, "memory_reserve_mib")?
            .map(|mib| mib.min(u64::MAX >> 20)),
        overcommit_percent: overcommit
            .map(u32::try_from)
            .transpose()
            .context("`memory_overcommit`")?,
        tenant: TenantLimits {
            sandboxes: most(SettingKey::MaxSandboxes, "max_sandboxes")?,
            cpus: most(SettingKey::MaxCpus, "max_cpus")?,
            memory_mib: most(SettingKey::MaxMemoryMib, "max_memory_mib")?,
            snapshot_gib: most(SettingKey::MaxSnapshotGib, "max_snapshot_gib")?
                .map(|gib| gib.min(u64::MAX >> 30)),
        },
    })
}

/// What holds sandboxes to their limits on this host.
pub(super) fn check(config: &Config) -> Check {
    let name = "limits";
    match (defaults(config), admission(config)) {
        (Err(error), _) | (_, Err(error)) => Check::new(name, Outcome::Failed, error.to_string()),
        (Ok(defaults), Ok(_)) => Check::new(
            name,
            Outcome::Ok,
            format!(
                "disk size by rlimit and by the guest, disk rates by QEMU, network by the gateway, CPU share by \
                 priority, processes and open files by the guest; defaults: {}",
                match defaults.is_none() {
                    true => "none".to_owned(),
                    false => defaults.to_string(),
                }
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_or_refused_with_what_there_is() {
        assert_eq!(flag("disk_mib=1024").unwrap().disk_mib, Some(1024));
        assert_eq!(flag(" open_files = 64 ").unwrap().open_files, Some(64));
        for (text, said) in [
            ("disk_mib", "`disk_mib` is not NAME=VALUE"),
            ("disk_mib=", "`disk_mib` is ``: give a number"),
            ("disk_mib=-1", "`disk_mib` is `-1`: give a number"),
            ("disk_mib=1e3", "`disk_mib` is `1e3`: give a number"),
            (
                "disk_mib=99999999999",
                "`disk_mib` is `99999999999`: give a number",
            ),
            ("disk_mib=1", "`limits.disk_mib` is from 64 to 8192, not 1"),
            (
                "disk=1",
                "`disk` is not a limit; there are cpu_percent, processes, disk_mib, disk_mib_s, disk_iops, net_mib_s, open_files",
            ),
        ] {
            assert_eq!(flag(text).unwrap_err(), said);
        }
        let both = [flag("disk_mib=64").unwrap(), flag("disk_mib=128").unwrap()];
        assert_eq!(of_flags(&both).disk_mib, Some(128));
        assert!(of_flags(&[]).is_none());
    }
}

//! `pando doctor`: what Pando needs, checked; and where everything is.

use super::{block_on, client, load};
use crate::cli::{Doctor, Global};
use crate::config::{Config, SettingKey};
use crate::exit;
use crate::output;
use pando_client::ClientError;
use serde::Serialize;
use std::path::Path;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Ok,
    /// It works, less well.
    Warning,
    /// It will not work.
    Failed,
}

/// A check that was made.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    /// What was looked at.
    pub(super) name: &'static str,
    /// How it went.
    pub(super) outcome: Outcome,
    /// What was found.
    pub(super) found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Check {
    pub(super) fn new(name: &'static str, outcome: Outcome, found: impl Into<String>) -> Self {
        Self {
            name,
            outcome,
            found: found.into(),
            fix: None,
        }
    }

    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Checks, or prints paths.
pub(super) fn doctor(global: &Global, flags: &Doctor) -> anyhow::Result<u8> {
    let config = load(global)?;
    if flags.paths {
        return print_paths(&config, flags.json);
    }
    let mut checks = super::serve::host_checks(&config);
    checks.push(check_writable(
        "state directory",
        &config.path(SettingKey::StateDir),
    ));
    checks.push(check_writable(
        "cache directory",
        &config.path(SettingKey::CacheDir),
    ));
    let groups = std::fs::read_to_string(PING_GROUPS).unwrap_or_default();
    checks.push(check_pings(&groups));
    checks.push(super::limits::check(&config));
    checks.extend(check_daemon(&config));
    if flags.json {
        output::json(&checks)?;
    } else {
        checks.iter().for_each(print);
    }
    let failed = checks.iter().any(|check| check.outcome == Outcome::Failed);
    Ok(if failed { exit::FAILED } else { exit::DONE })
}

fn print(check: &Check) {
    let word = match check.outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Failed => "FAILED",
    };
    output::line(&format!("{word:<8} {}: {}", check.name, check.found));
    if let Some(fix) = &check.fix {
        output::line(&format!("         {fix}"));
    }
}

fn print_paths(config: &Config, json: bool) -> anyhow::Result<u8> {
    let paths = config.paths();
    if json {
        let map: std::collections::BTreeMap<_, _> = paths.into_iter().collect();
        output::json(&map)?;
    } else {
        paths
            .iter()
            .for_each(|(name, path)| output::line(&format!("{name:<11} {}", path.display())));
    }
    Ok(exit::DONE)
}

/// The groups that may open a socket for pings; `1 0` is nobody.
const PING_GROUPS: &str = "/proc/sys/net/ipv4/ping_group_range";

/// The highest group that a sandbox's process may have, whoever runs the daemon.
const HIGHEST_GROUP: u64 = 0x7fff_ffff;

/// Whether sandboxes can ping: their processes are nobody's in particular.
fn check_pings(groups: &str) -> Check {
    let range: Vec<u64> = groups
        .split_whitespace()
        .filter_map(|group| group.parse().ok())
        .collect();
    match range[..] {
        [0, last] if last >= HIGHEST_GROUP => {
            Check::new("pings", Outcome::Ok, "sandboxes can ping the world")
        }
        _ => Check::new(
            "pings",
            Outcome::Warning,
            "the host does not let programs ping: pings from sandboxes are refused, or from some of them",
        )
        .fix("`sysctl -w net.ipv4.ping_group_range=\"0 2147483647\"` lets them"),
    }
}

/// Whether a directory can be written to, or made.
fn check_writable(name: &'static str, directory: &Path) -> Check {
    let existing = directory
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    match rustix::fs::access(existing, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Check::new(name, Outcome::Ok, directory.display().to_string()),
        Err(error) => Check::new(
            name,
            Outcome::Failed,
            format!("cannot write to `{}`: {error}", existing.display()),
        )
        .fix("name another one by PANDO_STATE_DIR or PANDO_CACHE_DIR"),
    }
}

fn check_daemon(config: &Config) -> Vec<Check> {
    let status = client(config).and_then(|client| block_on(async { Ok(client.status().await?) }));
    match status {
        Ok(status) => vec![
            check_groups(config, status.pid),
            Check::new(
                "daemon",
                Outcome::Ok,
                format!("pando {} at {}", status.version, config.url()),
            ),
            check_version(&status.version),
        ],
        Err(error) => {
            let outcome = match error.downcast_ref::<ClientError>() {
                Some(ClientError::NotReachable { .. }) => Outcome::Warning,
                _ => Outcome::Failed,
            };
            let check = Check::new("daemon", outcome, error.to_string());
            vec![match exit::hint_of(&error) {
                Some(hint) => check.fix(hint),
                None => check,
            }]
        }
    }
}

/// Whether the daemon's sandboxes have control groups; only its own machine can tell.
fn check_groups(config: &Config, daemon: u32) -> Check {
    const NAME: &str = "cgroups";
    let is_local = super::stop::is_local(&config.url());
    match pando_sys::cgroup::of_daemon(daemon) {
        _ if !is_local => Check::new(NAME, Outcome::Ok, "the daemon is on another machine"),
        Ok(groups) => Check::new(
            NAME,
            Outcome::Ok,
            format!("sandboxes are limited in `{}`", groups.display()),
        ),
        Err(error) => Check::new(
            NAME,
            Outcome::Warning,
            format!("not delegated: {error}; what sandboxes use is limited by other means, less strictly"),
        )
        .fix("docs/install.md, \"Control groups\", says how they are had"),
    }
}

fn check_version(of_daemon: &str) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    if of_daemon == own {
        return Check::new("version", Outcome::Ok, own);
    }
    Check::new(
        "version",
        Outcome::Warning,
        format!("this program is {own}, the daemon {of_daemon}"),
    )
    .fix("`pando stop`, then `pando serve --detach` with this program; sandboxes run on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_need_every_group_that_a_sandbox_may_have() {
        assert_eq!(check_pings("0\t2147483647\n").outcome, Outcome::Ok);
        for groups in ["1\t0\n", "0\t100\n", "1000\t2147483647\n", ""] {
            assert_eq!(check_pings(groups).outcome, Outcome::Warning, "{groups:?}");
        }
    }
}

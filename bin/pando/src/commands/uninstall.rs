//! `pando uninstall`: removes what Pando put on this machine.

use super::{block_on, client, load, stop};
use crate::cli::{Global, Uninstall};
use crate::config::{Config, SettingKey};
use crate::exit::{self, Failure};
use crate::output;
use crate::terminal;
use anyhow::Context as _;
use pando_client::{Client, ClientError};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The package source that the set-up adds on Debian 12.
const BACKPORTS_FILE: &str = "/etc/apt/sources.list.d/pando-backports.sources";

/// What Pando puts into its state and cache directories: names, or how they begin.
/// Nothing else there is touched: the directory may have been somebody's before.
const OWN_ENTRIES: [&str; 9] = [
    "v1",
    "pando.db",
    "daemon.lock",
    "daemon.log",
    "admin.key",
    "arrakis.key",
    "base-v",
    "initrd-v",
    "accelerator",
];

/// Ends the daemon, removes its sandboxes and all files; asks first.
pub(super) fn uninstall(global: &Global, flags: &Uninstall) -> anyhow::Result<u8> {
    let config = load(global)?;
    let found: Vec<PathBuf> = candidates(&config)
        .into_iter()
        .filter(|path| path.symlink_metadata().is_ok())
        .collect();
    if found.is_empty() {
        output::note("there is nothing of Pando's on this machine");
        return Ok(exit::DONE);
    }
    output::note("this removes every sandbox, and:");
    found
        .iter()
        .for_each(|path| output::note(&format!("  {}", path.display())));
    if !flags.yes && !confirmed()? {
        output::note("nothing was removed");
        return Ok(exit::FAILED);
    }
    block_on(end(&config, &client(&config)?))?;
    for path in &found {
        remove(path).with_context(|| format!("cannot remove `{}`", path.display()))?;
    }
    for left in found.iter().filter(|path| path.exists()) {
        output::note(&format!(
            "left `{}`: it holds files that are not Pando's",
            left.display()
        ));
    }
    output::note("removed; the clone and the packages that were installed are left");
    Ok(exit::DONE)
}

fn candidates(config: &Config) -> Vec<PathBuf> {
    let mut paths = vec![
        config.path(SettingKey::StateDir),
        config.path(SettingKey::CacheDir),
        config.path(SettingKey::LogFile),
        config.path(SettingKey::ConfigFile),
    ];
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let places = [
        Some(PathBuf::from("/usr/local/bin")),
        home.map(|home| home.join(".local/bin")),
    ];
    let links = places
        .into_iter()
        .flatten()
        .map(|place| place.join("pando"));
    paths.extend(links.filter(|link| is_our_link(link)));
    paths.push(PathBuf::from(BACKPORTS_FILE));
    let inside_another = |path: &PathBuf| {
        paths
            .iter()
            .any(|other| other != path && path.starts_with(other))
    };
    paths
        .iter()
        .filter(|path| !inside_another(path))
        .cloned()
        .collect()
}

/// Whether it is the link that the set-up made: a symbolic link to a build.
fn is_our_link(link: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.ends_with("target/release/pando"))
}

fn confirmed() -> anyhow::Result<bool> {
    if !terminal::can_ask() {
        let failure = Failure::usage("there is no terminal to ask on");
        return Err(failure
            .hint("`pando uninstall --yes` does it without asking")
            .into());
    }
    output::note("Go on? [y/N]");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Without a daemon there is nobody to end sandboxes that still run.
fn refuse_if_sandboxes_are_left(config: &Config) -> anyhow::Result<()> {
    let sandboxes = config.path(SettingKey::StateDir).join("v1/sandboxes");
    let any = fs::read_dir(&sandboxes).is_ok_and(|mut entries| entries.next().is_some());
    if !any {
        return Ok(());
    }
    let failure = Failure::new(
        exit::FAILED,
        format!(
            "there are sandboxes in `{}` and no daemon to end them",
            sandboxes.display()
        ),
    );
    Err(failure
        .hint("`pando serve --detach` first, then `pando uninstall` again")
        .into())
}

/// Removes the sandboxes, whose processes outlive the daemon, then ends the daemon.
async fn end(config: &Config, client: &Client) -> anyhow::Result<()> {
    let sandboxes = match client.list().await {
        Err(ClientError::NotReachable { .. }) => return refuse_if_sandboxes_are_left(config),
        sandboxes => sandboxes?,
    };
    for sandbox in sandboxes {
        client.remove(&sandbox.id).await?;
    }
    // What clients of Arrakis made is another tenant's.
    if let Ok(key) = fs::read_to_string(config.arrakis_key_file()) {
        let others = Client::new(&config.url(), Some(key.trim()))?;
        for sandbox in others.list().await? {
            others.remove(&sandbox.id).await?;
        }
    }
    stop::end_daemon(client).await.map(drop)
}

/// Removes a file, or of a directory what is ours, and then the directory if that was all.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return fs::remove_file(path),
        // It was inside of what is gone already.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !OWN_ENTRIES.iter().any(|own| name.starts_with(own)) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_somebodys_before_keeps_his_files() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir_all(state.join("v1/sandboxes")).unwrap();
        for name in [
            "pando.db",
            "pando.db-wal",
            "admin.key",
            "arrakis.key",
            "daemon.log.old",
            "thesis.tex",
        ] {
            fs::write(state.join(name), name).unwrap();
        }
        remove(&state).unwrap();
        let left: Vec<_> = fs::read_dir(&state)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["thesis.tex"]);
        fs::remove_file(state.join("thesis.tex")).unwrap();
        remove(&state).unwrap();
        assert!(!state.exists());
        remove(&state).unwrap();
    }

    #[test]
    fn only_a_link_to_a_build_is_the_set_ups() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("pando");
        std::os::unix::fs::symlink("/clone/target/release/pando", &ours).unwrap();
        assert!(is_our_link(&ours));
        let packaged = dir.path().join("packaged");
        fs::write(&packaged, "").unwrap();
        assert!(!is_our_link(&packaged));
    }
}

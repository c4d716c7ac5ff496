//! `pando uninstall`: removes what Pando put on this machine.

use super::{block_on, client, load, stop};
use crate::cli::{Global, Uninstall};
use crate::config::{Config, Key};
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

/// Ends the daemon, removes its sandboxes and all files; asks first.
pub(super) fn uninstall(global: &Global, flags: &Uninstall) -> anyhow::Result<u8> {
    let config = load(global)?;
    let found: Vec<PathBuf> = candidates(&config).into_iter().filter(|path| path.symlink_metadata().is_ok()).collect();
    if found.is_empty() {
        output::note("there is nothing of Pando's on this machine");
        return Ok(exit::DONE);
    }
    output::note("this removes every sandbox, and:");
    found.iter().for_each(|path| output::note(&format!("  {}", path.display())));
    if !flags.yes && !confirmed()? {
        output::note("nothing was removed");
        return Ok(exit::FAILED);
    }
    block_on(end(&client(&config)?))?;
    for path in &found {
        remove(path).with_context(|| format!("cannot remove `{}`", path.display()))?;
    }
    output::note("removed; the clone and the packages that were installed are left");
    Ok(exit::DONE)
}

fn candidates(config: &Config) -> Vec<PathBuf> {
    let mut paths = vec![
        config.path(Key::StateDir),
        config.path(Key::CacheDir),
        config.path(Key::LogFile),
        config.path(Key::ConfigFile),
    ];
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let places = [Some(PathBuf::from("/usr/local/bin")), home.map(|home| home.join(".local/bin"))];
    let links = places.into_iter().flatten().map(|place| place.join("pando"));
    paths.extend(links.filter(|link| is_our_link(link)));
    paths.push(PathBuf::from(BACKPORTS_FILE));
    paths
}

/// Whether it is the link that the set-up made: a symbolic link to a build.
fn is_our_link(link: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.ends_with("target/release/pando"))
}

fn confirmed() -> anyhow::Result<bool> {
    if !terminal::can_ask() {
        let failure = Failure::usage("there is no terminal to ask on");
        return Err(failure.hint("`pando uninstall --yes` does it without asking").into());
    }
    output::note("Go on? [y/N]");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Removes the sandboxes, whose processes outlive the daemon, then ends the daemon.
async fn end(client: &Client) -> anyhow::Result<()> {
    let sandboxes = match client.list().await {
        Err(ClientError::NotReachable { .. }) => return Ok(()),
        sandboxes => sandboxes?,
    };
    for sandbox in sandboxes {
        client.remove(&sandbox.id).await?;
    }
    stop::end_daemon(client).await.map(drop)
}

fn remove(path: &Path) -> io::Result<()> {
    let result = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        // It was inside of what is gone already.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

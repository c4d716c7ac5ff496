//! `make uninstall`: undoes what quickstart did to the machine.

use crate::packages::{self, BACKPORTS_FILE, INSTALLED_FILE};
use crate::{artifacts, daemon, quickstart};
use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// Ends the daemon and its sandboxes, and removes state, cache, link and apt
/// source. Packages stay: something else may use them by now.
pub(crate) fn run(root: &Path, yes: bool) -> Result<()> {
    let question = "This ends all sandboxes and deletes them, snapshots and templates included.";
    if !(yes || packages::confirmed(question)?) {
        bail!("nothing was removed; run this command again with `--yes`");
    }
    if artifacts::pando_path(root).exists() {
        let status = daemon::pando(root, &["uninstall", "--yes"]).status()?;
        if !status.success() {
            bail!("`pando uninstall` failed ({status})");
        }
    }
    let link = quickstart::link_path()?;
    if std::fs::read_link(&link).is_ok_and(|target| target == artifacts::pando_path(root)) {
        remove(&link)?;
    }
    // Empty but for its lock, unless a build was killed: that is left to be looked at.
    let scratch = pando_image::scratch_folder();
    remove(&scratch.join("lock"))?;
    std::fs::remove_dir(&scratch).ok();
    if Path::new(BACKPORTS_FILE).exists() {
        if packages::is_root() {
            remove(Path::new(BACKPORTS_FILE))?;
        } else {
            eprintln!("an administrator can remove {BACKPORTS_FILE}");
        }
    }
    if let Ok(list) = std::fs::read_to_string(root.join(INSTALLED_FILE)) {
        let packages: Vec<&str> = list.split_whitespace().collect();
        eprintln!(
            "These packages stay; if nothing else uses them: apt-get remove {}",
            packages.join(" ")
        );
    }
    eprintln!(
        "Removed. What was built is in {}.",
        artifacts::target_dir(root).display()
    );
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove `{}`", path.display()))
        }
        _ => Ok(()),
    }
}

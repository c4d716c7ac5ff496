//! Driving the freshly built `pando` as a person would.

use crate::artifacts::pando_path;
use crate::steps::Steps;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The built program with its arguments.
pub(crate) fn pando(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(pando_path(root));
    command.args(arguments);
    command
}

/// The cache that `pando` will look for the base image in.
pub(crate) fn cache_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set("PANDO_CACHE_DIR") {
        return folder.into();
    }
    if crate::packages::is_root() {
        return "/var/cache/pando".into();
    }
    let user = set("XDG_CACHE_HOME").map(PathBuf::from);
    user.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))
        .unwrap_or_else(|| "/var/tmp".into())
        .join("pando")
}

/// Whether a daemon answers.
fn runs(root: &Path) -> bool {
    let mut status = pando(root, &["status"]);
    status
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    status.status().is_ok_and(|status| status.success())
}

/// Starts the daemon, or, where the program has `changed`, replaces the running
/// one: sandboxes live on meanwhile, and the new daemon adopts them.
pub(crate) fn start(steps: &Steps, root: &Path, changed: bool) -> Result<()> {
    let running = runs(root);
    if running && !changed {
        return Ok(());
    }
    if running {
        steps.run(&mut pando(root, &["stop"]))?;
    }
    steps.run_detaching(&mut pando(root, &["serve", "--detach"]))
}

/// Runs code in a sandbox and checks what it printed.
pub(crate) fn run_code(steps: &Steps, root: &Path) -> Result<()> {
    let arguments = ["run", "--", "python3", "-c", "print(6*7)"];
    let printed = steps.capture(&mut pando(root, &arguments))?;
    ensure!(
        printed == "42\n",
        "the sandbox printed `{}`, not 42",
        printed.trim_end()
    );
    Ok(())
}

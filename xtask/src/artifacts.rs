//! Building what is installed: the guest agent, then `pando` with the agent inside.

use crate::steps::Steps;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The guest: a static program for this, whatever libc the host has.
const AGENT_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds both in order; a repeated build takes a second.
pub(crate) fn build_all(steps: &Steps, root: &Path) -> Result<()> {
    steps.step("building the guest agent", || build_agent(steps, root))?;
    steps.step("building `pando`", || build_pando(steps, root))?;
    Ok(())
}

/// The command with which this very program was built.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // `cargo xtask` sets these for xtask alone.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    command
}

/// `cargo xtask codegen`, with the generators that are left out otherwise.
pub(crate) fn codegen_command(root: &Path, check: bool) -> Command {
    let mut command = cargo(root);
    command.args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "codegen",
    ]);
    command
        .args(["--", "codegen"])
        .args(check.then_some("--check"));
    command
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The program that a person installs.
pub(crate) fn pando_path(root: &Path) -> PathBuf {
    target_dir(root).join("release/pando")
}

/// The guest agent, where `bin/pando/build.rs` looks for it.
pub(crate) fn agent_path(root: &Path) -> PathBuf {
    target_dir(root)
        .join(AGENT_TARGET)
        .join("agent/pando-agent")
}

/// Builds the agent: static, so that it runs before there is a root.
pub(crate) fn build_agent(steps: &Steps, root: &Path) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("sandboxes run on x86-64 hosts only so far");
    }
    let mut build = cargo(root);
    build.args(["build", "--profile", "agent", "--package", "pando-agent"]);
    build.args(["--target", AGENT_TARGET]);
    build.env("RUSTFLAGS", "-C target-feature=+crt-static");
    steps.run(&mut build)
}

/// Builds `target/release/pando`, and says whether that changed it.
pub(crate) fn build_pando(steps: &Steps, root: &Path) -> Result<bool> {
    let before = modified(&pando_path(root));
    let mut build = cargo(root);
    build.args(["build", "--release", "--package", "pando"]);
    build.env("PANDO_AGENT", agent_path(root));
    steps.run(&mut build)?;
    let after = modified(&pando_path(root));
    after
        .context("cargo built no `pando`")
        .map(|after| Some(after) != before)
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path)
        .and_then(|found| found.modified())
        .ok()
}

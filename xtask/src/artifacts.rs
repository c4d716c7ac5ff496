//! Building what is installed: the guest agent and the library for QEMU, then `pando` with
//! both inside.

use crate::steps::Steps;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// What everything is built for. Named, so that build scripts and macros, which run here, are
/// not linked as the programs are.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds all in order; a repeated build takes a second.
pub(crate) fn build_all(steps: &Steps, root: &Path) -> Result<()> {
    steps.step("building the guest agent", || build_agent(steps, root))?;
    steps.step("building the library for QEMU", || {
        build_preload(steps, root)
    })?;
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
    target_dir(root).join(TARGET).join("agent/pando-agent")
}

/// The library for QEMU, where `bin/pando/build.rs` looks for it.
pub(crate) fn preload_path(root: &Path) -> PathBuf {
    target_dir(root)
        .join(TARGET)
        .join("agent/libpando_preload.so")
}

/// Builds the library: for the libc that QEMU uses, so not static, but as small as the agent.
pub(crate) fn build_preload(steps: &Steps, root: &Path) -> Result<()> {
    let mut build = cargo(root);
    build.args(["rustc", "--profile", "agent", "--package", "pando-preload"]);
    // Without the form for tests, which would keep all of the standard library in it.
    build.args(["--lib", "--crate-type", "cdylib", "--target", TARGET]);
    steps.run(&mut build)
}

/// Links a program so that it needs no library of the machine that it runs on. The crate
/// `getrandom` finds the system call by the dynamic linker unless it is told that it is there,
/// and opens `/dev/urandom` where that is missing, which a jail forbids.
const STATIC: &str = r#"-C target-feature=+crt-static --cfg getrandom_backend="linux_getrandom""#;

/// Builds the agent: static, so that it runs before there is a root.
pub(crate) fn build_agent(steps: &Steps, root: &Path) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("sandboxes run on x86-64 hosts only so far");
    }
    let mut build = cargo(root);
    build.args(["build", "--profile", "agent", "--package", "pando-agent"]);
    build.args(["--target", TARGET]);
    build.env("RUSTFLAGS", STATIC);
    steps.run(&mut build)
}

/// Builds `target/release/pando`, and says whether that changed it. It is static, so that what
/// is tested is what `cargo xtask dist` hands out.
pub(crate) fn build_pando(steps: &Steps, root: &Path) -> Result<bool> {
    let before = modified(&pando_path(root));
    let mut build = cargo(root);
    build.args(["build", "--release", "--package", "pando"]);
    build.args(["--target", TARGET]);
    build.env("RUSTFLAGS", STATIC);
    build.env("PANDO_AGENT", agent_path(root));
    build.env("PANDO_PRELOAD", preload_path(root));
    steps.run(&mut build)?;
    let built = target_dir(root).join(TARGET).join("release/pando");
    let after = modified(&built).context("cargo built no `pando`")?;
    let changed = before.is_none_or(|before| before < after);
    if changed {
        place(&built, &pando_path(root)).context("cannot put `pando` into its place")?;
    }
    Ok(changed)
}

/// Gives a program its usual path too; one that runs from there is left what it is.
fn place(built: &Path, path: &Path) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::copy(built, &fresh)?;
    std::fs::rename(fresh, path)
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path)
        .and_then(|found| found.modified())
        .ok()
}

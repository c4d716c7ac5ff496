//! `cargo xtask dist`: what is handed out, in `target/dist`.
//!
//! ```text
//!   pando_VERSION_amd64.deb             Debian 12 and newer, Ubuntu 24.04 and newer
//!   pando-VERSION-x86_64-linux.tar.gz   any Linux: the program, the unit, the docs
//!   pando-VERSION.cdx.json              every crate that is in the program (CycloneDX)
//!   SHA256SUMS
//! ```
//!
//! Both hold the same static program. It is linked with glibc: names are looked up by
//! glibc's own `files` and `dns`; what else `nsswitch.conf` names is used only where
//! the host's glibc is the one it was built with, and left out elsewhere.

pub(crate) mod deb;
mod sbom;
mod stage;

use crate::artifacts::{self, target_dir};
use crate::steps::Steps;
use anyhow::{Context as _, Result, ensure};
use stage::{File, Source};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that everything in the workspace has.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Pack this program instead of building one
    #[arg(long, value_name = "FILE")]
    pando: Option<PathBuf>,
    /// Where to put it all
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Builds and packs.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let steps = Steps::start(root, "dist.log")?;
    let program = match &options.pando {
        Some(path) => path.clone(),
        None => {
            artifacts::build_all(&steps, root)?;
            artifacts::pando_path(root)
        }
    };
    let out = match &options.out {
        Some(path) => path.clone(),
        None => target_dir(root).join("dist"),
    };
    let packed = steps.step("packing", || pack(&steps, root, &program, &out))?;
    for path in packed {
        println!("{}", path.display());
    }
    Ok(())
}

/// Packs a program, and returns what there is then. What was there before is removed.
fn pack(steps: &Steps, root: &Path, program: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    std::fs::remove_dir_all(out).ok();
    std::fs::create_dir_all(out)?;
    let sbom = out.join(format!("pando-{VERSION}.cdx.json"));
    std::fs::write(&sbom, sbom::make(root, VERSION)?)?;
    let deb = out.join(format!("pando_{VERSION}_amd64.deb"));
    let package = deb::Package {
        program,
        version: VERSION,
        sbom: Some(&sbom),
    };
    deb::build(steps, root, &package, &deb)?;
    let tar = tar(steps, root, program, &sbom, out)?;
    let mut packed = vec![deb, tar, sbom];
    packed.push(checksums(&packed, out)?);
    Ok(packed)
}

fn tar(steps: &Steps, root: &Path, program: &Path, sbom: &Path, out: &Path) -> Result<PathBuf> {
    let name = format!("pando-{VERSION}-x86_64-linux");
    let folder = out.join(&name);
    let tree = |path: &'static str, from: &'static str| File {
        path,
        mode: 0o644,
        source: Source::Tree(from),
    };
    let files = [
        File {
            path: "pando",
            mode: 0o755,
            source: Source::Built(program),
        },
        tree("pando.service", "packaging/systemd/pando.service"),
        tree("pando.rules.yml", "packaging/prometheus/pando.rules.yml"),
        tree("grafana.json", "packaging/grafana/pando.json"),
        tree("install.md", "docs/install.md"),
        tree("LICENSE", "LICENSE"),
        File {
            path: "pando.cdx.json",
            mode: 0o644,
            source: Source::Built(sbom),
        },
    ];
    stage::lay_out(root, &folder, &files)?;
    let path = out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", stage::epoch(root)?));
    // Without gzip's own note of name and time.
    tar.args(["--use-compress-program", "gzip -9 --no-name", "--create"]);
    tar.arg("--file").arg(&path).arg("--directory").arg(out);
    steps.run(tar.arg(&name))?;
    std::fs::remove_dir_all(&folder)?;
    Ok(path)
}

/// Writes SHA256SUMS, as `sha256sum --check` reads it.
fn checksums(files: &[PathBuf], out: &Path) -> Result<PathBuf> {
    let mut sums = Command::new("sha256sum");
    sums.current_dir(out);
    sums.args(files.iter().filter_map(|path| path.file_name()));
    let output = sums.output().context("cannot run `sha256sum`")?;
    ensure!(output.status.success(), "`sha256sum` failed");
    let path = out.join("SHA256SUMS");
    std::fs::write(&path, output.stdout)?;
    Ok(path)
}

#[cfg(test)]
mod tests;

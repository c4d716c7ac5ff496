//! The Debian package: what is where in it, and its scripts from `packaging/debian`.
//!
//! Made by `dpkg-deb` from a folder, which every Debian has: the package is one
//! program and a few files, and debhelper would have to be told as much about them.

use super::stage::{self, File, Source};
use crate::steps::Steps;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

/// What a package is made of.
pub(crate) struct Package<'a> {
    /// The program.
    pub(crate) program: &'a Path,
    /// The package's version.
    pub(crate) version: &'a str,
    /// The list of third-party code, where there is one.
    pub(crate) sbom: Option<&'a Path>,
}

/// The maintainer scripts.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package at `to`. The same inputs give the same bytes, with the time of
/// the last commit, or of SOURCE_DATE_EPOCH, in it.
pub(crate) fn build(steps: &Steps, root: &Path, package: &Package<'_>, to: &Path) -> Result<()> {
    let folder = to.with_extension("staging");
    std::fs::remove_dir_all(&folder).ok();
    stage::lay_out(root, &folder, &files(package))?;
    let control = std::fs::read_to_string(root.join("packaging/debian/control"))?;
    let kib = stage::kib(&folder)?;
    let debian = folder.join("DEBIAN");
    stage::write(
        &debian.join("control"),
        0o644,
        control
            .replace("@VERSION@", package.version)
            .replace("@INSTALLED_KIB@", &kib.to_string())
            .as_bytes(),
    )?;
    for name in SCRIPTS {
        let text = std::fs::read(root.join("packaging/debian").join(name))?;
        stage::write(&debian.join(name), 0o755, &text)?;
    }
    let mut dpkg_deb = Command::new("dpkg-deb");
    dpkg_deb.env("SOURCE_DATE_EPOCH", stage::epoch(root)?.to_string());
    dpkg_deb.args(["--root-owner-group", "-Zzstd", "-z9", "--build"]);
    steps.run(dpkg_deb.arg(&folder).arg(to))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("{}", folder.display()))
}

fn files<'a>(package: &Package<'a>) -> Vec<File<'a>> {
    let at = |path: &'static str, from: &'static str| File {
        path,
        mode: 0o644,
        source: Source::Tree(from),
    };
    let mut files = vec![
        File {
            path: "usr/bin/pando",
            mode: 0o755,
            source: Source::Built(package.program),
        },
        at(
            "usr/lib/systemd/system/pando.service",
            "packaging/systemd/pando.service",
        ),
        at(
            "usr/share/doc/pando/copyright",
            "packaging/debian/copyright",
        ),
        at("usr/share/doc/pando/install.md", "docs/install.md"),
        at("usr/share/doc/pando/SECURITY.md", "SECURITY.md"),
        at(
            "usr/share/pando/prometheus/pando.rules.yml",
            "packaging/prometheus/pando.rules.yml",
        ),
        at(
            "usr/share/pando/grafana/pando.json",
            "packaging/grafana/pando.json",
        ),
    ];
    files.extend(package.sbom.map(|path| File {
        path: "usr/share/doc/pando/pando.cdx.json",
        mode: 0o644,
        source: Source::Built(path),
    }));
    files
}

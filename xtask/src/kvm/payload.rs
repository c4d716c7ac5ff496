//! What the machine is given: a second disk with the packages, the base image and the script.

use crate::daemon;
use crate::dist::deb::{self, Package};
use crate::steps::Steps;
use anyhow::{Context as _, Result};
use pando_image::{BaseOptions, KvmHost, Progress};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs in the machine.
pub(super) const SCRIPT: &str = "tests/kvm/run";

/// The version that the package is upgraded to.
const NEXT_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+next");

/// What is on the disk beside the files, in MiB: its file system's own tables.
const TABLES_MIB: u64 = 32;

/// The machine, from the cache or made now.
pub(super) fn machine(steps: &Steps) -> Result<KvmHost> {
    let mirror = std::env::var("PANDO_DEBIAN_MIRROR")
        .ok()
        .filter(|mirror| !mirror.is_empty());
    let progress = |progress: Progress<'_>| match progress {
        Progress::Step(step) => steps.note(&format!("[machine] --- {step}")),
        Progress::Line(line) => steps.note(&format!("[machine] {line}")),
    };
    let host = pando_image::kvm_host::build(&daemon::cache_dir(), mirror.as_deref(), &progress);
    Ok(host?)
}

/// Makes the disk in `work`, which is emptied.
pub(super) fn build(steps: &Steps, root: &Path, pando: &Path, work: &Path) -> Result<PathBuf> {
    std::fs::remove_dir_all(work).ok();
    let files = work.join("payload");
    std::fs::create_dir_all(&files)?;
    for (version, name) in [
        (env!("CARGO_PKG_VERSION"), "pando_1.deb"),
        (NEXT_VERSION, "pando_2.deb"),
    ] {
        let package = Package {
            program: pando,
            version,
            sbom: None,
        };
        deb::build(steps, root, &package, &files.join(name))?;
    }
    std::fs::write(files.join("version_2"), NEXT_VERSION)?;
    std::fs::copy(root.join(SCRIPT), files.join("run"))?;
    copy_base_image(steps, &files.join("base-v1"))?;
    let disk = work.join("payload.ext4");
    let bytes = folder_bytes(&files)? + (TABLES_MIB << 20);
    std::fs::File::create(&disk)?.set_len(bytes + bytes / 16)?;
    // Not everybody has that folder in PATH.
    let program = ["/usr/sbin/mke2fs", "/sbin/mke2fs"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or("mke2fs");
    let mut mke2fs = Command::new(program);
    mke2fs.args(["-q", "-F", "-t", "ext4", "-m", "0", "-d"]);
    steps.run(mke2fs.arg(&files).arg(&disk))?;
    std::fs::remove_dir_all(&files)?;
    Ok(disk)
}

/// The image that `base` is baked from, so that the machine needs no network.
fn copy_base_image(steps: &Steps, to: &Path) -> Result<()> {
    let options = BaseOptions {
        cache_dir: daemon::cache_dir(),
        mirror: None,
        host_ca: false,
    };
    let image = pando_image::base::cached(&options)?.context("the base image is not made yet")?;
    let folder = image.root.parent().context("an image lies in a folder")?;
    std::fs::create_dir_all(to)?;
    let mut copy = Command::new("cp");
    steps.run(
        copy.args(["--recursive", "--reflink=auto"])
            .arg(folder)
            .arg(to),
    )
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.metadata()? {
            found if found.is_dir() => folder_bytes(&entry.path())?,
            found => found.len(),
        };
    }
    Ok(bytes)
}

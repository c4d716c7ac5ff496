//! A folder as it is to be installed or packed.

use anyhow::{Context as _, Result, ensure};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// A file of a package.
pub(super) struct File<'a> {
    /// Where it goes, without the leading `/`.
    pub(super) path: &'static str,
    /// Permission bits; the owner is root.
    pub(super) mode: u32,
    /// Where it is from.
    pub(super) source: Source<'a>,
}

/// Where a file is from.
pub(super) enum Source<'a> {
    /// The source tree, as a path in it.
    Tree(&'static str),
    /// Something that was built.
    Built(&'a Path),
}

/// Puts the files into a new folder.
pub(super) fn lay_out(root: &Path, folder: &Path, files: &[File<'_>]) -> Result<()> {
    for file in files {
        let from = match file.source {
            Source::Tree(path) => root.join(path),
            Source::Built(path) => path.to_owned(),
        };
        let to = folder.join(file.path);
        make_folder(&to)?;
        std::fs::copy(&from, &to).with_context(|| format!("cannot copy `{}`", from.display()))?;
        set_mode(&to, file.mode)?;
    }
    Ok(())
}

/// Writes a file, making the folders it is in.
pub(super) fn write(path: &Path, mode: u32, content: &[u8]) -> Result<()> {
    make_folder(path)?;
    std::fs::write(path, content).with_context(|| format!("cannot write `{}`", path.display()))?;
    set_mode(path, mode)
}

/// Whatever the umask is: folders of a package are everybody's to look into.
fn make_folder(file: &Path) -> Result<()> {
    let mut new: Vec<&Path> = file
        .ancestors()
        .skip(1)
        .take_while(|folder| !folder.exists())
        .collect();
    new.reverse();
    for folder in new {
        std::fs::create_dir(folder)?;
        set_mode(folder, 0o755)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions)
        .with_context(|| format!("cannot set the mode of `{}`", path.display()))
}

/// The size of what is in a folder, in KiB, rounded up for each file.
pub(super) fn kib(folder: &Path) -> Result<u64> {
    let mut kib = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        kib += match entry.metadata()? {
            found if found.is_dir() => self::kib(&entry.path())? + 1,
            found => found.len().div_ceil(1024),
        };
    }
    Ok(kib)
}

/// The time that goes into packages, in seconds since 1970: SOURCE_DATE_EPOCH, or that of
/// the last commit.
pub(super) fn epoch(root: &Path) -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().context("SOURCE_DATE_EPOCH is no number");
    }
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(root)
        .output()
        .context("cannot run `git`")?;
    ensure!(
        output.status.success(),
        "this is no clone: set SOURCE_DATE_EPOCH to the time of its sources"
    );
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .context("`git log` told no time")
}

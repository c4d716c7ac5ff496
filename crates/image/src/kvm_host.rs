//! The machine that `make test-kvm` runs: a Debian server with systemd, a kernel with
//! KVM, and QEMU. No sandbox is made of it; it stands for the host of a user.
//!
//! ```text
//!   CACHE_DIR/kvm-host-v1/
//!     lock              one build at a time
//!     HASH/             root.qcow2 vmlinuz initrd
//!     building/         a build that runs, or the rest of one that was interrupted
//! ```
//!
//! The folder gets its name when it is whole. Those of older sources are removed then:
//! nothing but the tests of this source uses them.

use crate::base::{remove, sync};
use crate::error::BuildError;
use crate::progress::{Progress, ProgressFn};
use crate::root::{self, Recipe};
use crate::source::SUITE;
use crate::{scratch, tools};
use std::path::{Path, PathBuf};

/// What the machine boots from. No file ever changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvmHost {
    /// Its disk: ext4 in qcow2, `/dev/vda`.
    pub root: PathBuf,
    /// The kernel.
    pub kernel: PathBuf,
    /// What mounts the disk and starts systemd.
    pub initrd: PathBuf,
}

/// The name that changes whenever this code makes something else of the same sources.
const FORMAT: &str = "kvm-host-v1";

const SETUP: &str = include_str!("../../../images/kvm-host/setup.sh");
const PACKAGES: &str = include_str!("../../../images/kvm-host/packages");
const INITRD_INIT: &str = include_str!("../../../images/kvm-host/initrd-init");
const UNIT: &str =
    include_str!("../../../images/kvm-host/files/etc/systemd/system/pando-test.service");

/// What nobody reads there.
const LEFT_OUT: [&str; 3] = [
    "/usr/share/man/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
];

/// The machine's files: from the cache if they are there; else built, in about a
/// minute and a half with the network. Blocks, also while another process builds.
///
/// # Errors
///
/// A missing program or right, no working mirror, or a failed file operation.
pub fn build(
    cache_dir: &Path,
    mirror: Option<&str>,
    progress: ProgressFn<'_>,
) -> Result<KvmHost, BuildError> {
    let folder = std::path::absolute(cache_dir)
        .map_err(BuildError::file("find", cache_dir))?
        .join(FORMAT);
    let finished = folder.join(content_hash());
    if let Some(host) = load(&finished) {
        return Ok(host);
    }
    tools::require_all()?;
    std::fs::create_dir_all(&folder).map_err(BuildError::file("create", &folder))?;
    let _lock = scratch::lock(&folder.join("lock"), progress)?;
    if let Some(host) = load(&finished) {
        return Ok(host);
    }
    let work = folder.join("building");
    remove(&work)?;
    std::fs::create_dir(&work).map_err(BuildError::file("create", &work))?;
    progress(Progress::Step("making the machine for KVM's tests"));
    if let Err(error) = root::make(&work, mirror, &recipe(), progress) {
        remove(&work)?;
        return Err(error);
    }
    remove_others(&folder)?;
    std::fs::rename(&work, &finished).map_err(BuildError::file("rename", &work))?;
    sync(&folder)?;
    load(&finished).ok_or(BuildError::Incomplete("root.qcow2"))
}

fn recipe() -> Recipe {
    let exclude = |pattern: &&str| format!("--dpkgopt=path-exclude={pattern}");
    Recipe {
        packages: packages(),
        files: vec![
            (".pando/setup.sh".into(), 0o644, SETUP.into()),
            (".pando/initrd-init".into(), 0o755, INITRD_INIT.into()),
            (
                "etc/systemd/system/pando-test.service".into(),
                0o644,
                UNIT.into(),
            ),
        ],
        dpkg_options: LEFT_OUT.iter().map(exclude).collect(),
        outputs: &["root.qcow2", "boot.tar"],
    }
}

fn packages() -> Vec<&'static str> {
    PACKAGES
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .collect()
}

/// Over all that goes in, but not the mirror.
fn content_hash() -> String {
    let mut hasher = blake3::Hasher::new();
    let recipe = recipe();
    let files = recipe.files.iter().map(|(_, _, content)| content.as_str());
    for text in [FORMAT, SUITE, PACKAGES].into_iter().chain(files) {
        // With its length, so that no two sets of inputs run together.
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

fn load(folder: &Path) -> Option<KvmHost> {
    let host = KvmHost {
        root: folder.join("root.qcow2"),
        kernel: folder.join("vmlinuz"),
        initrd: folder.join("initrd"),
    };
    let whole = [&host.root, &host.kernel, &host.initrd]
        .into_iter()
        .all(|path| path.is_file());
    whole.then_some(host)
}

/// Removes all but the lock and the build that has just ended.
fn remove_others(folder: &Path) -> Result<(), BuildError> {
    let entries = std::fs::read_dir(folder).map_err(BuildError::file("list", folder))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() && !path.ends_with("building") {
            remove(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_machine_is_taken_from_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FORMAT).join(content_hash());
        std::fs::create_dir_all(&path).unwrap();
        for name in ["vmlinuz", "initrd"] {
            std::fs::write(path.join(name), name).unwrap();
        }
        assert_eq!(load(&path), None, "it has no disk");
        std::fs::write(path.join("root.qcow2"), "disk").unwrap();
        let host = build(folder.path(), None, &|step| panic!("{step:?}")).unwrap();
        assert_eq!(host.root, path.join("root.qcow2"));
    }

    #[test]
    fn machines_of_older_sources_go_and_the_new_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["0123", "building"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("lock"), "").unwrap();
        remove_others(folder.path()).unwrap();
        assert!(!folder.path().join("0123").exists());
        assert!(folder.path().join("building").exists());
        assert!(folder.path().join("lock").exists());
    }

    #[test]
    fn the_packages_are_those_that_pandos_own_package_wants() {
        let control = include_str!("../../../packaging/debian/control");
        let wanted = control
            .lines()
            .find_map(|line| line.strip_prefix("Depends: "));
        for one in wanted.unwrap().split(", ") {
            let name = one.split(' ').next().unwrap();
            assert!(
                packages().contains(&name),
                "{name}: add it to images/kvm-host/packages"
            );
        }
    }
}

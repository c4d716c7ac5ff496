//! The initrd: the agent and the modules it needs to reach its root.
//!
//! Not compressed: a zstd one failed to unpack under TCG with two CPUs, and
//! unpacking costs emulated instructions at each bake.

use crate::base::{BaseImage, write_whole};
use crate::cpio::Archive;
use crate::error::BuildError;
use std::path::{Path, PathBuf};

/// A built initrd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initrd {
    /// The cpio archive.
    pub path: PathBuf,
    /// BLAKE3 of the archive, in hex.
    pub content_hash: String,
}

/// Puts `agent` (a static program, process 1) and the base image's modules into
/// `CACHE_DIR/initrd-v1/HASH.cpio`, which takes milliseconds.
///
/// # Errors
///
/// Where a module cannot be read or the archive not written.
pub fn build(base: &BaseImage, agent: &[u8], cache_dir: &Path) -> Result<Initrd, BuildError> {
    let bytes = archive(&base.modules, agent)?;
    let content_hash = blake3::hash(&bytes).to_hex().to_string();
    let path = cache_dir
        .join("initrd-v1")
        .join(format!("{content_hash}.cpio"));
    if !path.exists() {
        write_whole(&path, &bytes)?;
    }
    Ok(Initrd { path, content_hash })
}

/// The layout that the agent expects: `/init`, and `/modules/order` with the
/// names of the modules beside it, one a line, in the order to load them.
fn archive(modules: &Path, agent: &[u8]) -> Result<Vec<u8>, BuildError> {
    let read = |name: &str| {
        let path = modules.join(name);
        std::fs::read(&path).map_err(BuildError::file("read", path))
    };
    let order = read("order")?;
    let mut archive = Archive::default();
    archive.directory("dev", 0o755);
    // The kernel opens it for process 1 before anything is mounted.
    archive.device("dev/console", 0o600, 5, 1);
    archive.directory("modules", 0o755);
    archive.file("modules/order", 0o644, &order);
    for name in String::from_utf8_lossy(&order).lines() {
        archive.file(&format!("modules/{name}"), 0o644, &read(name)?);
    }
    archive.file("init", 0o755, agent);
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_the_agent_and_a_second_build_finds_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("modules");
        std::fs::create_dir(&modules).unwrap();
        std::fs::write(modules.join("order"), "a.ko\n").unwrap();
        std::fs::write(modules.join("a.ko"), "module").unwrap();
        let base = BaseImage {
            content_hash: "h".into(),
            root: "root".into(),
            disk: "disk".into(),
            kernel: "kernel".into(),
            kernel_release: "6".into(),
            modules,
        };
        let first = build(&base, b"agent", folder.path()).unwrap();
        assert_eq!(build(&base, b"agent", folder.path()).unwrap(), first);
        assert_ne!(build(&base, b"other", folder.path()).unwrap(), first);
        let bytes = std::fs::read(&first.path).unwrap();
        assert_eq!(
            blake3::hash(&bytes).to_hex().to_string(),
            first.content_hash
        );
    }
}

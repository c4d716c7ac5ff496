//! The base image: built once for each content hash, then taken from the cache.
//!
//! ```text
//!   CACHE_DIR/base-v1/
//!     lock              one build at a time; others wait, then find its result
//!     HASH/             root.erofs disk.qcow2 vmlinuz kernel-release modules/ manifest.json
//!     building/         a build that runs, or the rest of one that was interrupted
//! ```
//!
//! The manifest is written last inside `building`, then the folder is renamed:
//! a folder with a hash for its name is whole.

use crate::error::BuildError;
use crate::progress::{Progress, ProgressFn};
use crate::source::{self, FILES, INITRD_MODULES, KERNEL_MODULES, SETUP, SUITE, VARIANT};
use crate::{disk, host_ca, root, scratch, tools};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// What to build and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseOptions {
    /// The cache; made if missing. Images of this user's other clones are found there too.
    pub cache_dir: PathBuf,
    /// The archive to take packages from, and no other (`PANDO_DEBIAN_MIRROR`);
    /// without it the host's own.
    pub mirror: Option<String>,
    /// Whether the image trusts the certificates that the host trusts beyond Debian's.
    pub host_ca: bool,
}

/// What a sandbox of the `base` template boots from. No file ever changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseImage {
    /// BLAKE3, in hex, over all that went in: not over the mirror, nor the agent.
    pub content_hash: String,
    /// The root file system: erofs, raw, read-only, `/dev/vda`.
    pub root: PathBuf,
    /// The empty writable disk: ext4 in qcow2, the bottom layer of `/dev/vdb`.
    pub disk: PathBuf,
    /// The kernel (`vmlinuz`).
    pub kernel: PathBuf,
    /// The initrd's modules and the file `order`.
    pub modules: PathBuf,
    /// The kernel's release, as `uname -r` prints it in the guest.
    pub kernel_release: String,
}

const ROOT: &str = "root.erofs";
const DISK: &str = "disk.qcow2";
const KERNEL: &str = "vmlinuz";
const KERNEL_RELEASE: &str = "kernel-release";
const ORDER: &str = "modules/order";
const MANIFEST: &str = "manifest.json";

/// The name that changes whenever this code makes something else of the same
/// sources, so that no older result is taken for it.
const FORMAT: &str = "base-v1";

/// Every file of a build with its size, by its path in the folder.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    suite: String,
    kernel_release: String,
    files: BTreeMap<String, ManifestFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ManifestFile {
    bytes: u64,
    blake3: String,
}

/// The base image: from the cache if it is there, in milliseconds; else built,
/// in about half a minute with the network. Blocks, also while another process
/// builds. A build that is interrupted leaves nothing that a later one takes.
///
/// # Errors
///
/// A missing program or right, no working mirror, or a failed file operation.
pub fn build(options: &BaseOptions, progress: ProgressFn<'_>) -> Result<BaseImage, BuildError> {
    let certificates = certificates(options)?;
    let hash = hash(&certificates);
    let folder = std::path::absolute(&options.cache_dir)
        .map_err(BuildError::file("find", &options.cache_dir))?
        .join(FORMAT);
    if let Some(image) = load(&folder.join(&hash), &hash) {
        return Ok(image);
    }
    tools::require_all()?;
    std::fs::create_dir_all(&folder).map_err(BuildError::file("create", &folder))?;
    let _lock = scratch::lock(&folder.join("lock"), progress)?;
    if let Some(image) = load(&folder.join(&hash), &hash) {
        return Ok(image);
    }

    let work = folder.join("building");
    remove(&work)?;
    std::fs::create_dir(&work).map_err(BuildError::file("create", &work))?;
    let built = build_in(&work, options.mirror.as_deref(), &certificates, progress);
    if built.is_err() {
        remove(&work)?;
    }
    built?;
    let finished = folder.join(&hash);
    // A folder without a sound manifest may stand there; nothing whole does.
    remove(&finished)?;
    std::fs::rename(&work, &finished).map_err(BuildError::file("rename", &work))?;
    sync(&folder)?;
    load(&finished, &hash).ok_or(BuildError::Incomplete(MANIFEST))
}

/// The base image if it is in the cache.
///
/// # Errors
///
/// Where the host's certificates are asked for and cannot be read.
pub fn cached(options: &BaseOptions) -> Result<Option<BaseImage>, BuildError> {
    let hash = content_hash(options)?;
    Ok(load(&options.cache_dir.join(FORMAT).join(&hash), &hash))
}

/// The image with this content hash, if it is in the cache, whatever it was made of.
pub fn find(cache_dir: &Path, content_hash: &str) -> Option<BaseImage> {
    let plain = content_hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let folder = cache_dir.join(FORMAT).join(content_hash);
    if plain {
        load(&folder, content_hash)
    } else {
        None
    }
}

/// The hash that the image has, or would have, in hex.
///
/// # Errors
///
/// Where the host's certificates are asked for and cannot be read.
pub fn content_hash(options: &BaseOptions) -> Result<String, BuildError> {
    Ok(hash(&certificates(options)?))
}

fn certificates(options: &BaseOptions) -> Result<Vec<String>, BuildError> {
    if options.host_ca {
        host_ca::additional_certificates()
    } else {
        Ok(Vec::new())
    }
}

/// Covers each input with its length, so that no two sets of inputs run together.
fn hash(certificates: &[String]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for text in [
        FORMAT,
        SUITE,
        VARIANT,
        SETUP,
        KERNEL_MODULES,
        &disk::recipe(),
    ] {
        add(text);
    }
    add(&source::packages().join(" "));
    add(&INITRD_MODULES.join(" "));
    for file in FILES {
        add(file.path);
        add(&format!("{:o}", file.mode));
        add(file.content);
    }
    for certificate in certificates {
        add(certificate);
    }
    hasher.finalize().to_hex().to_string()
}

fn build_in(
    work: &Path,
    mirror: Option<&str>,
    certificates: &[String],
    progress: ProgressFn<'_>,
) -> Result<(), BuildError> {
    progress(Progress::Step("making an empty disk"));
    disk::create(&work.join(DISK), work, progress)?;
    root::create(work, mirror, certificates, progress)?;
    progress(Progress::Step("checking what was built"));
    let manifest = manifest(work)?;
    let text = serde_json::to_vec_pretty(&manifest).map_err(|source| BuildError::File {
        action: "describe",
        path: work.into(),
        source: source.into(),
    })?;
    write_whole(&work.join(MANIFEST), &text)
}

/// Takes stock of a finished build: every file that a sandbox needs is there,
/// durable and read-only.
fn manifest(work: &Path) -> Result<Manifest, BuildError> {
    let order = read_text(&work.join(ORDER))?;
    let mut names: Vec<String> = [ROOT, DISK, KERNEL, KERNEL_RELEASE, ORDER]
        .map(Into::into)
        .into();
    names.extend(order.lines().map(|name| format!("modules/{name}")));
    let has = |module: &str| {
        order
            .lines()
            .any(|line| line.replace('-', "_") == format!("{module}.ko"))
    };
    if let Some(missing) = INITRD_MODULES.into_iter().find(|module| !has(module)) {
        return Err(BuildError::Incomplete(missing));
    }
    let mut files = BTreeMap::new();
    for name in names {
        let path = work.join(&name);
        files.insert(name, seal(&path)?);
    }
    sync(&work.join("modules"))?;
    let kernel_release = read_text(&work.join(KERNEL_RELEASE))?.trim().to_owned();
    Ok(Manifest {
        version: 1,
        suite: SUITE.into(),
        kernel_release,
        files,
    })
}

/// Makes a file read-only and durable, and hashes it.
fn seal(path: &Path) -> Result<ManifestFile, BuildError> {
    let file = File::open(path).map_err(BuildError::file("open", path))?;
    let failed = |action| BuildError::file(action, path);
    file.set_permissions(Permissions::from_mode(0o444))
        .map_err(failed("set the mode of"))?;
    file.sync_all().map_err(failed("sync"))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&file).map_err(failed("read"))?;
    let bytes = file.metadata().map_err(failed("read"))?.len();
    if bytes == 0 {
        return Err(BuildError::Incomplete("content"));
    }
    Ok(ManifestFile {
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
    })
}

/// What a folder holds, if it is a whole build. Sizes are compared, contents
/// not: this runs at each start, and the store hashes what it takes over.
fn load(folder: &Path, content_hash: &str) -> Option<BaseImage> {
    let manifest: Manifest =
        serde_json::from_slice(&std::fs::read(folder.join(MANIFEST)).ok()?).ok()?;
    let whole = manifest.files.iter().all(|(name, file)| {
        std::fs::metadata(folder.join(name)).is_ok_and(|found| found.len() == file.bytes)
    });
    (whole && manifest.version == 1).then(|| BaseImage {
        content_hash: content_hash.into(),
        root: folder.join(ROOT),
        disk: folder.join(DISK),
        kernel: folder.join(KERNEL),
        modules: folder.join("modules"),
        kernel_release: manifest.kernel_release,
    })
}

/// Writes a read-only file that is either whole or not there.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), BuildError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(BuildError::file("create", folder))?;
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(0o444))?;
        file.sync_all()
    });
    written.map_err(BuildError::file("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(BuildError::file("rename", &temporary))?;
    sync(folder)
}

pub(crate) fn sync(folder: &Path) -> Result<(), BuildError> {
    let opened = File::open(folder).and_then(|folder| folder.sync_all());
    opened.map_err(BuildError::file("sync", folder))
}

pub(crate) fn remove(folder: &Path) -> Result<(), BuildError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(BuildError::file("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn read_text(path: &Path) -> Result<String, BuildError> {
    std::fs::read_to_string(path).map_err(BuildError::file("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(cache_dir: &Path) -> BaseOptions {
        BaseOptions {
            cache_dir: cache_dir.into(),
            mirror: None,
            host_ca: false,
        }
    }

    /// A folder as a build leaves it.
    fn built(work: &Path) {
        std::fs::create_dir_all(work.join("modules")).unwrap();
        let modules = INITRD_MODULES.map(|name| format!("{}.ko", name.replace("_rng", "-rng")));
        for module in &modules {
            std::fs::write(work.join("modules").join(module), "module").unwrap();
        }
        std::fs::write(work.join(ORDER), modules.join("\n")).unwrap();
        for name in [ROOT, DISK, KERNEL] {
            std::fs::write(work.join(name), name).unwrap();
        }
        std::fs::write(work.join(KERNEL_RELEASE), "6.12\n").unwrap();
    }

    fn finish(work: &Path) -> Result<(), BuildError> {
        let text = serde_json::to_vec(&manifest(work)?).unwrap();
        write_whole(&work.join(MANIFEST), &text)
    }

    #[test]
    fn the_hash_is_the_sources_alone() {
        let folder = tempfile::tempdir().unwrap();
        let plain = options(folder.path());
        let elsewhere = BaseOptions {
            cache_dir: "/elsewhere".into(),
            mirror: Some("http://m.example/debian".into()),
            host_ca: false,
        };
        assert_eq!(
            content_hash(&plain).unwrap(),
            content_hash(&elsewhere).unwrap()
        );
        assert_ne!(hash(&[]), hash(&["certificate".into()]));
        assert_ne!(
            hash(&["ab".into(), "c".into()]),
            hash(&["a".into(), "bc".into()])
        );
    }

    #[test]
    fn a_whole_build_is_found_in_the_cache_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        assert_eq!(cached(&options).unwrap(), None);

        let path = folder
            .path()
            .join(FORMAT)
            .join(content_hash(&options).unwrap());
        built(&path);
        assert_eq!(cached(&options).unwrap(), None, "no manifest yet");
        finish(&path).unwrap();
        let image = cached(&options).unwrap().unwrap();
        assert_eq!(
            (image.kernel_release.as_str(), &image.root),
            ("6.12", &path.join(ROOT))
        );
        assert_eq!(build(&options, &|step| panic!("{step:?}")).unwrap(), image);

        std::fs::remove_file(path.join(ROOT)).unwrap();
        std::fs::write(path.join(ROOT), "shorter or longer").unwrap();
        assert_eq!(cached(&options).unwrap(), None, "the root has another size");
    }

    #[test]
    fn a_build_that_lacks_something_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        built(folder.path());
        std::fs::write(folder.path().join(ORDER), "virtio_mmio.ko\n").unwrap();
        assert!(matches!(
            finish(folder.path()),
            Err(BuildError::Incomplete("virtio_blk"))
        ));
        built(folder.path());
        std::fs::remove_file(folder.path().join(KERNEL)).unwrap();
        let error = finish(folder.path()).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot open") && error.contains(KERNEL),
            "{error}"
        );
    }
}

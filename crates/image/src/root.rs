//! Runs `mmdebstrap`: packages, then the template's files, then its set-up script.
//!
//! As root it works in place, as an ordinary user in a user namespace with the
//! user's range of subordinate ids. In a namespace the script's root is an id
//! that may neither read this user's folders nor write them, so everything goes
//! in and out through mmdebstrap's own process (`tar-in`, `download`).

use crate::error::BuildError;
use crate::mirror::{self, Mirror};
use crate::progress::{Progress, ProgressFn};
use crate::scratch::Scratch;
use crate::source::{self, FILES, INITRD_MODULES, KERNEL_MODULES, KEYRING, SETUP, SUITE, VARIANT};
use crate::tools;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The guest's list of package sources.
const GUEST_SOURCES: &str = "debian.sources";

/// What a root file system is made of, and what its set-up script leaves in `.pando`.
pub(crate) struct Recipe {
    /// Packages beyond the essential ones.
    pub(crate) packages: Vec<&'static str>,
    /// Files that are laid over those of the packages: path without the leading `/`,
    /// mode, content. `.pando/setup.sh` is among them.
    pub(crate) files: Vec<(String, u32, String)>,
    /// What dpkg leaves out, as arguments of `mmdebstrap`.
    pub(crate) dpkg_options: Vec<String>,
    /// What is brought back into the folder of the build.
    pub(crate) outputs: &'static [&'static str],
}

/// Puts `root.erofs`, `vmlinuz`, `kernel-release` and `modules/` into `work`.
pub(crate) fn create(
    work: &Path,
    named_mirror: Option<&str>,
    certificates: &[String],
    progress: ProgressFn<'_>,
) -> Result<(), BuildError> {
    let recipe = Recipe {
        packages: source::packages(),
        files: base_files(certificates),
        dpkg_options: dpkg_options(),
        outputs: &["root.erofs", "boot.tar"],
    };
    make(work, named_mirror, &recipe, progress)
}

/// Makes a root file system, and unpacks the `boot.tar` among its outputs.
pub(crate) fn make(
    work: &Path,
    named_mirror: Option<&str>,
    recipe: &Recipe,
    progress: ProgressFn<'_>,
) -> Result<(), BuildError> {
    if !Path::new(KEYRING).exists() {
        let package = "debian-archive-keyring";
        return Err(BuildError::MissingTool {
            program: KEYRING,
            package,
        });
    }
    require_subordinate_ids()?;
    write_source(work, &recipe.files, progress)?;
    let mirrors = mirror::candidates(named_mirror)?;
    from_first_that_works(&mirrors, work, &Scratch::open(progress)?, recipe, progress)?;

    let mut unpack = tools::command("tar")?;
    unpack
        .args(["--extract", "--no-same-owner", "--file"])
        .arg(work.join("boot.tar"));
    unpack.arg("--directory").arg(work);
    tools::run("tar", &mut unpack, "", progress)?;
    for name in ["boot.tar", "source.tar", GUEST_SOURCES] {
        std::fs::remove_file(work.join(name))
            .map_err(BuildError::file("remove", work.join(name)))?;
    }
    Ok(())
}

/// A mirror may lack the security updates: then the image is made without.
fn from_first_that_works(
    mirrors: &[Mirror],
    work: &Path,
    scratch: &Scratch,
    recipe: &Recipe,
    progress: ProgressFn<'_>,
) -> Result<(), BuildError> {
    let mut result = Err(BuildError::BadMirror);
    for (tried, mirror) in mirrors.iter().enumerate() {
        if tried > 0 {
            progress(Progress::Step("trying the next mirror"));
        }
        let address = tools::without_credentials(&mirror.archive);
        let updates = if mirror.security.is_some() {
            "with"
        } else {
            "without"
        };
        progress(Progress::Line(&format!(
            "mirror: {address}, {updates} security updates"
        )));
        let reached = AtomicBool::new(false);
        let watched = |told: Progress<'_>| {
            reached.fetch_or(matches!(told, Progress::Step(_)), Ordering::Relaxed);
            progress(told);
        };
        result = debootstrap(work, mirror, scratch, recipe, &watched);
        // Once the set-up script tells its steps, the mirror has done its part.
        let retry = matches!(result, Err(BuildError::Failed { .. }));
        if !retry || reached.load(Ordering::Relaxed) {
            break;
        }
    }
    result
}

fn debootstrap(
    work: &Path,
    mirror: &Mirror,
    scratch: &Scratch,
    recipe: &Recipe,
    progress: ProgressFn<'_>,
) -> Result<(), BuildError> {
    let hook = |text: String| format!("--customize-hook={text}");
    let tar = quoted(&work.join("source.tar"));
    let out = |name: &str| format!("download /.pando/{name} {}", quoted(&work.join(name)));

    // What the guest's own apt asks later: where its packages came from. Not part of the
    // content hash, which would otherwise differ from one network to the next.
    let sources = work.join(GUEST_SOURCES);
    write_file(&sources, 0o644, &mirror.guest_sources(SUITE))?;
    let upload = format!(
        "upload {} /etc/apt/sources.list.d/{GUEST_SOURCES}",
        quoted(&sources)
    );

    let mut command = scratch.command("mmdebstrap")?;
    command
        .arg(if tools::is_root() {
            "--mode=root"
        } else {
            "--mode=unshare"
        })
        .arg(format!("--variant={VARIANT}"))
        .arg("--format=null")
        .arg(format!("--include={}", recipe.packages.join(",")))
        .args(&recipe.dpkg_options)
        .arg(hook(format!("tar-in {tar} /")))
        .arg(hook(upload))
        .arg(hook("sh \"$1/.pando/setup.sh\" \"$1\"".into()))
        .args(recipe.outputs.iter().map(|name| hook(out(name))))
        // The sources come by standard input: arguments are everybody's to see.
        .args([SUITE, "/dev/null", "-"]);
    progress(Progress::Step("downloading and installing Debian packages"));
    tools::run(
        "mmdebstrap",
        &mut command,
        &mirror.sources_list(SUITE, KEYRING),
        progress,
    )
}

/// What packages leave out is left out from the first one on.
fn dpkg_options() -> Vec<String> {
    let file = FILES.iter().find(|file| file.path.starts_with("etc/dpkg/"));
    let lines = file.map_or("", |file| file.content).lines();
    lines
        .filter(|line| line.starts_with("path-"))
        .map(|line| format!("--dpkgopt={line}"))
        .collect()
}

/// mmdebstrap splits the text of a special hook as a shell does.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

/// What the base image lays over the packages' files.
fn base_files(certificates: &[String]) -> Vec<(String, u32, String)> {
    let own = FILES
        .iter()
        .map(|file| (file.path.to_owned(), file.mode, file.content.to_owned()));
    let trusted = certificates.iter().map(|certificate| {
        let hash = blake3::hash(certificate.as_bytes()).to_hex();
        let path = format!(
            "usr/local/share/ca-certificates/pando-host/{}.crt",
            &hash[..16]
        );
        (path, 0o644, certificate.clone())
    });
    let for_setup = [
        ("setup.sh", SETUP.to_owned()),
        ("kernel-modules", KERNEL_MODULES.to_owned()),
        ("initrd-modules", INITRD_MODULES.join("\n") + "\n"),
    ];
    let for_setup = for_setup.map(|(name, text)| (format!(".pando/{name}"), 0o644, text));
    own.chain(trusted).chain(for_setup).collect()
}

/// Writes `source.tar`: what is laid over the packages' files.
fn write_source(
    work: &Path,
    files: &[(String, u32, String)],
    progress: ProgressFn<'_>,
) -> Result<(), BuildError> {
    let folder = work.join("source");
    let mut names = Vec::new();
    for (path, mode, content) in files {
        names.push(path.clone());
        write_file(&folder.join(path), *mode, content)?;
    }

    // Files only: a folder that the packages made keeps its owner and mode.
    let mut tar = tools::command("tar")?;
    tar.args([
        "--create",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--no-recursion",
    ]);
    tar.arg("--directory")
        .arg(&folder)
        .args(["--files-from=-", "--file"]);
    tar.arg(work.join("source.tar"));
    tools::run("tar", &mut tar, &(names.join("\n") + "\n"), progress)?;
    std::fs::remove_dir_all(&folder).map_err(BuildError::file("remove", &folder))
}

fn write_file(path: &Path, mode: u32, content: &str) -> Result<(), BuildError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(BuildError::file("create", parent))?;
    }
    std::fs::write(path, content).map_err(BuildError::file("write", path))?;
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).map_err(BuildError::file("set the mode of", path))
}

/// An ordinary user needs a range of ids to be root of, in both files.
fn require_subordinate_ids() -> Result<(), BuildError> {
    if tools::is_root() {
        return Ok(());
    }
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = user_name(&passwd, uid).unwrap_or_else(|| uid.to_string());
    let has_range = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split(':').next())
            .any(|name| name == user || name == uid.to_string())
    };
    if has_range("/etc/subuid") && has_range("/etc/subgid") {
        return Ok(());
    }
    Err(BuildError::NoSubordinateIds { user })
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_leave_out_what_the_image_s_own_dpkg_leaves_out() {
        let options = dpkg_options();
        assert!(options.contains(&"--dpkgopt=path-exclude=/usr/share/man/*".to_owned()));
        assert!(
            options
                .iter()
                .all(|option| option.starts_with("--dpkgopt=path-"))
        );
    }

    #[test]
    fn a_hook_survives_any_path() {
        assert_eq!(quoted(Path::new("/a b/c'd")), r"'/a b/c'\''d'");
    }

    #[test]
    fn a_user_is_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1001::/home/ann:/bin/sh\n";
        assert_eq!(user_name(passwd, 1001).as_deref(), Some("ann"));
        assert_eq!(user_name(passwd, 7), None);
    }
}

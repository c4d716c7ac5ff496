//! The source of the `base` template, as this program carries it.
//!
//! `images/base` is compiled in, so that an installed `pando` bakes without a
//! clone. A file added to `images/base/files` is added to the table here (a test
//! fails otherwise), with its mode: git keeps no more of it than one bit.

/// The suite that sandboxes run, whatever the host runs.
pub(crate) const SUITE: &str = "trixie";

/// The archive's keys, on the host: packages come over plain HTTP and are
/// believed by signature only.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// `mmdebstrap`'s name for: essential packages and apt, nothing else.
pub(crate) const VARIANT: &str = "minbase";

/// Makes the image from what the packages left, see there.
pub(crate) const SETUP: &str = include_str!("../../../images/base/setup.sh");

/// Which of the kernel's modules the image carries.
pub(crate) const KERNEL_MODULES: &str = include_str!("../../../images/base/kernel-modules");

const PACKAGES: &str = include_str!("../../../images/base/packages");

/// Modules that the agent loads before there is a root, in this order after
/// what each needs. Everything else the boot takes is built into the kernel.
pub(crate) const INITRD_MODULES: [&str; 6] = [
    "virtio_mmio", // the bus that every device sits on
    "virtio_blk",  // both disks
    "virtio_net",
    "virtio_rng",
    "erofs",   // the root image
    "overlay", // the root itself
];

/// A file that the template adds to what its packages bring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceFile {
    /// Where, without the leading `/`.
    pub(crate) path: &'static str,
    /// Permission bits; the owner is root.
    pub(crate) mode: u32,
    /// What is in it.
    pub(crate) content: &'static str,
}

macro_rules! source_files {
    ($($mode:literal $path:literal)*) => {
        [$(SourceFile {
            path: $path,
            mode: $mode,
            content: include_str!(concat!("../../../images/base/files/", $path)),
        }),*]
    };
}

/// The files of `images/base/files`.
pub(crate) const FILES: [SourceFile; 10] = source_files! {
    0o644 "etc/default/locale"
    0o644 "etc/dpkg/dpkg.cfg.d/pando"
    0o644 "etc/hostname"
    0o644 "etc/hosts"
    0o644 "etc/pando/resume.d/README"
    0o644 "etc/pip.conf"
    0o644 "etc/profile.d/pando.sh"
    0o644 "etc/resolv.conf"
    0o440 "etc/sudoers.d/pando-user"
    0o755 "usr/sbin/poweroff"
};

/// The packages beyond the essential ones.
pub(crate) fn packages() -> Vec<&'static str> {
    PACKAGES
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_of_the_template_is_compiled_in() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/base/files");
        let mut on_disk = Vec::new();
        walk(&folder, &folder, &mut on_disk);
        on_disk.sort();
        let compiled: Vec<_> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(
            compiled, on_disk,
            "add new files to `FILES` in source.rs, sorted"
        );
    }

    fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else {
                found.push(
                    path.strip_prefix(root)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                );
            }
        }
    }

    #[test]
    fn the_package_list_is_plain_names() {
        let packages = packages();
        assert!(packages.contains(&"python3-pip") && packages.contains(&"kmod"));
        for name in packages {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
            assert!(name.chars().all(plain), "`{name}` is no package name");
        }
    }
}

//! The version of a QEMU.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The oldest QEMU that works: `x-exit-preconfig` on `microvm`, read-only memory
/// files that are mapped privately (`rom=off`) and loads from `file:` came by then.
pub const MINIMUM_VERSION: (u32, u32) = (8, 2);

/// Why a QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// There is none.
    #[error("`{}` cannot be run: install the package `qemu-system-x86`", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It does not say its version.
    #[error("`{} --version` names no version", .0.display())]
    Unknown(PathBuf),
    /// It is too old.
    #[error(
        "QEMU {0} is too old, 8.2 is needed: on Debian 12 install `qemu-system-x86` from \
         `bookworm-backports`"
    )]
    TooOld(QemuVersion),
}

/// A QEMU's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuVersion {
    major: u32,
    minor: u32,
    micro: u32,
    /// What the distribution adds, such as `Debian 1:10.0.2+ds-2`.
    package: String,
}

impl QemuVersion {
    /// Asks the program.
    ///
    /// # Errors
    /// When it is missing, not QEMU, or too old.
    pub fn probe(binary: &Path) -> Result<Self, VersionError> {
        let output = Command::new(binary)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| VersionError::Missing {
                path: binary.to_owned(),
                source,
            })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = Self::parse(&text).ok_or_else(|| VersionError::Unknown(binary.to_owned()))?;
        if (version.major, version.minor) < MINIMUM_VERSION {
            return Err(VersionError::TooOld(version));
        }
        Ok(version)
    }

    /// The version with the package's, which device state is tied to.
    pub fn full(&self) -> String {
        if self.package.is_empty() {
            return format!("QEMU {self}");
        }
        format!("QEMU {self} ({})", self.package)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text
            .lines()
            .next()?
            .strip_prefix("QEMU emulator version ")?;
        let (numbers, package) = line.split_once(' ').unwrap_or((line, ""));
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        Some(Self {
            major: parts.next()??,
            minor: parts.next()??,
            micro: parts.next().flatten().unwrap_or(0),
            package: package.trim_matches(['(', ')']).to_owned(),
        })
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn debians_and_a_plain_version_are_read() {
        let debian =
            "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\nCopyright";
        let version = QemuVersion::parse(debian).unwrap();
        assert_eq!(version.to_string(), "10.0.2");
        assert_eq!(
            version.full(),
            "QEMU 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)"
        );
        let plain = QemuVersion::parse("QEMU emulator version 9.1.50\n").unwrap();
        assert_eq!(plain.full(), "QEMU 9.1.50");
        assert_eq!(QemuVersion::parse("something else"), None);
        assert_eq!(QemuVersion::parse(""), None);
    }

    #[test]
    fn an_old_one_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let fake = folder.path().join("qemu");
        std::fs::write(
            &fake,
            "#!/bin/sh\necho 'QEMU emulator version 7.2.11 (Debian)'\n",
        )
        .unwrap();
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
        let text = QemuVersion::probe(&fake).unwrap_err().to_string();
        assert!(
            text.starts_with("QEMU 7.2.11 is too old, 8.2 is needed"),
            "{text}"
        );
        assert!(text.contains("bookworm-backports"), "{text}");
    }

    #[test]
    fn a_missing_one_names_the_package() {
        let text = QemuVersion::probe(Path::new("/no/such/qemu"))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("`/no/such/qemu`") && text.contains("qemu-system-x86"),
            "{text}"
        );
    }
}

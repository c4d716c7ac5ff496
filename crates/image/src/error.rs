//! Why an image cannot be made, and what a person can do about it.

use std::path::PathBuf;

/// A failed build. Nothing half-made is left in the cache.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A program that the build runs is missing.
    #[error("`{program}` is not installed; Debian's package `{package}` has it")]
    MissingTool {
        /// What was looked for in `PATH`.
        program: &'static str,
        /// The package to install.
        package: &'static str,
    },
    /// An ordinary user builds in a user namespace, which takes a range of ids.
    #[error(
        "`{user}` has no range in `/etc/subuid` and `/etc/subgid`; an administrator can add one with \
         `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`"
    )]
    NoSubordinateIds {
        /// The user's name.
        user: String,
    },
    /// A program failed.
    #[error("`{program}` failed ({status}); its last lines were:\n{last_lines}")]
    Failed {
        /// Which one.
        program: &'static str,
        /// Its exit status.
        status: String,
        /// The end of what it printed.
        last_lines: String,
    },
    /// The host names no Debian archive, and neither did the person.
    #[error(
        "this host's apt names no Debian archive: set `PANDO_DEBIAN_MIRROR` to one, such as `http://MIRROR/debian`"
    )]
    NoMirror,
    /// `PANDO_DEBIAN_MIRROR` is not an address of an archive.
    #[error("the mirror is not an `http://` or `https://` address")]
    BadMirror,
    /// A build ended well, but something is not there.
    #[error("the build made no `{0}`")]
    Incomplete(&'static str),
    /// The host's CA bundle was asked for and cannot be read.
    #[error("the host's certificates `{path}` hold no certificate")]
    NoHostCertificates {
        /// The bundle.
        path: PathBuf,
    },
    /// A killed build left a mount, so that clearing up after it would reach elsewhere.
    #[error("a build that was killed left `{path}` mounted; `umount` it")]
    MountedBelow {
        /// Where.
        path: PathBuf,
    },
    /// A folder that builds work in was put there by somebody else.
    #[error("`{path}` is not a folder of this user's that only this user may write; remove it")]
    NotOurs {
        /// Which one.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {action} `{path}`")]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A program could not be run or listened to.
    #[error("cannot run `{program}`")]
    Run {
        /// Which one.
        program: &'static str,
        /// The reason.
        source: std::io::Error,
    },
}

impl BuildError {
    /// For `map_err`: names the action and the path of a failed file operation.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

//! Files inside a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an entry of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link that leads nowhere.
    Symlink,
    /// A socket, a device or a pipe.
    Other,
}

/// What is said about a file. A symbolic link is described by its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    /// The last component of its path.
    pub name: String,
    /// Its absolute path.
    pub path: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Its length.
    pub size_bytes: u64,
    /// Permission bits, such as 420 for `rw-r--r--`.
    pub mode: u32,
    /// The owner's name.
    pub owner: String,
    /// The group's name.
    pub group: String,
    /// RFC 3339, UTC.
    pub modified_at: Option<String>,
    /// Where it leads, if it is a symbolic link.
    pub symlink_target: Option<String>,
}

/// The entries of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// One entry each.
    pub entries: Vec<FileInfo>,
}

/// Make a directory and its missing parents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirRequest {
    /// Absolute, or relative to the user's home.
    pub path: String,
    /// Who owns what is made; `user` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Move or rename a file or a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// What to move.
    pub from: String,
    /// Its new path; missing parents are made.
    pub to: String,
    /// Who moves it; `user` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

//! `filesystem.Filesystem`: names and attributes; contents go by `/files`.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buffa_types::google::protobuf::Timestamp;
use connectrpc::{
    ConnectError, Encodable, RequestContext, Response, ServiceRequest, ServiceResult,
};
use pando_wire::filesystem::{self as wire, EntryInfo, FileType};

use crate::files::make_folders;
use crate::paths;
use crate::process::service::user_of;
use crate::sandbox::Sandbox;
use crate::users::{Names, User};

/// Entries of one listing. More does not fit into a message that clients accept.
const MAX_ENTRIES: usize = 10_000;

/// The service, the same on both ports.
pub(crate) struct FilesystemService {
    sandbox: Arc<Sandbox>,
}

impl FilesystemService {
    /// A service over the sandbox's files.
    pub(crate) fn new(sandbox: Arc<Sandbox>) -> Self {
        Self { sandbox }
    }

    /// Runs `work` for the request's user where blocking is allowed.
    async fn run<T: Send + 'static>(
        &self,
        ctx: &RequestContext,
        work: impl FnOnce(&User) -> Result<T, ConnectError> + Send + 'static,
    ) -> Result<T, ConnectError> {
        self.sandbox.check_ready()?;
        let user = user_of(ctx.headers())?;
        let done = tokio::task::spawn_blocking(move || work(&user)).await;
        done.map_err(|_| ConnectError::internal("the file operation failed"))?
    }
}

impl wire::Filesystem for FilesystemService {
    async fn stat<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::StatRequest>,
    ) -> ServiceResult<impl Encodable<wire::StatResponse> + Send + use<'a>> {
        let path = request.path.to_owned();
        let work = move |user: &User| entry(&resolve(&path, user), &Names::read());
        let entry = self.run(&ctx, work).await?;
        Response::ok(wire::StatResponse {
            entry: entry.into(),
            ..Default::default()
        })
    }

    async fn make_dir<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::MakeDirRequest>,
    ) -> ServiceResult<impl Encodable<wire::MakeDirResponse> + Send + use<'a>> {
        let path = request.path.to_owned();
        let entry = self.run(&ctx, move |user| make_dir(&path, user)).await?;
        Response::ok(wire::MakeDirResponse {
            entry: entry.into(),
            ..Default::default()
        })
    }

    async fn r#move<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::MoveRequest>,
    ) -> ServiceResult<impl Encodable<wire::MoveResponse> + Send + use<'a>> {
        let (source, destination) = (request.source.to_owned(), request.destination.to_owned());
        let work = move |user: &User| rename(&source, &destination, user);
        let entry = self.run(&ctx, work).await?;
        Response::ok(wire::MoveResponse {
            entry: entry.into(),
            ..Default::default()
        })
    }

    async fn list_dir<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::ListDirRequest>,
    ) -> ServiceResult<impl Encodable<wire::ListDirResponse> + Send + use<'a>> {
        let (path, depth) = (request.path.to_owned(), request.depth.max(1));
        let work = move |user: &User| list_dir(&resolve(&path, user), depth);
        let entries = self.run(&ctx, work).await?;
        Response::ok(wire::ListDirResponse {
            entries,
            ..Default::default()
        })
    }

    async fn remove<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::RemoveRequest>,
    ) -> ServiceResult<impl Encodable<wire::RemoveResponse> + Send + use<'a>> {
        let path = request.path.to_owned();
        let work = move |user: &User| remove(&resolve(&path, user));
        self.run(&ctx, work).await?;
        Response::ok(wire::RemoveResponse::default())
    }
}

fn resolve(path: &str, user: &User) -> PathBuf {
    paths::resolve(path, &user.home).into()
}

/// Says what went wrong with a path, with the code that clients act on.
fn failure(path: &Path, error: &io::Error) -> ConnectError {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => ConnectError::not_found(format!("path not found: {path}")),
        io::ErrorKind::NotADirectory => {
            ConnectError::invalid_argument(format!("path is not a directory: {path}"))
        }
        io::ErrorKind::AlreadyExists => {
            ConnectError::already_exists(format!("path already exists: {path}"))
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ConnectError::resource_exhausted("the sandbox's disk is full")
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
            ConnectError::invalid_argument(format!("{path}: {error}"))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ConnectError::permission_denied(format!("{path}: {error}"))
        }
        _ => ConnectError::internal(format!("{path}: {error}")),
    }
}

/// Describes a path. A symbolic link has the type of what it points to.
fn entry(path: &Path, names: &Names) -> Result<EntryInfo, ConnectError> {
    let failed = |error: io::Error| failure(path, &error);
    let own = fs::symlink_metadata(path).map_err(failed)?;
    let is_symlink = own.is_symlink();
    let target = match is_symlink {
        true => fs::metadata(path).ok(),
        false => Some(own.clone()),
    };
    let kind = match &target {
        Some(data) if data.is_dir() => FileType::FILE_TYPE_DIRECTORY,
        // Clients know no other kinds and drop what has none.
        Some(_) => FileType::FILE_TYPE_FILE,
        None => FileType::FILE_TYPE_SYMLINK,
    };
    let symlink_target = fs::read_link(path).ok();
    let mode = own.permissions().mode();
    Ok(EntryInfo {
        name: path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned(),
        r#type: kind.into(),
        path: path.to_string_lossy().into_owned(),
        size: own.len().try_into().unwrap_or(i64::MAX),
        mode: mode & 0o7777,
        permissions: permissions_text(own.is_dir(), is_symlink, mode),
        owner: names.user(own.uid()),
        group: names.group(own.gid()),
        modified_time: Timestamp {
            seconds: own.mtime(),
            nanos: i32::try_from(own.mtime_nsec()).unwrap_or(0),
            ..Default::default()
        }
        .into(),
        symlink_target: symlink_target.map(|target| target.to_string_lossy().into_owned()),
        is_symlink,
        ..Default::default()
    })
}

/// As `ls -l` shows it, without the special bits.
fn permissions_text(is_dir: bool, is_symlink: bool, mode: u32) -> String {
    let kind = match (is_dir, is_symlink) {
        (true, _) => 'd',
        (_, true) => 'l',
        _ => '-',
    };
    let bits = (0..9).map(|bit| match mode >> (8 - bit) & 1 {
        1 => ['r', 'w', 'x'][bit % 3],
        _ => '-',
    });
    std::iter::once(kind).chain(bits).collect()
}

fn make_dir(path: &str, user: &User) -> Result<EntryInfo, ConnectError> {
    let path = resolve(path, user);
    match fs::metadata(&path) {
        Ok(data) if data.is_dir() => {
            return Err(failure(&path, &io::ErrorKind::AlreadyExists.into()));
        }
        Ok(_) => return Err(failure(&path, &io::ErrorKind::NotADirectory.into())),
        Err(_) => {}
    }
    make_folders(&path, user).map_err(|error| failure(&path, &error))?;
    entry(&path, &Names::read())
}

fn rename(source: &str, destination: &str, user: &User) -> Result<EntryInfo, ConnectError> {
    let (source, destination) = (resolve(source, user), resolve(destination, user));
    fs::symlink_metadata(&source).map_err(|error| failure(&source, &error))?;
    if let Some(parent) = destination.parent() {
        make_folders(parent, user).map_err(|error| failure(parent, &error))?;
    }
    fs::rename(&source, &destination).map_err(|error| failure(&destination, &error))?;
    entry(&destination, &Names::read())
}

fn list_dir(path: &Path, depth: u32) -> Result<Vec<EntryInfo>, ConnectError> {
    let names = Names::read();
    let mut entries = Vec::new();
    // The first folder may be named by a link; those below are not followed.
    let mut folders = vec![(path.to_owned(), depth)];
    while let Some((folder, depth)) = folders.pop() {
        let listed = fs::read_dir(&folder).map_err(|error| failure(&folder, &error));
        let listed = match listed {
            Ok(listed) => listed,
            // One that went away, or that the listing was not about.
            Err(_) if folder != path => continue,
            Err(error) => return Err(error),
        };
        let mut children: Vec<_> = listed.flatten().map(|entry| entry.path()).collect();
        children.sort();
        for child in children {
            let Ok(info) = entry(&child, &names) else {
                continue;
            };
            if entries.len() >= MAX_ENTRIES {
                let message = format!("more than {MAX_ENTRIES} entries; list with less depth");
                return Err(ConnectError::resource_exhausted(message));
            }
            if depth > 1 && !info.is_symlink && child.is_dir() {
                folders.push((child, depth - 1));
            }
            entries.push(info);
        }
    }
    Ok(entries)
}

fn remove(path: &Path) -> Result<(), ConnectError> {
    if path == Path::new("/") {
        return Err(ConnectError::invalid_argument("the root can't be removed"));
    }
    let removed = match fs::symlink_metadata(path) {
        Ok(data) if data.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| failure(path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_as_ls_shows_them() {
        assert_eq!(permissions_text(false, false, 0o644), "-rw-r--r--");
        assert_eq!(permissions_text(true, false, 0o755), "drwxr-xr-x");
        assert_eq!(permissions_text(false, true, 0o777), "lrwxrwxrwx");
    }

    #[test]
    fn a_listing_goes_as_deep_as_asked_and_follows_no_links() {
        let root = tempfile::tempdir().expect("folder");
        let root = root.path();
        fs::create_dir_all(root.join("a/b")).expect("folders");
        fs::write(root.join("a/b/deep"), "x").expect("file");
        std::os::unix::fs::symlink(root, root.join("loop")).expect("link");
        let names = |depth| {
            let entries = list_dir(root, depth).expect("listing");
            let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
            names.sort();
            names
        };
        assert_eq!(names(1), ["a", "loop"]);
        assert_eq!(names(2), ["a", "b", "loop"]);
        assert_eq!(names(9), ["a", "b", "deep", "loop"]);
    }

    #[test]
    fn a_link_has_its_targets_type_and_a_dangling_one_its_own() {
        let root = tempfile::tempdir().expect("folder");
        let root = root.path();
        std::os::unix::fs::symlink(root, root.join("folder")).expect("link");
        std::os::unix::fs::symlink("/nowhere", root.join("dangling")).expect("link");
        let names = Names::read();
        let folder = entry(&root.join("folder"), &names).expect("entry");
        assert_eq!(folder.r#type, FileType::FILE_TYPE_DIRECTORY);
        assert!(folder.is_symlink);
        let dangling = entry(&root.join("dangling"), &names).expect("entry");
        assert_eq!(dangling.r#type, FileType::FILE_TYPE_SYMLINK);
        assert_eq!(dangling.symlink_target.as_deref(), Some("/nowhere"));
    }

    #[test]
    fn removing_what_is_not_there_succeeds() {
        let root = tempfile::tempdir().expect("folder");
        assert!(remove(&root.path().join("nothing")).is_ok());
        assert!(remove(Path::new("/")).is_err());
    }
}

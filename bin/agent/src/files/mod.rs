//! `/files`: contents up and down, streamed.

mod download;
mod upload;

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use crate::access::{self, Signed};
use crate::paths;
use crate::reply::{self, Reply};
use crate::sandbox::Sandbox;
use crate::users::{DEFAULT_USER, User};

/// One read or write. Each is a trip to another thread, so not too small; each
/// stream has one or two of them in memory, so not too large.
const CHUNK_BYTES: usize = 128 << 10;

/// The query of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    path: String,
    user: String,
    signature: String,
    expiration: Option<String>,
}

impl Query {
    fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // Forms write a space as a plus.
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
            match name {
                "path" => parsed.path = value,
                "username" => parsed.user = value,
                "signature" => parsed.signature = value,
                "signature_expiration" => parsed.expiration = Some(value),
                _ => {}
            }
        }
        parsed
    }
}

/// What went wrong, as it is told.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    fn at(path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(
                StatusCode::NOT_FOUND,
                format!("path '{path}' does not exist"),
            ),
            io::ErrorKind::IsADirectory => Self::new(
                StatusCode::BAD_REQUEST,
                format!("path '{path}' is a directory"),
            ),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "the sandbox's disk is full",
            ),
            io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::PermissionDenied => {
                Self::new(StatusCode::BAD_REQUEST, format!("path '{path}': {error}"))
            }
            _ => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("path '{path}': {error}"),
            ),
        }
    }

    fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the file operation failed",
        )
    }
}

/// Answers `GET` and `POST /files`.
pub(crate) async fn answer(sandbox: &Sandbox, request: Request<Incoming>) -> Reply {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let writes = request.method() == Method::POST;
    let signed = Signed {
        path: &query.path,
        operation: if writes { "write" } else { "read" },
        user: &query.user,
        signature: &query.signature,
        expiration: query.expiration.as_deref(),
    };
    let headers = request.headers();
    if let Err(refusal) = access::check_token_or_signature(sandbox, headers, &signed) {
        return refusal;
    }
    let answered = match user_of(sandbox, &query) {
        Ok(user) if writes => upload::answer(request, &query.path, user).await,
        Ok(user) => download::answer(request.headers(), target(&query.path, &user)).await,
        Err(failure) => Err(failure),
    };
    answered.unwrap_or_else(|failure| reply::error(failure.status, &failure.message))
}

fn user_of(sandbox: &Sandbox, query: &Query) -> Result<User, Failure> {
    if sandbox.root().is_none() {
        let message = "the sandbox's disk is not mounted yet";
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    let name = match query.user.as_str() {
        "" => DEFAULT_USER,
        name => name,
    };
    let unknown = || {
        Failure::new(
            StatusCode::UNAUTHORIZED,
            format!("there is no user '{name}'"),
        )
    };
    User::find(name).ok_or_else(unknown)
}

fn target(path: &str, user: &User) -> PathBuf {
    paths::resolve(path, &user.home).into()
}

/// Makes a folder and its missing parents, each owned by the user.
///
/// # Errors
/// Part of the path is something else.
pub(crate) fn make_folders(path: &Path, user: &User) -> io::Result<()> {
    let mut missing = Vec::new();
    for folder in path.ancestors() {
        match fs::metadata(folder) {
            Ok(data) if data.is_dir() => break,
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(folder),
            Err(error) => return Err(error),
        }
    }
    for folder in missing.into_iter().rev() {
        match fs::create_dir(folder) {
            Ok(()) => chown(folder, Some(user.uid), Some(user.gid))?,
            // Another request was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_once() {
        let query = "path=%2Fa%20b%2Bc+d&username=root&signature=v1_x%2Fy&signature_expiration=9&x";
        let expected = Query {
            path: "/a b+c d".into(),
            user: "root".into(),
            signature: "v1_x/y".into(),
            expiration: Some("9".into()),
        };
        assert_eq!(Query::parse(query), expected);
        assert_eq!(Query::parse(""), Query::default());
    }

    #[test]
    fn missing_folders_are_made_and_a_file_in_the_way_is_told() {
        let root = tempfile::tempdir().expect("folder");
        let user = User {
            name: "me".into(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            groups: Vec::new(),
            home: "/".into(),
            shell: "/bin/sh".into(),
        };
        let deep = root.path().join("a/b/c");
        make_folders(&deep, &user).expect("made");
        make_folders(&deep, &user).expect("again");
        assert!(deep.is_dir());
        fs::write(root.path().join("file"), "").expect("file");
        let blocked = make_folders(&root.path().join("file/x"), &user).expect_err("blocked");
        assert_eq!(blocked.kind(), io::ErrorKind::NotADirectory);
    }
}

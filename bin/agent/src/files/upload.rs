//! `POST /files`: one file as the body, or any number as parts of a form.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use multer::Multipart;
use serde_json::{Value, json};

use super::{CHUNK_BYTES, Failure, make_folders, target};
use crate::reply::{self, Reply};
use crate::users::User;

/// Parts of one form. Each is a file that is made in turn.
const MAX_PARTS: usize = 10_000;

/// Answers with the list of files that were written.
pub(super) async fn answer(
    request: Request<Incoming>,
    path: &str,
    user: User,
) -> Result<Reply, Failure> {
    let headers = request.headers();
    let encoding = headers.get(CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        let message = "a content encoding other than `identity` is not supported";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let boundary = kind.and_then(|kind| multer::parse_boundary(kind).ok());
    let body = request.into_body();
    let written = match boundary {
        Some(boundary) => write_form(body, &boundary, path, &user).await?,
        None if path.is_empty() => {
            return Err(Failure::new(StatusCode::BAD_REQUEST, "the path is missing"));
        }
        None => vec![write_body(body, path, &user).await?],
    };
    Ok(reply::json(StatusCode::OK, &Value::Array(written)))
}

async fn write_body(mut body: Incoming, path: &str, user: &User) -> Result<Value, Failure> {
    let mut writer = Writer::open(target(path, user), user).await?;
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(|_| broken_off())?.into_data() {
            writer.write(bytes).await?;
        }
    }
    writer.finish().await
}

async fn write_form(
    body: Incoming,
    boundary: &str,
    path: &str,
    user: &User,
) -> Result<Vec<Value>, Failure> {
    let mut form = Multipart::new(body.into_data_stream(), boundary);
    let mut written = Vec::new();
    while let Some(mut part) = form.next_field().await.map_err(|error| bad_form(&error))? {
        if part.name() != Some("file") {
            continue;
        }
        let path = match (path, part.file_name()) {
            ("", Some(name)) => name.to_owned(),
            ("", None) => {
                return Err(Failure::new(
                    StatusCode::BAD_REQUEST,
                    "a part has no file name",
                ));
            }
            (path, _) if written.is_empty() => path.to_owned(),
            _ => {
                let message = "with a path in the query, only one file can be sent";
                return Err(Failure::new(StatusCode::BAD_REQUEST, message));
            }
        };
        if written.len() >= MAX_PARTS {
            let message = format!("more than {MAX_PARTS} files in one request");
            return Err(Failure::new(StatusCode::BAD_REQUEST, message));
        }
        let mut writer = Writer::open(target(&path, user), user).await?;
        while let Some(bytes) = part.chunk().await.map_err(|error| bad_form(&error))? {
            writer.write(bytes).await?;
        }
        written.push(writer.finish().await?);
    }
    Ok(written)
}

fn broken_off() -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "the upload broke off")
}

fn bad_form(error: &multer::Error) -> Failure {
    Failure::new(
        StatusCode::BAD_REQUEST,
        format!("the form can't be read: {error}"),
    )
}

/// Collects what comes in small pieces and writes it in large ones.
struct Writer {
    path: PathBuf,
    file: Option<File>,
    pending: BytesMut,
}

impl Writer {
    async fn open(path: PathBuf, user: &User) -> Result<Self, Failure> {
        let user = user.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let file = open(&path, &user).map_err(|error| Failure::at(&path, &error))?;
            Ok::<_, Failure>((path, file))
        });
        let (path, file) = opened.await.map_err(|_| Failure::internal())??;
        Ok(Self {
            path,
            file: Some(file),
            pending: BytesMut::new(),
        })
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Failure> {
        self.pending.extend_from_slice(&bytes);
        match self.pending.len() >= CHUNK_BYTES {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        let bytes = self.pending.split();
        let mut file = self.file.take().ok_or_else(Failure::internal)?;
        let written = tokio::task::spawn_blocking(move || file.write_all(&bytes).map(|()| file));
        let written = written.await.map_err(|_| Failure::internal())?;
        self.file = Some(written.map_err(|error| Failure::at(&self.path, &error))?);
        Ok(())
    }

    async fn finish(mut self) -> Result<Value, Failure> {
        if !self.pending.is_empty() {
            self.flush().await?;
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(json!({ "name": name, "type": "file", "path": self.path.to_string_lossy() }))
    }
}

/// Opens a file for writing from its start; a new one is owned by the user.
fn open(path: &Path, user: &User) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        make_folders(parent, user)?;
    }
    match std::fs::metadata(path) {
        Ok(data) if data.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        // A pipe or device would block or worse.
        Ok(data) if !data.is_file() => return Err(io::ErrorKind::InvalidInput.into()),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)?;
    // Root's, then it was made just now or belongs to root: the upload makes it the user's.
    if file.metadata()?.uid() != user.uid {
        fchown(&file, Some(user.uid), Some(user.gid))?;
    }
    Ok(file)
}

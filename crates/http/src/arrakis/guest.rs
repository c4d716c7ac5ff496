//! Commands and files of a VM.

use super::shapes::{Download, DownloadedFile, RanCommand, RunCommand, Upload, Uploaded};
use super::{Door, answer, invalid};
use crate::error::ApiError;
use crate::guest_files::{self, GuestFiles};
use crate::json::{JsonBody, Target};
use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, header};
use pando_engine::request::{Caller, Command, ExecResult, Exit, StartProcess};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where commands run and relative paths begin.
const PLACE: &str = "/tmp/server_files";

/// Commands run and files are written as this account.
const USER: &str = "root";

/// What a command finds as its PATH.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Makes the place, goes there, and lets the command's two outputs come as one, in order.
const PREPARE: &str =
    "exec 2>&1; mkdir -p /tmp/server_files && cd /tmp/server_files && exec bash -c \"$1\"";

/// Bytes of all files that are downloaded in one answer, which is put together in memory;
/// `/v1/sandboxes/{id}/files` streams any number.
const DOWNLOAD_BYTES: usize = 64 << 20;

/// What one file takes at most: some, such as `/proc/kmsg`, do not end.
const DOWNLOAD_TIME: Duration = Duration::from_secs(60);

/// Files of one download: more than fit into a request's first line have no names.
const DOWNLOAD_FILES: usize = 1024;

/// Runs a command, to its end or behind the answer.
pub(super) async fn run(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    JsonBody(request): JsonBody<RunCommand>,
) -> Result<Response, ApiError> {
    if request.cmd.is_empty() {
        return Err(invalid("Command cannot be empty"));
    }
    let vm = door.get(&caller, &name).await?;
    let words = ["bash", "-c", PREPARE, "bash", request.cmd.as_str()];
    let command = Command {
        argv: words.map(str::to_owned).to_vec(),
        env: BTreeMap::from([("PATH".to_owned(), SEARCH_PATH.to_owned())]),
        cwd: Some("/".to_owned()),
        user: Some(USER.to_owned()),
        timeout: None,
    };
    let id = vm.id.as_str();
    if request.blocking {
        let ended = door
            .engine
            .exec(&caller, id, command, bytes::Bytes::new(), None);
        return Ok(said(&ended.await?));
    }
    let start = StartProcess {
        command,
        tty: None,
        stdin: false,
        request_id: None,
    };
    door.engine.start_process(&caller, id, start).await?;
    let output = format!("Command '{}' started in background", request.cmd);
    Ok(answer(&RanCommand {
        error: String::new(),
        output,
    }))
}

/// A command's result; one that failed is an answer too.
fn said(result: &ExecResult) -> Response {
    let mut output = String::from_utf8_lossy(&result.stdout).into_owned();
    if result.truncated {
        output.push_str("\n[the rest of the output was dropped]");
    }
    answer(&RanCommand {
        error: failure(&result.exit),
        output,
    })
}

/// How this API words a command's end; empty where it went well.
fn failure(exit: &Exit) -> String {
    match (exit.exit_code, exit.signal) {
        (Some(0), _) => String::new(),
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(9)) => "signal: killed".to_owned(),
        (None, Some(15)) => "signal: terminated".to_owned(),
        (None, Some(11)) => "signal: segmentation fault".to_owned(),
        (None, Some(number)) => format!("signal: {number}"),
        (None, None) => "it did not end by itself".to_owned(),
    }
}

/// Where a path of a client leads.
fn place(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{PLACE}/{path}"),
    }
}

impl Door {
    fn files<'a>(&'a self, caller: &'a Caller, id: &'a str) -> GuestFiles<'a> {
        GuestFiles {
            engine: &self.engine,
            caller,
            sandbox: id,
            user: Some(USER),
        }
    }
}

/// Writes files, with the directories that are missing.
pub(super) async fn upload(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    JsonBody(request): JsonBody<Upload>,
) -> Result<Response, ApiError> {
    if request.files.is_empty() {
        return Err(invalid("No files provided for upload"));
    }
    // Before the first is written.
    for file in &request.files {
        guest_files::check_path(&file.path)?;
    }
    let vm = door.get(&caller, &name).await?;
    let service = door.files(&caller, vm.id.as_str());
    for file in request.files {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        );
        headers.insert(header::CONTENT_LENGTH, file.content.len().into());
        let body = Body::from(file.content);
        let written = service
            .transfer(Method::POST, &place(&file.path), headers, body)
            .await?;
        guest_files::read(written).await?;
    }
    Ok(answer(&Uploaded {}))
}

/// Reads files; what cannot be read says so in its place.
pub(super) async fn download(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let paths = paths_of(query.as_deref().unwrap_or_default());
    if paths.is_empty() {
        return Err(invalid("Missing 'paths' query parameter"));
    }
    if paths.len() > DOWNLOAD_FILES {
        return Err(invalid(format!(
            "`paths` names more than {DOWNLOAD_FILES} files"
        )));
    }
    let vm = door.get(&caller, &name).await?;
    let service = door.files(&caller, vm.id.as_str());
    let (mut files, mut left) = (Vec::new(), DOWNLOAD_BYTES);
    for path in paths {
        let (content, error) = match read(&service, &place(&path), left).await {
            Ok(content) => (content, String::new()),
            Err(error) => (String::new(), unreadable(error)?),
        };
        left = left.saturating_sub(content.len());
        files.push(DownloadedFile {
            content,
            error,
            path,
        });
    }
    Ok(answer(&Download { files }))
}

async fn read(service: &GuestFiles<'_>, path: &str, limit: usize) -> Result<String, ApiError> {
    guest_files::check_path(path)?;
    let whole = async {
        let response = service.transfer(Method::GET, path, HeaderMap::new(), Body::empty());
        guest_files::read_at_most(response.await?, limit).await
    };
    let bytes = tokio::time::timeout(DOWNLOAD_TIME, whole).await;
    let bytes = bytes.map_err(|_| {
        let seconds = DOWNLOAD_TIME.as_secs();
        ApiError::InvalidPath(format!("path '{path}' does not end within {seconds} s"))
    })?;
    Ok(String::from_utf8_lossy(&bytes?).into_owned())
}

/// What is said in a file's place; an error that is not the file's is the whole answer's.
fn unreadable(error: ApiError) -> Result<String, ApiError> {
    match error {
        ApiError::LongGuestAnswer(_) => Ok(format!(
            "Failed to read file: the files of one answer have at most {} MiB together; \
             `/v1/sandboxes/{{id}}/files` has no limit",
            DOWNLOAD_BYTES >> 20
        )),
        ApiError::FileNotFound(_) | ApiError::FilePermission(_) | ApiError::InvalidPath(_) => {
            Ok(format!("Failed to read file: {error}"))
        }
        other => Err(other),
    }
}

/// The paths that a query names: between commas, each percent-encoded.
fn paths_of(query: &str) -> Vec<String> {
    let mut named = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("paths="));
    let paths = named.next().unwrap_or_default().split(',');
    paths
        .filter(|path| !path.is_empty())
        .map(|path| {
            let path = path.replace('+', " ");
            percent_decode_str(&path).decode_utf8_lossy().into_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_apart_before_they_are_decoded() {
        assert_eq!(
            paths_of("paths=a,b%2Cc,/etc/x%20y"),
            ["a", "b,c", "/etc/x y"]
        );
        assert_eq!(paths_of("x=1&paths=a"), ["a"]);
        for none in ["", "paths=", "paths=,", "path=a"] {
            assert!(paths_of(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn a_failure_is_worded_as_clients_know_it() {
        let exit = |exit_code, signal| Exit {
            exit_code,
            signal,
            timed_out: false,
        };
        assert_eq!(failure(&exit(Some(0), None)), "");
        assert_eq!(failure(&exit(Some(3), None)), "exit status 3");
        assert_eq!(failure(&exit(None, Some(9))), "signal: killed");
    }

    #[test]
    fn a_relative_path_begins_where_commands_run() {
        assert_eq!(place("a/b"), "/tmp/server_files/a/b");
        assert_eq!(place("/etc/hosts"), "/etc/hosts");
    }
}

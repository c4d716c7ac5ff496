//! Files of a guest: its agent's file service, asked through the channel, and its answers,
//! read with suspicion.
//!
//! The agent belongs to the guest, which is hostile: bodies are bounded, texts
//! are cut and stripped of control characters, nothing is taken for a path of
//! the host.

use crate::error::ApiError;
use crate::proxy::{guest_body, guest_uri};
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pando_api as api;
use pando_engine::Engine;
use pando_engine::request::Caller;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A listing or an entry: some 50,000 entries fit.
const ANSWER_BYTES: usize = 16 << 20;

/// Characters kept of a message.
const MESSAGE_CHARS: usize = 500;

/// One sandbox's file service, for one caller.
pub(crate) struct GuestFiles<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) caller: &'a Caller,
    /// Its id, or whatever else finds it.
    pub(crate) sandbox: &'a str,
    /// The account whose rights count; `None` is `user`.
    pub(crate) user: Option<&'a str>,
}

impl GuestFiles<'_> {
    /// Calls a method of `filesystem.Filesystem`.
    pub(crate) async fn call(&self, method: &str, arguments: &Value) -> Result<Vec<u8>, ApiError> {
        let mut request = Request::new(Body::from(arguments.to_string()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = guest_uri(&format!("/filesystem.Filesystem/{method}"));
        let headers = request.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        if let Some(user) = self.user {
            let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:"));
            let value = HeaderValue::from_str(&format!("Basic {encoded}"));
            headers.insert(header::AUTHORIZATION, value.map_err(|_| bad_user())?);
        }
        read(self.send(request).await?).await
    }

    /// Asks the raw file route.
    pub(crate) async fn transfer(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Response, ApiError> {
        let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let mut target = format!("/files?path={}", encode(path));
        if let Some(user) = self.user {
            target.push_str(&format!("&username={}", encode(user)));
        }
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = guest_uri(&target);
        *request.headers_mut() = headers;
        self.send(request).await
    }

    async fn send(&self, request: Request) -> Result<Response, ApiError> {
        let request = request.map(guest_body);
        let response = self
            .engine
            .guest_http(self.caller, self.sandbox, request)
            .await?;
        Ok(response.map(Body::new))
    }

    /// Describes what is at a path.
    pub(crate) async fn stat(&self, path: &str) -> Result<api::FileInfo, ApiError> {
        let arguments = serde_json::json!({ "path": path });
        entry(&self.call("Stat", &arguments).await?)
    }
}

fn bad_user() -> ApiError {
    ApiError::BadParameter("`user` is malformed".to_owned())
}

/// Refuses what cannot be a path; the rest is for the guest to judge.
pub(crate) fn check_path(path: &str) -> Result<(), ApiError> {
    if path.is_empty() || path.contains('\0') {
        return Err(ApiError::InvalidPath(
            "the path is empty or holds a zero byte".to_owned(),
        ));
    }
    Ok(())
}

/// An entry as the agent describes it: protobuf's JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    name: String,
    r#type: String,
    path: String,
    size: Option<Int64>,
    mode: u32,
    owner: String,
    group: String,
    modified_time: Option<String>,
    symlink_target: Option<String>,
}

/// Protobuf's JSON writes 64-bit numbers as strings.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Int64 {
    Text(String),
    Number(i64),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EntryAnswer {
    entry: Entry,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListAnswer {
    entries: Vec<Entry>,
}

/// A refusal: Connect writes `code` as a word, the plain routes as a number.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RefusalAnswer {
    code: serde_json::Value,
    message: String,
}

/// Reads the description of one entry.
pub(crate) fn entry(body: &[u8]) -> Result<api::FileInfo, ApiError> {
    Ok(file_info(parse::<EntryAnswer>(body)?.entry))
}

/// Reads a listing.
pub(crate) fn list(body: &[u8]) -> Result<api::FileList, ApiError> {
    let entries = parse::<ListAnswer>(body)?
        .entries
        .into_iter()
        .map(file_info)
        .collect();
    Ok(api::FileList { entries })
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::BadGuestAnswer(error.to_string()))
}

fn file_info(entry: Entry) -> api::FileInfo {
    let size = match entry.size {
        Some(Int64::Text(text)) => text.parse().unwrap_or(0),
        Some(Int64::Number(number)) => number,
        None => 0,
    };
    api::FileInfo {
        name: entry.name,
        path: entry.path,
        kind: match entry.r#type.as_str() {
            "FILE_TYPE_FILE" => api::FileType::File,
            "FILE_TYPE_DIRECTORY" => api::FileType::Directory,
            "FILE_TYPE_SYMLINK" => api::FileType::Symlink,
            _ => api::FileType::Other,
        },
        size_bytes: u64::try_from(size).unwrap_or(0),
        mode: entry.mode,
        owner: entry.owner,
        group: entry.group,
        modified_at: entry.modified_time,
        symlink_target: entry.symlink_target,
    }
}

/// Reads a whole answer, or the refusal it is.
pub(crate) async fn read(response: Response) -> Result<Vec<u8>, ApiError> {
    read_at_most(response, ANSWER_BYTES).await
}

/// The same of an answer that may have so many bytes.
pub(crate) async fn read_at_most(response: Response, limit: usize) -> Result<Vec<u8>, ApiError> {
    let (parts, body) = response.into_parts();
    let whole = Limited::new(body, limit).collect().await;
    let whole = whole
        .map_err(|error| match error.is::<LengthLimitError>() {
            true => ApiError::LongGuestAnswer(limit),
            false => ApiError::BadGuestAnswer(error.to_string()),
        })?
        .to_bytes();
    if parts.status.is_success() {
        Ok(whole.into())
    } else {
        Err(refusal(parts.status, &whole))
    }
}

/// What a refusal of the agent means.
fn refusal(status: StatusCode, body: &[u8]) -> ApiError {
    let answer: RefusalAnswer = serde_json::from_slice(body).unwrap_or_default();
    let mut message: String = answer
        .message
        .chars()
        .filter(|char| !char.is_control())
        .take(MESSAGE_CHARS)
        .collect();
    if message.is_empty() {
        message = format!("the sandbox's agent answered {status}");
    }
    match (answer.code.as_str(), status.as_u16()) {
        (Some("not_found"), _) | (None, 404) => ApiError::FileNotFound(message),
        (Some("already_exists"), _) | (None, 409) => ApiError::FileExists(message),
        (Some("permission_denied"), _) | (None, 403) => ApiError::FilePermission(message),
        (Some("unauthenticated"), _) | (None, 401) => ApiError::UnknownUser(message),
        (Some("resource_exhausted"), _) | (_, 507) => ApiError::GuestDiskFull(message),
        (Some("invalid_argument" | "failed_precondition"), _) | (None, 400) => {
            ApiError::InvalidPath(message)
        }
        _ => ApiError::BadGuestAnswer(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_from_protobufs_json() {
        let body = br#"{"entry":{"name":"a","type":"FILE_TYPE_FILE","path":"/home/user/a","size":"12","mode":420,
            "permissions":"-rw-r--r--","owner":"user","group":"user","modifiedTime":"2026-01-01T00:00:00Z","new":1}}"#;
        let info = entry(body).unwrap();
        assert_eq!(
            (info.size_bytes, info.mode, info.kind),
            (12, 420, api::FileType::File)
        );
        assert_eq!(info.modified_at.as_deref(), Some("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn hostile_numbers_and_shapes_do_no_harm() {
        let info = entry(br#"{"entry":{"size":"-5","type":"FILE_TYPE_SOCKET"}}"#).unwrap();
        assert_eq!((info.size_bytes, info.kind), (0, api::FileType::Other));
        assert_eq!(list(b"{}").unwrap().entries.len(), 0);
        assert!(matches!(entry(b"[1"), Err(ApiError::BadGuestAnswer(_))));
    }

    #[test]
    fn refusals_of_both_kinds_are_understood() {
        let code = |status: u16, body: &str| {
            refusal(StatusCode::from_u16(status).unwrap(), body.as_bytes()).code()
        };
        assert_eq!(
            code(404, r#"{"code":"not_found","message":"x"}"#),
            "file_not_found"
        );
        assert_eq!(code(404, r#"{"code":404,"message":"x"}"#), "file_not_found");
        assert_eq!(
            code(400, r#"{"code":"invalid_argument","message":"x"}"#),
            "invalid_path"
        );
        assert_eq!(code(409, r#"{"code":"already_exists"}"#), "file_exists");
        assert_eq!(code(507, r#"{"code":507}"#), "disk_full");
        assert_eq!(code(401, ""), "unknown_user");
        assert_eq!(code(500, "boom"), "bad_guest_answer");
    }

    #[test]
    fn a_message_is_cut_and_cleaned() {
        let long = "\u{1b}[2J".repeat(1000);
        let body = serde_json::json!({ "code": 404, "message": long }).to_string();
        let message = refusal(StatusCode::NOT_FOUND, body.as_bytes()).to_string();
        assert!(message.chars().count() == MESSAGE_CHARS && !message.contains('\u{1b}'));
    }
}

//! Files of a sandbox: the agent's own file service, asked through the channel.
//!
//! Contents stream both ways; neither side is held in memory.

use super::{Api, guest_file};
use crate::error::ApiError;
use crate::json::{JsonBody, Params, Target};
use crate::proxy::{guest_body, guest_uri};
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::response::Response;
use axum::{Extension, Json};
use base64::Engine as _;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use pando_api as api;
use pando_engine::request::Caller;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

/// Levels that one listing may go down.
const MAX_DEPTH: u32 = 64;

/// What of a file's answer is passed on: its length, and what ranges need.
const FILE_HEADERS: [HeaderName; 5] = [
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ACCEPT_RANGES,
    header::ETAG,
    header::LAST_MODIFIED,
];

/// The query of the routes that name a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileQuery {
    path: String,
    user: Option<String>,
}

/// The query of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    path: String,
    user: Option<String>,
    depth: Option<u32>,
}

/// Whose files of which sandbox a request is about.
pub(super) struct Files {
    api: Api,
    caller: Caller,
    sandbox: String,
}

impl FromRequestParts<Api> for Files {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let Target(sandbox) = Target::from_request_parts(parts, api).await?;
        let no_caller = |_| ApiError::Internal("the request has no caller".to_owned());
        let caller = Extension::from_request_parts(parts, api).await;
        let Extension(caller) = caller.map_err(no_caller)?;
        Ok(Self {
            api: api.clone(),
            caller,
            sandbox,
        })
    }
}

impl Files {
    /// The service, for `user`, once the paths have been checked.
    fn at<'a>(
        &'a self,
        paths: &[&str],
        user: Option<&'a str>,
    ) -> Result<FileService<'a>, ApiError> {
        paths.iter().copied().try_for_each(check_path)?;
        Ok(FileService {
            api: &self.api,
            caller: &self.caller,
            sandbox: &self.sandbox,
            user,
        })
    }
}

/// One sandbox's file service, for one caller.
struct FileService<'a> {
    api: &'a Api,
    caller: &'a Caller,
    sandbox: &'a str,
    user: Option<&'a str>,
}

impl FileService<'_> {
    /// Calls a method of `filesystem.Filesystem`.
    async fn call(&self, method: &str, arguments: &Value) -> Result<Vec<u8>, ApiError> {
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
        guest_file::read(self.send(request).await?).await
    }

    /// Asks the raw file route.
    async fn transfer(
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
            .api
            .engine
            .guest_http(self.caller, self.sandbox, request)
            .await?;
        Ok(response.map(Body::new))
    }

    async fn stat(&self, path: &str) -> Result<api::FileInfo, ApiError> {
        guest_file::entry(&self.call("Stat", &json!({ "path": path })).await?)
    }
}

fn bad_user() -> ApiError {
    ApiError::BadParameter("`user` is malformed".to_owned())
}

/// Refuses what cannot be a path; the rest is for the guest to judge.
fn check_path(path: &str) -> Result<(), ApiError> {
    if path.is_empty() || path.contains('\0') {
        return Err(ApiError::InvalidPath(
            "the path is empty or holds a zero byte".to_owned(),
        ));
    }
    Ok(())
}

/// Reads a file, or a range of it.
pub(super) async fn read(
    files: Files,
    Params(query): Params<FileQuery>,
    request_headers: HeaderMap,
) -> Result<Response, ApiError> {
    let service = files.at(&[&query.path], query.user.as_deref())?;
    let mut headers = HeaderMap::new();
    for name in [header::RANGE, header::IF_RANGE] {
        if let Some(value) = request_headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    let response = service
        .transfer(Method::GET, &query.path, headers, Body::empty())
        .await?;
    if !response.status().is_success() {
        let refused = guest_file::read(response).await;
        return Err(refused
            .err()
            .unwrap_or_else(|| ApiError::BadGuestAnswer("no file".to_owned())));
    }
    let (parts, body) = response.into_parts();
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    let headers = response.headers_mut();
    for name in FILE_HEADERS {
        if let Some(value) = parts.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    // A guest's bytes must never run as a page of this origin.
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment"),
    );
    Ok(response)
}

/// Writes a file, with its missing parents.
pub(super) async fn write(
    files: Files,
    Params(query): Params<FileQuery>,
    request: Request,
) -> Result<Json<api::FileInfo>, ApiError> {
    let service = files.at(&[&query.path], query.user.as_deref())?;
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    // With the length the agent can tell a whole file from one that broke off.
    if let Some(length) = request.headers().get(header::CONTENT_LENGTH) {
        headers.insert(header::CONTENT_LENGTH, length.clone());
    }
    let response = service
        .transfer(Method::POST, &query.path, headers, request.into_body())
        .await?;
    guest_file::read(response).await?;
    Ok(Json(service.stat(&query.path).await?))
}

/// Removes a file or a directory; one that is not there is an error here.
pub(super) async fn remove(
    files: Files,
    Params(query): Params<FileQuery>,
) -> Result<StatusCode, ApiError> {
    let service = files.at(&[&query.path], query.user.as_deref())?;
    service.stat(&query.path).await?;
    service
        .call("Remove", &json!({ "path": query.path }))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Describes a file.
pub(super) async fn stat(
    files: Files,
    Params(query): Params<FileQuery>,
) -> Result<Json<api::FileInfo>, ApiError> {
    let service = files.at(&[&query.path], query.user.as_deref())?;
    Ok(Json(service.stat(&query.path).await?))
}

/// Lists a directory.
pub(super) async fn list(
    files: Files,
    Params(query): Params<ListQuery>,
) -> Result<Json<api::FileList>, ApiError> {
    let service = files.at(&[&query.path], query.user.as_deref())?;
    let depth = query.depth.unwrap_or(1);
    if depth == 0 || depth > MAX_DEPTH {
        return Err(ApiError::BadParameter(format!(
            "`depth` must be 1 to {MAX_DEPTH}"
        )));
    }
    let listing = service
        .call("ListDir", &json!({ "path": query.path, "depth": depth }))
        .await?;
    Ok(Json(guest_file::list(&listing)?))
}

/// Makes a directory and its missing parents.
pub(super) async fn make_dir(
    files: Files,
    JsonBody(request): JsonBody<api::MakeDirRequest>,
) -> Result<(StatusCode, Json<api::FileInfo>), ApiError> {
    let service = files.at(&[&request.path], request.user.as_deref())?;
    let made = service
        .call("MakeDir", &json!({ "path": request.path }))
        .await?;
    Ok((StatusCode::CREATED, Json(guest_file::entry(&made)?)))
}

/// Moves or renames a file or a directory.
pub(super) async fn move_file(
    files: Files,
    JsonBody(request): JsonBody<api::MoveRequest>,
) -> Result<Json<api::FileInfo>, ApiError> {
    let paths = [request.from.as_str(), &request.to];
    let service = files.at(&paths, request.user.as_deref())?;
    let moved = service
        .call(
            "Move",
            &json!({ "source": request.from, "destination": request.to }),
        )
        .await?;
    Ok(Json(guest_file::entry(&moved)?))
}

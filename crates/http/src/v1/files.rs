//! Files of a sandbox: the agent's own file service, asked through the channel.
//!
//! Contents stream both ways; neither side is held in memory.

use super::Api;
use crate::error::ApiError;
use crate::guest_files::{self, GuestFiles, check_path};
use crate::json::{JsonBody, Params, Target};
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::response::Response;
use axum::{Extension, Json};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use pando_api as api;
use pando_engine::request::Caller;
use serde::Deserialize;
use serde_json::json;

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
    fn at<'a>(&'a self, paths: &[&str], user: Option<&'a str>) -> Result<GuestFiles<'a>, ApiError> {
        paths.iter().copied().try_for_each(check_path)?;
        Ok(GuestFiles {
            engine: &self.api.engine,
            caller: &self.caller,
            sandbox: &self.sandbox,
            user,
        })
    }
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
        let refused = guest_files::read(response).await;
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
    guest_files::read(response).await?;
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
    Ok(Json(guest_files::list(&listing)?))
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
    Ok((StatusCode::CREATED, Json(guest_files::entry(&made)?)))
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
    Ok(Json(guest_files::entry(&moved)?))
}

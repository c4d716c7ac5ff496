//! Taking requests apart: JSON bodies, queries and path parameters, refused in our own words.

use crate::error::ApiError;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request};
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use pando_types::limits::JSON_BODY_BYTES;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// A JSON body. An empty one counts as `{}`, so that a plain `POST` works
/// where every field may be left out.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let route = match request.extensions().get::<MatchedPath>() {
            Some(path) => format!("{} {}", request.method(), path.as_str()),
            None => request.method().to_string(),
        };
        let declared = is_json(request.headers());
        let body = read(request.into_body()).await?;
        match (declared, body.is_empty()) {
            (_, true) => parse(b"{}", route),
            (false, false) => Err(ApiError::NotJson),
            (true, false) => parse(&body, route),
        }
        .map(Self)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8], route: String) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| ApiError::BadJson {
        route,
        reason: error.to_string(),
    })
}

/// Whether a body is declared as JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(declared) = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    let media_type = declared
        .split(';')
        .next()
        .unwrap_or(declared)
        .trim()
        .to_ascii_lowercase();
    media_type == "application/json"
        || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}

/// Read and dropped of a body that is too large before it is refused. A connection that is
/// closed on unread bytes is reset, and its client sees that instead of the refusal.
const DRAIN_BYTES: usize = 64 << 20;

/// The time for it; a client that sends more slowly sees the reset.
const DRAIN_TIME: Duration = Duration::from_secs(10);

async fn read(mut body: axum::body::Body) -> Result<Bytes, ApiError> {
    let mut whole = BytesMut::new();
    while let Some(data) = next_data(&mut body).await? {
        if whole.len() + data.len() > JSON_BODY_BYTES {
            // How it ends changes nothing of the refusal.
            drop(tokio::time::timeout(DRAIN_TIME, drain(&mut body)).await);
            return Err(ApiError::BodyTooLarge(JSON_BODY_BYTES));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

async fn next_data(body: &mut axum::body::Body) -> Result<Option<Bytes>, ApiError> {
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| ApiError::BadParameter(format!("the body broke off: {error}")))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

async fn drain(body: &mut axum::body::Body) {
    let mut left = DRAIN_BYTES;
    while let Ok(Some(data)) = next_data(body).await {
        match left.checked_sub(data.len()) {
            Some(fewer) => left = fewer,
            None => return,
        }
    }
}

/// The parameters of the query; unknown ones are refused if `T` says so.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let parsed = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        let axum::extract::Query(value) = parsed.map_err(|rejection| {
            let whole = rejection.body_text();
            let reason = whole
                .rsplit_once("query string: ")
                .map_or(whole.as_str(), |(_, reason)| reason);
            ApiError::BadParameter(format!("the query is wrong: {reason}"))
        })?;
        Ok(Self(value))
    }
}

/// The one parameter of the path: an id or a name.
pub(crate) struct Target(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Target {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let malformed = || ApiError::BadParameter("the id in the path is malformed".to_owned());
        let params = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| malformed())?;
        let (_, value) = params.iter().next().ok_or_else(malformed)?;
        Ok(Self(value.to_owned()))
    }
}

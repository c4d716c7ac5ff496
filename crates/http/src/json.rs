//! Taking requests apart: JSON bodies, queries and path parameters, refused in our own words.

use crate::error::ApiError;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pando_types::limits::JSON_BODY_BYTES;
use serde::de::DeserializeOwned;

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

fn is_json(headers: &HeaderMap) -> bool {
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

async fn read(body: axum::body::Body) -> Result<Bytes, ApiError> {
    let whole = Limited::new(body, JSON_BODY_BYTES)
        .collect()
        .await
        .map_err(|error| {
            if error.is::<LengthLimitError>() {
                ApiError::BodyTooLarge(JSON_BODY_BYTES)
            } else {
                ApiError::BadParameter(format!("the body broke off: {error}"))
            }
        })?;
    Ok(whole.to_bytes())
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

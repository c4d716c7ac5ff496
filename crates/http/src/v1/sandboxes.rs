//! Sandboxes: make, look, remove, power.

use super::{Api, convert};
use crate::error::ApiError;
use crate::json::{JsonBody, Params, Target};
use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use http::StatusCode;
use pando_api as api;
use pando_engine::EngineError;
use pando_engine::request::Caller;
use serde::Deserialize;
use std::future::Future;
use std::sync::Arc;
use tracing::Instrument as _;

/// Runs to its end even if the client hangs up, so that no operation stops half-way.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(result) => result.map_err(ApiError::from),
        Err(error) => Err(ApiError::Internal(error.to_string())),
    }
}

/// Makes a sandbox. The engine removes it again if the client hangs up meanwhile.
pub(super) async fn create(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    JsonBody(request): JsonBody<api::CreateSandboxRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let made = api
        .engine
        .create(&caller, convert::create_sandbox(request)?)
        .await?;
    Ok((StatusCode::CREATED, Json(convert::sandbox(&api.urls, made))))
}

/// The query of `GET /v1/sandboxes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    usage: bool,
}

/// Lists the caller's sandboxes.
pub(super) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<ListQuery>,
) -> Result<Json<api::SandboxList>, ApiError> {
    let sandboxes = match query.usage {
        true => api.engine.list_with_usage(&caller).await?,
        false => api.engine.list(&caller).await?,
    };
    Ok(Json(api::SandboxList {
        sandboxes: sandboxes
            .into_iter()
            .map(|sandbox| convert::sandbox(&api.urls, sandbox))
            .collect(),
    }))
}

/// Describes one.
pub(super) async fn get(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<Json<api::Sandbox>, ApiError> {
    let found = api.engine.get_with_usage(&caller, &sandbox).await?;
    Ok(Json(convert::sandbox(&api.urls, found)))
}

/// Removes one.
pub(super) async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<StatusCode, ApiError> {
    to_the_end(async move { api.engine.remove(&caller, &sandbox).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Powers one off.
pub(super) async fn stop(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<Json<api::Sandbox>, ApiError> {
    let urls = Arc::clone(&api.urls);
    let stopped = to_the_end(async move { api.engine.stop(&caller, &sandbox).await }).await?;
    Ok(Json(convert::sandbox(&urls, stopped)))
}

/// Starts one on its disk.
pub(super) async fn start(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<Json<api::Sandbox>, ApiError> {
    let urls = Arc::clone(&api.urls);
    let started = to_the_end(async move { api.engine.start(&caller, &sandbox).await }).await?;
    Ok(Json(convert::sandbox(&urls, started)))
}

/// Goes to its agent and back.
pub(super) async fn ping(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<StatusCode, ApiError> {
    api.engine.ping(&caller, &sandbox).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The last lines of its console.
pub(super) async fn console(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<Json<api::ConsoleLog>, ApiError> {
    Ok(Json(api::ConsoleLog {
        console: api.engine.console(&caller, &sandbox).await?,
    }))
}

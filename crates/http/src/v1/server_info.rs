//! The daemon itself: health, status, counters, templates, documentation.

use super::{Api, convert};
use crate::error::ApiError;
use crate::json::{JsonBody, Target};
use crate::to_the_end::to_the_end;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use http::{StatusCode, header};
use pando_api as api;
use pando_api::openapi;
use pando_engine::BakeOptions;
use pando_engine::request::Caller;

/// Lists the templates.
pub(super) async fn templates(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<api::TemplateList>, ApiError> {
    let templates = api.engine.templates(&caller).await?;
    Ok(Json(api::TemplateList {
        templates: templates.into_iter().map(convert::template).collect(),
    }))
}

/// Bakes a template at a size; answers when it is done.
pub(super) async fn warm(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    JsonBody(request): JsonBody<api::WarmRequest>,
) -> Result<StatusCode, ApiError> {
    let template = convert::template_ref(&name)?;
    let size = convert::size(request.cpus, request.memory_mib)?;
    to_the_end(async move { api.engine.warm_template(&caller, &template, size).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a template.
pub(super) async fn remove_template(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
) -> Result<StatusCode, ApiError> {
    let template = convert::template_ref(&name)?;
    to_the_end(async move { api.engine.remove_template(&caller, &template).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a template; answers when it is done. Its steps go to the log.
pub(super) async fn bake(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    JsonBody(request): JsonBody<api::BakeRequest>,
) -> Result<Json<api::Template>, ApiError> {
    let template = convert::template_ref(&name)?;
    let size = Some(convert::size(request.cpus, request.memory_mib)?);
    let options = BakeOptions {
        host_ca: request.host_ca,
        size,
    };
    let progress = |step: &str| tracing::info!(step, "baking");
    let made = to_the_end(async move {
        api.engine
            .bake_template(&caller, &template, options, progress)
            .await
    });
    Ok(Json(convert::template(made.await?)))
}

/// What the daemon says of itself.
pub(super) async fn status(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<api::Status>, ApiError> {
    Ok(Json(convert::status(api.engine.status(&caller).await?)))
}

/// Whether the daemon answers.
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Counters for Prometheus.
pub(super) async fn metrics(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, ApiError> {
    let status = api.engine.status(&caller).await?;
    let text = api.metrics.render(&status);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

/// The OpenAPI document.
pub(super) async fn openapi_json() -> Result<impl IntoResponse, ApiError> {
    let text = openapi::json().map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text))
}

/// The OpenAPI document as YAML.
pub(super) async fn openapi_yaml() -> Result<impl IntoResponse, ApiError> {
    let text = openapi::yaml().map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/yaml")], text))
}

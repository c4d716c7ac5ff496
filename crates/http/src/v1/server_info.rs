//! The daemon itself: health, status, counters, templates, documentation.

use super::{Api, convert};
use crate::arrakis;
use crate::error::ApiError;
use crate::json::{JsonBody, Target};
use crate::to_the_end::to_the_end;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::{StatusCode, header};
use pando_api as api;
use pando_api::openapi::{self, OpenApiError};
use pando_engine::BakeOptions;
use pando_engine::request::Caller;
use utoipa::openapi::OpenApi;

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
pub(super) async fn openapi_json() -> Result<Response, ApiError> {
    as_json(&openapi::document())
}

/// The OpenAPI document as YAML.
pub(super) async fn openapi_yaml() -> Result<Response, ApiError> {
    as_yaml(&openapi::document())
}

/// The Arrakis door's.
pub(super) async fn arrakis_openapi_json() -> Result<Response, ApiError> {
    as_json(&arrakis::openapi::document())
}

/// The Arrakis door's as YAML.
pub(super) async fn arrakis_openapi_yaml() -> Result<Response, ApiError> {
    as_yaml(&arrakis::openapi::document())
}

fn as_json(document: &OpenApi) -> Result<Response, ApiError> {
    written("application/json", openapi::json(document))
}

fn as_yaml(document: &OpenApi) -> Result<Response, ApiError> {
    written("application/yaml", openapi::yaml(document))
}

fn written(
    media_type: &'static str,
    text: Result<String, OpenApiError>,
) -> Result<Response, ApiError> {
    let text = text.map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, media_type)], text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn each_door_has_its_own_document_in_both_forms() {
        let native = (openapi_json().await, openapi_yaml().await);
        let arrakis = (arrakis_openapi_json().await, arrakis_openapi_yaml().await);
        for ((json, yaml), document, path) in [
            (native, openapi::document(), "/v1/sandboxes:"),
            (arrakis, arrakis::openapi::document(), "/v1/vms:"),
        ] {
            let (json, yaml) = (json.unwrap(), yaml.unwrap());
            assert_eq!(json.headers()[header::CONTENT_TYPE], "application/json");
            assert_eq!(yaml.headers()[header::CONTENT_TYPE], "application/yaml");
            let json = json.into_body().collect().await.unwrap().to_bytes();
            assert!(json == openapi::json(&document).unwrap(), "{path}");
            let yaml = yaml.into_body().collect().await.unwrap().to_bytes();
            let yaml = String::from_utf8(yaml.to_vec()).unwrap();
            assert!(yaml.lines().any(|line| line.trim() == path), "{path}");
        }
    }
}

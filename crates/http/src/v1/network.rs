//! What sandboxes may reach, and what they do; changes to a sandbox.

use super::{Api, convert};
use crate::error::ApiError;
use crate::json::{JsonBody, Target};
use crate::to_the_end::to_the_end;
use axum::extract::State;
use axum::{Extension, Json};
use pando_api as api;
use pando_engine::request::{Caller, LifetimeChange};
use std::sync::Arc;

/// Changes a sandbox. Nothing is changed unless all of it is right.
pub(super) async fn change(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
    JsonBody(request): JsonBody<api::ChangeSandboxRequest>,
) -> Result<Json<api::Sandbox>, ApiError> {
    let lifetime = convert::lifetime::change_of(&request)?;
    let egress = request
        .egress
        .as_ref()
        .map(convert::network::egress)
        .transpose()?;
    let urls = Arc::clone(&api.urls);
    let changed = to_the_end(async move {
        let engine = &api.engine;
        let id = engine.get(&caller, &sandbox).await?.id;
        if let Some(policy) = egress {
            engine.set_egress(&caller, id.as_str(), policy).await?;
        }
        if lifetime != LifetimeChange::default() {
            engine
                .change_lifetime(&caller, id.as_str(), lifetime)
                .await?;
        }
        engine.get(&caller, id.as_str()).await
    });
    Ok(Json(convert::sandbox(&urls, changed.await?)))
}

/// Changes a template.
pub(super) async fn change_template(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    JsonBody(request): JsonBody<api::ChangeRequest>,
) -> Result<Json<api::Template>, ApiError> {
    let template = convert::template_ref(&name)?;
    let nothing = || ApiError::BadParameter("nothing is to be changed: give `egress`".to_owned());
    let policy = convert::network::egress(request.egress.as_ref().ok_or_else(nothing)?)?;
    let changed = to_the_end(async move {
        api.engine
            .set_template_egress(&caller, &template, &policy)
            .await
    });
    Ok(Json(convert::template(changed.await?)))
}

/// What one is connected with, and what it was refused.
pub(super) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<Json<api::Network>, ApiError> {
    let report = api.engine.network(&caller, &sandbox).await?;
    Ok(Json(convert::network::report(report)))
}

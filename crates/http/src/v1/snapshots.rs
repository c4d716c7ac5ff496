//! Snapshots: take, look, remove; fork, go back, pause, resume; the tree and the disk.

use super::convert::snapshots as convert;
use super::{Api, convert::sandbox};
use crate::error::ApiError;
use crate::json::{JsonBody, Params, Target};
use crate::to_the_end::to_the_end;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use http::StatusCode;
use pando_api as api;
use pando_engine::error_chain;
use pando_engine::request::{Caller, Forked};
use std::sync::Arc;

/// Takes one of a sandbox.
pub(super) async fn take(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(of): Target,
    JsonBody(request): JsonBody<api::TakeSnapshotRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let request = convert::take(request)?;
    let taken = to_the_end(async move { api.engine.snapshot(&caller, &of, request).await }).await?;
    Ok((StatusCode::CREATED, Json(convert::snapshot(taken))))
}

/// Lists the caller's.
pub(super) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<Vec<(String, String)>>,
) -> Result<Json<api::SnapshotList>, ApiError> {
    let wanted = convert::label_filter(query)?;
    let snapshots = api.engine.snapshots(&caller).await?;
    Ok(Json(api::SnapshotList {
        snapshots: snapshots
            .into_iter()
            .filter(|snapshot| convert::has_labels(snapshot, &wanted))
            .map(convert::snapshot)
            .collect(),
    }))
}

/// Describes one.
pub(super) async fn get(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(snapshot): Target,
) -> Result<Json<api::Snapshot>, ApiError> {
    let found = api.engine.get_snapshot(&caller, &snapshot).await?;
    Ok(Json(convert::snapshot(found)))
}

/// Removes one.
pub(super) async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(snapshot): Target,
) -> Result<StatusCode, ApiError> {
    to_the_end(async move { api.engine.remove_snapshot(&caller, &snapshot).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes children of a sandbox.
pub(super) async fn fork(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(parent): Target,
    JsonBody(request): JsonBody<api::ForkRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let (request, urls) = (convert::fork(request)?, Arc::clone(&api.urls));
    let forked =
        to_the_end(async move { api.engine.fork(&caller, &parent, request).await }).await?;
    log_failures(&forked);
    Ok((StatusCode::CREATED, Json(convert::forked(&urls, forked))))
}

/// The answer is no refusal, so that nobody else writes down why children are missing. One
/// line, however many: they mostly fail for the same reason.
fn log_failures(forked: &Forked) {
    let mut failures = forked
        .children
        .iter()
        .filter_map(|child| child.as_ref().err());
    if let Some(first) = failures.next() {
        let failed = 1 + failures.count();
        let wanted = forked.children.len();
        let error = error_chain(first);
        tracing::warn!(
            failed,
            wanted,
            error,
            "children of a fork could not be made"
        );
    }
}

/// Puts a sandbox back into a kept state.
pub(super) async fn roll_back(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(of): Target,
    JsonBody(request): JsonBody<api::RollbackRequest>,
) -> Result<Json<api::RolledBack>, ApiError> {
    let request = convert::rollback(request)?;
    let urls = Arc::clone(&api.urls);
    let done = to_the_end(async move { api.engine.roll_back(&caller, &of, request).await }).await?;
    Ok(Json(convert::rolled_back(&urls, done)))
}

/// Puts a sandbox on disk.
pub(super) async fn pause(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(target): Target,
) -> Result<Json<api::Sandbox>, ApiError> {
    let urls = Arc::clone(&api.urls);
    let paused = to_the_end(async move { api.engine.pause(&caller, &target).await }).await?;
    Ok(Json(sandbox(&urls, paused)))
}

/// Lets a paused one go on.
pub(super) async fn resume(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(target): Target,
) -> Result<Json<api::Sandbox>, ApiError> {
    let urls = Arc::clone(&api.urls);
    let resumed = to_the_end(async move { api.engine.resume(&caller, &target).await }).await?;
    Ok(Json(sandbox(&urls, resumed)))
}

/// The caller's snapshots and sandboxes.
pub(super) async fn tree(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<api::Tree>, ApiError> {
    Ok(Json(convert::tree(
        &api.urls,
        api.engine.tree(&caller).await?,
    )))
}

/// Where disk space has gone.
pub(super) async fn disk_usage(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<api::DiskUsage>, ApiError> {
    let usage = api.engine.disk_usage(&caller).await?;
    Ok(Json(convert::disk_usage(usage)))
}

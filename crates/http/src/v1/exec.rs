//! Running a program to its end, and what runs.

use super::{Api, convert};
use crate::error::ApiError;
use crate::json::{JsonBody, Target};
use axum::extract::State;
use axum::{Extension, Json};
use pando_api as api;
use pando_engine::request::Caller;

/// Runs a program to its end.
pub(super) async fn exec(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
    JsonBody(request): JsonBody<api::ExecRequest>,
) -> Result<Json<api::ExecResponse>, ApiError> {
    let request_id = request.request_id.clone();
    let (command, stdin) = convert::exec(request)?;
    let result = api
        .engine
        .exec(&caller, &sandbox, command, stdin, request_id)
        .await?;
    Ok(Json(convert::exec_result(result)))
}

/// Lists the processes that can be attached to.
pub(super) async fn processes(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(sandbox): Target,
) -> Result<Json<api::ProcessList>, ApiError> {
    let processes = api.engine.processes(&caller, &sandbox).await?;
    Ok(Json(api::ProcessList {
        processes: processes.into_iter().map(convert::process).collect(),
    }))
}

//! Ports: what listens, which of the host's lead to them, who may use them.

use super::{Api, convert};
use crate::error::ApiError;
use crate::json::{JsonBody, Target};
use crate::to_the_end::to_the_end;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use http::StatusCode;
use pando_api as api;
use pando_engine::OpenPort;
use pando_engine::request::Caller;

/// Lists a sandbox's.
pub(super) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(of): Target,
) -> Result<Json<api::PortList>, ApiError> {
    let sandbox = api.engine.get(&caller, &of).await?.id;
    let ports = api.engine.ports(&caller, sandbox.as_str()).await?;
    let ports = ports.into_iter();
    Ok(Json(api::PortList {
        ports: ports
            .map(|port| convert::port(&api.urls, &sandbox, port))
            .collect(),
        url_template: api.urls.template(sandbox.as_str()),
        token: api.engine.traffic_token(&caller, sandbox.as_str())?,
    }))
}

/// Offers one.
pub(super) async fn open(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Target(of): Target,
    JsonBody(request): JsonBody<api::OpenPortRequest>,
) -> Result<Json<api::Port>, ApiError> {
    let request = OpenPort {
        port: check(request.port)?,
        raw: request.raw,
        access: request.access.as_deref().map(str::parse).transpose()?,
    };
    let sandbox = api.engine.get(&caller, &of).await?.id;
    let opened = to_the_end({
        let (engine, sandbox) = (api.engine.clone(), sandbox.clone());
        async move { engine.open_port(&caller, sandbox.as_str(), request).await }
    });
    Ok(Json(convert::port(&api.urls, &sandbox, opened.await?)))
}

/// Takes back what was said of one.
pub(super) async fn close(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path((of, port)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let port = check(port.parse().unwrap_or(0))?;
    to_the_end(async move { api.engine.close_port(&caller, &of, port).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check(port: u16) -> Result<u16, ApiError> {
    let right = Some(port).filter(|port| *port > 0);
    right.ok_or_else(|| ApiError::BadParameter("`port` must be 1 to 65535".to_owned()))
}

//! The native door: `/v1`, `/healthz`, `/metrics`, `/openapi.json|yaml`, `/openapi/…`.
//!
//! The router is built from [`pando_api::route::ROUTES`]: an operation without
//! a handler does not compile.

mod convert;
mod events;
mod exec;
mod files;
mod network;
mod ports;
mod sandboxes;
mod server_info;
mod snapshots;
mod stdin_queue;
mod stream;

use crate::gate::{no_method, no_route};
use crate::metrics::Metrics;
use crate::trace;
use crate::urls::Urls;
use axum::Router;
use axum::routing::{MethodFilter, MethodRouter, on};
use pando_api::route::{Method, Operation, ROUTES};
use pando_engine::Engine;
use std::sync::Arc;

/// What every handler can use.
#[derive(Clone)]
pub(super) struct Api {
    engine: Engine,
    metrics: Arc<Metrics>,
    urls: Arc<Urls>,
}

/// The routes of the native door.
pub(crate) fn router(engine: Engine, metrics: Arc<Metrics>, urls: Arc<Urls>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        router = router.route(route.path, handler(route.operation, filter(route.method)));
    }
    router
        .route_layer(axum::middleware::from_fn(trace::name_route))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Api {
            engine,
            metrics,
            urls,
        })
}

fn handler(operation: Operation, filter: MethodFilter) -> MethodRouter<Api> {
    match operation {
        Operation::CreateSandbox => on(filter, sandboxes::create),
        Operation::ListSandboxes => on(filter, sandboxes::list),
        Operation::GetSandbox => on(filter, sandboxes::get),
        Operation::ChangeSandbox => on(filter, network::change),
        Operation::Network => on(filter, network::show),
        Operation::RemoveSandbox => on(filter, sandboxes::remove),
        Operation::StopSandbox => on(filter, sandboxes::stop),
        Operation::StartSandbox => on(filter, sandboxes::start),
        Operation::PauseSandbox => on(filter, snapshots::pause),
        Operation::ResumeSandbox => on(filter, snapshots::resume),
        Operation::TakeSnapshot => on(filter, snapshots::take),
        Operation::ForkSandbox => on(filter, snapshots::fork),
        Operation::RollBackSandbox => on(filter, snapshots::roll_back),
        Operation::ListPorts => on(filter, ports::list),
        Operation::OpenPort => on(filter, ports::open),
        Operation::ClosePort => on(filter, ports::close),
        Operation::ListSnapshots => on(filter, snapshots::list),
        Operation::GetSnapshot => on(filter, snapshots::get),
        Operation::RemoveSnapshot => on(filter, snapshots::remove),
        Operation::Tree => on(filter, snapshots::tree),
        Operation::DiskUsage => on(filter, snapshots::disk_usage),
        Operation::Ping => on(filter, sandboxes::ping),
        Operation::ConsoleLog => on(filter, sandboxes::console),
        Operation::Exec => on(filter, exec::exec),
        Operation::ListProcesses => on(filter, exec::processes),
        Operation::ExecStream => on(filter, stream::open),
        Operation::ReadFile => on(filter, files::read),
        Operation::WriteFile | Operation::UploadFile => on(filter, files::write),
        Operation::RemoveFile => on(filter, files::remove),
        Operation::StatFile => on(filter, files::stat),
        Operation::ListFiles => on(filter, files::list),
        Operation::MakeDir => on(filter, files::make_dir),
        Operation::MoveFile => on(filter, files::move_file),
        Operation::ListEvents => on(filter, events::events),
        Operation::ListTemplates => on(filter, server_info::templates),
        Operation::WarmTemplate => on(filter, server_info::warm),
        Operation::ChangeTemplate => on(filter, network::change_template),
        Operation::RemoveTemplate => on(filter, server_info::remove_template),
        Operation::BakeTemplate => on(filter, server_info::bake),
        Operation::Status => on(filter, server_info::status),
        Operation::Health => on(filter, server_info::health),
        Operation::Metrics => on(filter, server_info::metrics),
        Operation::OpenApiJson => on(filter, server_info::openapi_json),
        Operation::OpenApiYaml => on(filter, server_info::openapi_yaml),
        Operation::ArrakisOpenApiJson => on(filter, server_info::arrakis_openapi_json),
        Operation::ArrakisOpenApiYaml => on(filter, server_info::arrakis_openapi_yaml),
    }
}

fn filter(method: Method) -> MethodFilter {
    match method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Put => MethodFilter::PUT,
        Method::Patch => MethodFilter::PATCH,
        Method::Delete => MethodFilter::DELETE,
    }
}

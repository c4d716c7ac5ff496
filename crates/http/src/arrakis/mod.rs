//! The Arrakis door: what clients of that API ask, in its field names and status words.
//!
//! ```text
//!   /v1/vms…  /v1/health     clients of version 2
//!   /vms…     /health        clients before it
//! ```
//!
//! A VM there is a sandbox here, found by its name alone. Its clients know no key, so a
//! request without one may pass under the conditions of [`access`] and is then the tenant
//! [`TENANT`]'s, which owns nothing but what was made through this door.
//!
//! Answers are JSON objects, also where there is nothing to say, since its clients parse
//! every body. Refusals are `{"error":{"message"}}`; a path that is none of its routes is
//! answered by a plain `404 page not found`. docs/arrakis.md lists what differs.

pub(crate) mod access;
mod guest;
pub(crate) mod openapi;
mod shapes;
mod vms;

use crate::error::{ApiError, Refusal};
use crate::gate::{no_method, no_route};
use crate::trace;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use http::{HeaderValue, StatusCode, header};
use pando_engine::Engine;
use pando_engine::request::Caller;
use pando_types::TemplateRef;
use serde::Serialize;
use shapes::{Done, Refused, RefusedError};

/// Whose sandboxes are that were asked for without a key.
pub const TENANT: &str = "arrakis";

/// What every handler of this door can use.
#[derive(Clone)]
pub(crate) struct Door {
    engine: Engine,
    /// What VMs are made from, if that was said.
    template: Option<TemplateRef>,
}

/// Where its clients look: those of version 2 below `/v1`, older ones at the root.
const PREFIXES: [&str; 2] = ["/v1", ""];

/// Its routes, with the methods of each.
fn routes() -> [(&'static str, &'static [&'static str], MethodRouter<Door>); 6] {
    [
        ("/health", &["GET"], get(vms::health)),
        (
            "/vms",
            &["GET", "POST", "DELETE"],
            get(vms::list).post(vms::start).delete(vms::destroy_all),
        ),
        (
            "/vms/{name}",
            &["GET", "PATCH", "DELETE"],
            get(vms::info).patch(vms::change).delete(vms::destroy),
        ),
        ("/vms/{name}/snapshots", &["POST"], post(vms::snapshot)),
        ("/vms/{name}/cmd", &["POST"], post(guest::run)),
        (
            "/vms/{name}/files",
            &["GET", "POST"],
            get(guest::download).post(guest::upload),
        ),
    ]
}

/// Method and path of every route of this door.
#[cfg(test)]
pub(crate) fn every_route() -> Vec<(&'static str, String)> {
    let both = PREFIXES.iter().flat_map(|prefix| {
        let all = routes().into_iter();
        all.flat_map(move |(path, methods, _)| {
            let path = format!("{prefix}{path}");
            methods.iter().map(move |method| (*method, path.clone()))
        })
    });
    both.collect()
}

/// The router of this door.
pub(crate) fn router(engine: Engine, template: Option<TemplateRef>) -> Router {
    let mut router = Router::new();
    for prefix in PREFIXES {
        for (path, _, handler) in routes() {
            router = router.route(&format!("{prefix}{path}"), handler);
        }
    }
    let door = Door { engine, template };
    router
        .route_layer(axum::middleware::from_fn(trace::name_route))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(door.clone(), by_names))
        .with_state(door)
}

/// Tells the engine of a request, and has its refusal speak of VMs by their names: this door's
/// clients never see an id.
async fn by_names(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    door.engine.came_without_key();
    let mut response = next.run(request).await;
    if let Some(refusal) = response.extensions_mut().get_mut::<Refusal>()
        && let Ok(all) = door.engine.list(&caller).await
    {
        for vm in all {
            if let Some(name) = vm.name {
                let message = refusal.message.replace(vm.id.as_str(), name.as_str());
                refusal.message = message;
            }
        }
    }
    response
}

/// A JSON object with a newline behind it, as this API's own server writes them.
fn answer(body: &impl Serialize) -> Response {
    let json = HeaderValue::from_static("application/json");
    match serde_json::to_string(body) {
        Ok(text) => ([(header::CONTENT_TYPE, json)], text + "\n").into_response(),
        Err(error) => ApiError::Internal(error.to_string()).into_response(),
    }
}

/// What is answered where there is nothing to say.
fn done() -> Response {
    answer(&Done { success: true })
}

/// Writes a refusal as this door's clients expect it.
pub(crate) fn write(status: StatusCode, refusal: &Refusal) -> Response {
    match refusal.code() {
        "route_not_found" => (status, "404 page not found\n").into_response(),
        "method_not_allowed" => (status, Body::empty()).into_response(),
        _ => {
            let message = refusal.message.clone();
            let mut response = answer(&Refused {
                error: RefusedError { message },
            });
            *response.status_mut() = status;
            response
        }
    }
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::BadParameter(message.into())
}

//! Tools that only Arrakis's MCP server has, under its names, on the caller's own sandboxes.
//! The other four of its nine are tools of Pando that take its arguments too.

use super::sandboxes::destroy;
use super::shapes::{Brief, Destroyed, Nothing, Sandbox, about, in_brief, lines};
use crate::answer::{Answer, Done, Failure};
use crate::server::{Call, Server};
use pando_client::ClientError;
use pando_client::api::{self, CreateSandboxRequest, RollbackRequest};
use rmcp::handler::server::common::Extension;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StartSandbox {
    /// The sandbox's name.
    name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreSnapshot {
    /// Name of the sandbox: of a new one, or of one to put back.
    vm_name: String,
    /// Id or name of the snapshot.
    snapshot_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneVm {
    /// Name or id.
    vm_name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateVmState {
    /// Name or id.
    vm_name: String,
    /// The state it is to have.
    status: VmState,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum VmState {
    Stopped,
    Paused,
    Running,
}

#[tool_router(router = arrakis_tools, vis = "pub(crate)")]
impl Server {
    /// Makes the sandbox of this name run: a new one, or the one that is stopped or paused.
    /// Not for choosing size or template (create_sandbox).
    /// Example: {"name":"web"}
    #[tool(
        output_schema = schema_for_output::<Sandbox>(),
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true)
    )]
    async fn start_sandbox(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<StartSandbox>,
    ) -> Answer<Sandbox> {
        if let Some(sandbox) = named(&call, &arguments.name).await? {
            return Ok(about(make_run(&call, sandbox).await?));
        }
        let request = CreateSandboxRequest {
            name: Some(arguments.name),
            ..CreateSandboxRequest::default()
        };
        Ok(about(call.client.create(&request).await?))
    }

    /// Makes a sandbox of this name from a snapshot; if there is one of this name, it is put back in place.
    /// Not for keeping what an existing one has done since (snapshot it first, or rollback with save).
    /// Example: {"vm_name":"web","snapshot_id":"before-upgrade"}
    #[tool(
        output_schema = schema_for_output::<Sandbox>(),
        annotations(read_only_hint = false, destructive_hint = true)
    )]
    async fn restore_snapshot(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<RestoreSnapshot>,
    ) -> Answer<Sandbox> {
        let Some(sandbox) = named(&call, &arguments.vm_name).await? else {
            let request = CreateSandboxRequest {
                from: Some(arguments.snapshot_id),
                name: Some(arguments.vm_name),
                ..CreateSandboxRequest::default()
            };
            return Ok(about(call.client.create(&request).await?));
        };
        let request = RollbackRequest {
            snapshot: arguments.snapshot_id,
            save: None,
        };
        Ok(about(
            call.client.roll_back(&sandbox.id, &request).await?.sandbox,
        ))
    }

    /// The same as destroy_sandbox.
    /// Not for a break in the work (pause, stop).
    /// Example: {"vm_name":"web"}
    #[tool(
        output_schema = schema_for_output::<Destroyed>(),
        annotations(read_only_hint = false, destructive_hint = true)
    )]
    async fn destroy_vm(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<OneVm>,
    ) -> Answer<Destroyed> {
        destroy(&call, &arguments.vm_name).await
    }

    /// Removes ALL of your sandboxes and their disks for good, also those that were not made here; snapshots stay.
    /// Not for cleaning up after yourself (destroy_sandbox for each).
    /// Example: {}
    #[tool(
        output_schema = schema_for_output::<Destroyed>(),
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true)
    )]
    async fn destroy_all_vms(
        &self,
        Extension(call): Extension<Call>,
        Parameters(_): Parameters<Nothing>,
    ) -> Answer<Destroyed> {
        let mut destroyed = Vec::new();
        for sandbox in call.client.list().await? {
            match call.client.remove(&sandbox.id).await {
                Ok(()) => destroyed.push(sandbox.id),
                // Somebody else was quicker.
                Err(error) if error.code() == Some("sandbox_not_found") => {}
                Err(error) => return Err(error.into()),
            }
        }
        let rows = destroyed.iter().map(|id| format!("destroyed {id}"));
        let text = lines(rows, "there were none");
        Ok(Done::new(text, Destroyed { destroyed }))
    }

    /// Stops, pauses or runs a sandbox; one that is in that state already stays.
    /// Not for removing it (destroy_vm).
    /// Example: {"vm_name":"web","status":"paused"}
    #[tool(
        output_schema = schema_for_output::<Brief>(),
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true)
    )]
    async fn update_vm_state(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<UpdateVmState>,
    ) -> Answer<Brief> {
        let sandbox = call.client.get(&arguments.vm_name).await?;
        let now = match (arguments.status, &*sandbox.state) {
            (VmState::Stopped, "stopped") | (VmState::Paused, "paused") => sandbox,
            (VmState::Stopped, _) => call.client.stop(&sandbox.id).await?,
            (VmState::Paused, _) => call.client.pause(&sandbox.id).await?,
            (VmState::Running, _) => make_run(&call, sandbox).await?,
        };
        Ok(in_brief(now))
    }
}

/// The caller's sandbox of exactly this name.
async fn named(call: &Call, name: &str) -> Result<Option<api::Sandbox>, Failure> {
    let all = call.client.list().await?;
    Ok(all
        .into_iter()
        .find(|sandbox| sandbox.name.as_deref() == Some(name)))
}

/// Brings a sandbox to run from whatever state it is in.
async fn make_run(call: &Call, sandbox: api::Sandbox) -> Result<api::Sandbox, ClientError> {
    match &*sandbox.state {
        "running" => Ok(sandbox),
        "paused" => call.client.resume(&sandbox.id).await,
        _ => call.client.start(&sandbox.id).await,
    }
}

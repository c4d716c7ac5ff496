//! Making sandboxes, looking at them, stopping them, and their ports.

use super::shapes::{Brief, Destroyed, OneSandbox, Page, Sandbox, about, in_brief, lines};
use crate::answer::{Answer, Done, Failure};
use crate::server::{Call, Server};
use pando_client::api::{CreateSandboxRequest, OpenPortRequest};
use rmcp::handler::server::common::Extension;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSandbox {
    /// A name of your own, unique: letters, digits, `._-`. None when left out.
    name: Option<String>,
    /// What to make it from; `base` (Debian with Python and git) when left out.
    template: Option<String>,
    /// 1, 2, 4 or 8; the template's default when left out.
    cpus: Option<u32>,
    /// MiB: 256 to 16384, a power of two; the template's default when left out.
    memory_mib: Option<u32>,
    /// Environment of every process in it; nothing more when left out.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Free text for your own use; none when left out.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Seconds until its time is over, 1 to 2592000; for ever when left out.
    timeout_s: Option<f64>,
    /// Seconds without use until its time is over; for ever when left out.
    idle_timeout_s: Option<f64>,
    /// When its time is over: `kill` (removed, with its disk) or `pause`; `kill` when left out.
    on_timeout: Option<String>,
    /// Wake from pause when a tool or a request to a port needs it; false when left out.
    #[serde(default)]
    auto_resume: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExposePort {
    /// Id or name.
    sandbox: String,
    /// The port inside, 1 to 65535. A server must listen there; on which address does not matter.
    port: u16,
    /// Also take a TCP port of the host for it, for protocols other than HTTP; false when left out.
    #[serde(default)]
    raw: bool,
    /// `public` (whoever knows the URL) or `token` (with the API key); unchanged when left out.
    access: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Sandboxes {
    sandboxes: Vec<Sandbox>,
    left_out: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Port {
    url: String,
    port: u16,
    open: bool,
    raw: Option<String>,
    access: String,
}

#[tool_router(router = sandbox_tools, vis = "pub(crate)")]
impl Server {
    /// Makes a new sandbox, a Linux virtual machine, and waits until it runs.
    /// Not for going on from a snapshot (create_from_snapshot).
    /// Example: {"name":"web","memory_mib":1024}
    #[tool(
        output_schema = schema_for_output::<Sandbox>(),
        annotations(read_only_hint = false, destructive_hint = false)
    )]
    async fn create_sandbox(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<CreateSandbox>,
    ) -> Answer<Sandbox> {
        let request = CreateSandboxRequest {
            name: arguments.name,
            template: arguments.template,
            cpus: arguments.cpus,
            memory_mib: arguments.memory_mib,
            env: arguments.env,
            labels: arguments.labels,
            timeout_s: arguments.timeout_s,
            idle_timeout_s: arguments.idle_timeout_s,
            on_timeout: arguments.on_timeout,
            auto_resume: arguments.auto_resume,
            ..CreateSandboxRequest::default()
        };
        Ok(about(call.client.create(&request).await?))
    }

    /// Lists your sandboxes with their states, the oldest first, 200 at a time.
    /// Not needed for one whose name you know (inspect_sandbox).
    /// Example: {}
    #[tool(
        output_schema = schema_for_output::<Sandboxes>(),
        annotations(read_only_hint = true)
    )]
    async fn list_sandboxes(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<Page>,
    ) -> Answer<Sandboxes> {
        let list = call.client.list().await?;
        let (list, left_out) = arguments.of(list);
        let sandboxes: Vec<_> = list.into_iter().map(Sandbox::from).collect();
        let mut text = lines(sandboxes.iter().map(Sandbox::line), "no sandboxes");
        text.push_str(&arguments.rest(left_out));
        let sandboxes = Sandboxes {
            sandboxes,
            left_out,
        };
        Ok(Done::new(text, sandboxes))
    }

    /// Describes one sandbox: state, size, where its ports are reached.
    /// Not for what happens inside it (run_command).
    /// Example: {"sandbox":"web"}
    #[tool(
        output_schema = schema_for_output::<Sandbox>(),
        annotations(read_only_hint = true)
    )]
    async fn inspect_sandbox(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<OneSandbox>,
    ) -> Answer<Sandbox> {
        Ok(about(call.client.get(&arguments.sandbox).await?))
    }

    /// Removes a sandbox and its disk for good; its snapshots stay.
    /// Not for a break in the work (pause, stop).
    /// Example: {"sandbox":"web"}
    #[tool(
        output_schema = schema_for_output::<Destroyed>(),
        annotations(read_only_hint = false, destructive_hint = true)
    )]
    async fn destroy_sandbox(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<OneSandbox>,
    ) -> Answer<Destroyed> {
        destroy(&call, &arguments.sandbox).await
    }

    /// Says at which URL a browser or program outside reaches a server in a sandbox.
    /// Not for calling it from inside: use 127.0.0.1 there.
    /// Example: {"sandbox":"web","port":8000}
    #[tool(
        output_schema = schema_for_output::<Port>(),
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true)
    )]
    async fn expose_port(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<ExposePort>,
    ) -> Answer<Port> {
        let request = OpenPortRequest {
            port: arguments.port,
            raw: arguments.raw,
            access: arguments.access,
        };
        let port = call.client.open_port(&arguments.sandbox, &request).await?;
        // Only the list looks what listens.
        let listed = call.client.ports(&arguments.sandbox).await?.ports;
        let open = listed
            .iter()
            .any(|each| each.port == port.port && each.open);
        let port = Port {
            url: port.url,
            port: port.port,
            open,
            raw: port.raw,
            access: port.access,
        };
        let mut text = format!("{} (access: {})", port.url, port.access);
        if let Some(raw) = &port.raw {
            text.push_str(&format!("\nTCP: {raw}"));
        }
        if !port.open {
            text.push_str("\nnothing listens there yet");
        }
        Ok(Done::new(text, port))
    }

    /// Puts a running sandbox on disk, memory included, so that it costs nothing.
    /// Not for going back to later more than once (snapshot).
    /// Example: {"sandbox":"web"}
    #[tool(
        output_schema = schema_for_output::<Brief>(),
        annotations(read_only_hint = false, destructive_hint = false)
    )]
    async fn pause(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<OneSandbox>,
    ) -> Answer<Brief> {
        Ok(in_brief(call.client.pause(&arguments.sandbox).await?))
    }

    /// Lets a paused sandbox go on where it was.
    /// Not for a stopped one (start).
    /// Example: {"sandbox":"web"}
    #[tool(
        output_schema = schema_for_output::<Brief>(),
        annotations(read_only_hint = false, destructive_hint = false)
    )]
    async fn resume(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<OneSandbox>,
    ) -> Answer<Brief> {
        Ok(in_brief(call.client.resume(&arguments.sandbox).await?))
    }

    /// Powers a sandbox off: its processes end, its disk is kept.
    /// Not for keeping what runs in it (pause).
    /// Example: {"sandbox":"web"}
    #[tool(
        output_schema = schema_for_output::<Brief>(),
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true)
    )]
    async fn stop(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<OneSandbox>,
    ) -> Answer<Brief> {
        Ok(in_brief(call.client.stop(&arguments.sandbox).await?))
    }

    /// Powers a stopped sandbox on again, on its disk.
    /// Not for a paused one (resume).
    /// Example: {"sandbox":"web"}
    #[tool(
        output_schema = schema_for_output::<Brief>(),
        annotations(read_only_hint = false, destructive_hint = false)
    )]
    async fn start(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<OneSandbox>,
    ) -> Answer<Brief> {
        Ok(in_brief(call.client.start(&arguments.sandbox).await?))
    }
}

/// Removes a sandbox and says its id.
pub(super) async fn destroy(call: &Call, sandbox: &str) -> Result<Done<Destroyed>, Failure> {
    let id = call.client.get(sandbox).await?.id;
    call.client.remove(&id).await?;
    let destroyed = vec![id.clone()];
    Ok(Done::new(
        format!("destroyed {id}"),
        Destroyed { destroyed },
    ))
}

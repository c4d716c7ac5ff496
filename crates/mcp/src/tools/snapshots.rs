//! Keeping states, going back, going several ways.

use super::shapes::{Nothing, Sandbox, Snapshot, lines};
use crate::answer::{Answer, Done, Failure};
use crate::arguments;
use crate::server::{Call, Server};
use pando_client::api::{
    self, CreateSandboxRequest, ForkRequest, ForkedChild, RollbackRequest, TakeSnapshotRequest,
};
use rmcp::handler::server::common::Extension;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeSnapshot {
    /// Id or name.
    sandbox: Option<String>,
    /// The same as `sandbox`.
    vm_name: Option<String>,
    /// A name of your own for the snapshot, unique; it has an id alone when left out.
    name: Option<String>,
    /// The same as `name`.
    snapshot_id: Option<String>,
    /// A sentence on what it is.
    note: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// Id or name.
    sandbox: String,
    /// How many, 1 to 1000; 1 when left out.
    count: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rollback {
    /// Id or name.
    sandbox: String,
    /// Id or name of the snapshot.
    snapshot: String,
    /// Keep what is left behind as a snapshot of this name first; it is lost when left out.
    save: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateFromSnapshot {
    /// Id or name of the snapshot.
    snapshot: String,
    /// A name for the new sandbox, unique; none when left out.
    name: Option<String>,
    /// Take its disk and not its memory, as after a power-on; false when left out.
    #[serde(default)]
    disk_only: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Forks {
    children: Vec<Sandbox>,
    errors: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RolledBack {
    sandbox: Sandbox,
    saved: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Tree {
    snapshots: Vec<Snapshot>,
    sandboxes: Vec<Sandbox>,
}

#[tool_router(router = snapshot_tools, vis = "pub(crate)")]
impl Server {
    /// Keeps a sandbox's present state, memory, processes and disk; it runs on. Returns the snapshot.
    /// Not for copies that run at once (fork).
    /// Example: {"sandbox":"web","name":"before-upgrade"}
    #[tool(
        output_schema = schema_for_output::<Snapshot>(),
        annotations(read_only_hint = false, destructive_hint = false)
    )]
    async fn snapshot(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<TakeSnapshot>,
    ) -> Answer<Snapshot> {
        let sandbox = arguments::sandbox(arguments.sandbox, arguments.vm_name)?;
        let name = arguments::optional(
            ("name", arguments.name),
            ("snapshot_id", arguments.snapshot_id),
        )?;
        let request = TakeSnapshotRequest {
            name,
            note: arguments.note.unwrap_or_default(),
            ..TakeSnapshotRequest::default()
        };
        let snapshot = Snapshot::from(call.client.snapshot(&sandbox, &request).await?);
        let named = snapshot.name.as_ref().unwrap_or(&snapshot.id);
        let text = format!("Created snapshot with ID: {named}");
        Ok(Done::new(text, snapshot))
    }

    /// Makes running children of a running sandbox that go on from its present state, to try several ways at once.
    /// Not for keeping a state (snapshot).
    /// Example: {"sandbox":"web","count":3}
    #[tool(
        output_schema = schema_for_output::<Forks>(),
        annotations(read_only_hint = false, destructive_hint = false)
    )]
    async fn fork(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<Fork>,
    ) -> Answer<Forks> {
        let request = ForkRequest {
            count: arguments.count,
            ..ForkRequest::default()
        };
        let forked = call.client.fork(&arguments.sandbox, &request).await?;
        let (mut children, mut errors) = (Vec::new(), Vec::new());
        for child in forked.children {
            match child {
                ForkedChild::Sandbox(child) => children.push(Sandbox::from(*child)),
                ForkedChild::Error(error) => {
                    errors.push(format!("{}: {}", error.code, error.message));
                }
            }
        }
        let rows = children.iter().map(Sandbox::line);
        let failed = errors.iter().map(|error| format!("error {error}"));
        let text = lines(rows.chain(failed), "no children");
        Ok(Done::new(text, Forks { children, errors }))
    }

    /// Puts a sandbox back, in place, into a state kept by snapshot: id, name and URLs stay, running servers go on.
    /// Not for looking at an old state beside the present one (create_from_snapshot).
    /// Example: {"sandbox":"web","snapshot":"before-upgrade"}
    #[tool(
        output_schema = schema_for_output::<RolledBack>(),
        annotations(read_only_hint = false, destructive_hint = true)
    )]
    async fn rollback(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<Rollback>,
    ) -> Answer<RolledBack> {
        let request = RollbackRequest {
            snapshot: arguments.snapshot,
            save: arguments.save,
        };
        let done = call.client.roll_back(&arguments.sandbox, &request).await?;
        let sandbox = Sandbox::from(done.sandbox);
        let saved = done.saved.map(|saved| saved.name.unwrap_or(saved.id));
        let text = format!("{}, back at {}", sandbox.line(), request.snapshot);
        Ok(Done::new(text, RolledBack { sandbox, saved }))
    }

    /// Makes a new running sandbox that goes on from a snapshot.
    /// Not for going back in the same sandbox (rollback).
    /// Example: {"snapshot":"before-upgrade","name":"old-web"}
    #[tool(
        output_schema = schema_for_output::<Sandbox>(),
        annotations(read_only_hint = false, destructive_hint = false)
    )]
    async fn create_from_snapshot(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<CreateFromSnapshot>,
    ) -> Answer<Sandbox> {
        create_from(
            &call,
            arguments.snapshot,
            arguments.name,
            arguments.disk_only,
        )
        .await
    }

    /// Shows all snapshots and sandboxes and what each came from.
    /// Not for the state of one sandbox (inspect_sandbox).
    /// Example: {}
    #[tool(
        output_schema = schema_for_output::<Tree>(),
        annotations(read_only_hint = true)
    )]
    async fn tree(
        &self,
        Extension(call): Extension<Call>,
        Parameters(_): Parameters<Nothing>,
    ) -> Answer<Tree> {
        let tree = call.client.tree().await?;
        let text = draw(&tree);
        let tree = Tree {
            snapshots: tree.snapshots.into_iter().map(Snapshot::from).collect(),
            sandboxes: tree.sandboxes.into_iter().map(Sandbox::from).collect(),
        };
        Ok(Done::new(text, tree))
    }
}

/// Makes a sandbox from a snapshot.
pub(super) async fn create_from(
    call: &Call,
    snapshot: String,
    name: Option<String>,
    disk_only: bool,
) -> Result<Done<Sandbox>, Failure> {
    let request = CreateSandboxRequest {
        from: Some(snapshot),
        name,
        disk_only,
        ..CreateSandboxRequest::default()
    };
    let sandbox = Sandbox::from(call.client.create(&request).await?);
    Ok(Done::new(sandbox.line(), sandbox))
}

/// A line for each snapshot and sandbox, indented below what it came from.
fn draw(tree: &api::Tree) -> String {
    let known = |id: &Option<String>| {
        let parent = id.as_ref()?;
        tree.snapshots
            .iter()
            .any(|snapshot| snapshot.id == *parent)
            .then(|| parent.clone())
    };
    let snapshots = tree.snapshots.iter().map(|snapshot| {
        let name = snapshot.name.as_deref().unwrap_or("-");
        let line = format!("snapshot {} {name} {}", snapshot.id, snapshot.created_at);
        (known(&snapshot.parent), snapshot.id.clone(), line)
    });
    let sandboxes = tree.sandboxes.iter().map(|sandbox| {
        let name = sandbox.name.as_deref().unwrap_or("-");
        let line = format!("sandbox {} {name} {}", sandbox.id, sandbox.state);
        (known(&sandbox.parent), sandbox.id.clone(), line)
    });
    let nodes: Vec<(Option<String>, String, String)> = snapshots.chain(sandboxes).collect();
    // Not by recursion: how deep it goes is up to whoever takes snapshots.
    let mut drawn = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    let below = |parent: Option<&str>, depth: usize| {
        let children = nodes.iter().enumerate().rev();
        let children = children.filter(move |(_, node)| node.0.as_deref() == parent);
        children
            .map(|(index, _)| (index, depth))
            .collect::<Vec<_>>()
    };
    open.extend(below(None, 0));
    while let Some((index, depth)) = open.pop() {
        let (_, id, line) = &nodes[index];
        drawn.push(format!("{}{line}", "  ".repeat(depth)));
        open.extend(below(Some(id), depth + 1));
    }
    lines(drawn.into_iter(), "nothing yet")
}

//! Keeping states, going back, going several ways.

use super::shapes::{Brief, Page, Sandbox, Snapshot, about, in_brief, lines};
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
use std::collections::{HashMap, HashSet};
use tokio::sync::oneshot;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeSnapshot {
    /// Id or name; or give `vm_name`.
    sandbox: Option<String>,
    /// The same as `sandbox`.
    vm_name: Option<String>,
    /// A name of your own for the snapshot, unique; it has an id alone when left out.
    name: Option<String>,
    /// The same as `name`.
    snapshot_id: Option<String>,
    /// A sentence on what it is; none when left out.
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
    /// Seconds until its time is over, see create_sandbox; for ever when left out.
    timeout_s: Option<f64>,
    /// Seconds without use; for ever when left out.
    idle_timeout_s: Option<f64>,
    /// `kill` or `pause`; `kill` when left out.
    on_timeout: Option<String>,
    /// Wake from pause when needed; false when left out.
    #[serde(default)]
    auto_resume: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Forks {
    children: Vec<Sandbox>,
    errors: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RolledBack {
    sandbox: Brief,
    saved: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Tree {
    snapshots: Vec<Snapshot>,
    sandboxes: Vec<Brief>,
    left_out: usize,
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
        children(fork(&call, arguments.sandbox, request).await?)
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
        let Done {
            text,
            data: sandbox,
        } = in_brief(done.sandbox);
        let saved = done.saved.map(|saved| saved.name.unwrap_or(saved.id));
        let text = format!("{text}, back at {}", request.snapshot);
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
        let request = CreateSandboxRequest {
            from: Some(arguments.snapshot),
            name: arguments.name,
            disk_only: arguments.disk_only,
            timeout_s: arguments.timeout_s,
            idle_timeout_s: arguments.idle_timeout_s,
            on_timeout: arguments.on_timeout,
            auto_resume: arguments.auto_resume,
            ..CreateSandboxRequest::default()
        };
        Ok(about(call.client.create(&request).await?))
    }

    /// Shows snapshots and sandboxes and what each came from, 200 at a time.
    /// Not for the state of one sandbox (inspect_sandbox).
    /// Example: {}
    #[tool(
        output_schema = schema_for_output::<Tree>(),
        annotations(read_only_hint = true)
    )]
    async fn tree(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<Page>,
    ) -> Answer<Tree> {
        let tree = call.client.tree().await?;
        let (drawn, left_out) = arguments.of(draw(&tree));
        let shown: HashSet<_> = drawn.iter().map(|row| row.id.clone()).collect();
        let mut text = lines(drawn.into_iter().map(|row| row.line), "nothing yet");
        text.push_str(&arguments.rest(left_out));
        let snapshots = tree.snapshots.into_iter();
        let snapshots = snapshots.filter(|snapshot| shown.contains(&snapshot.id));
        let sandboxes = tree.sandboxes.into_iter();
        let sandboxes = sandboxes.filter(|sandbox| shown.contains(&sandbox.id));
        let tree = Tree {
            snapshots: snapshots.map(Snapshot::from).collect(),
            sandboxes: sandboxes
                .map(|sandbox| Sandbox::from(sandbox).into())
                .collect(),
            left_out,
        };
        Ok(Done::new(text, tree))
    }
}

/// Forks. The daemon makes all children also for whoever hangs up; where the call is dropped
/// before they are there, they are removed again.
async fn fork(
    call: &Call,
    sandbox: String,
    request: ForkRequest,
) -> Result<Vec<ForkedChild>, Failure> {
    let client = call.client.clone();
    let (answer, answered) = oneshot::channel();
    call.afterwards.spawn(async move {
        let forked = client.fork(&sandbox, &request).await;
        let Err(Ok(unwanted)) = answer.send(forked) else {
            return;
        };
        for child in unwanted.children {
            if let ForkedChild::Sandbox(child) = child
                && let Err(error) = client.remove(&child.id).await
            {
                tracing::warn!(sandbox = child.id, %error, "a child of a cancelled fork is left");
            }
        }
    });
    let forked = answered.await;
    let forked = forked.map_err(|_| Failure::new("internal", "the call broke off"))?;
    Ok(forked?.children)
}

/// The children that were made; a failure if there is none.
fn children(forked: Vec<ForkedChild>) -> Answer<Forks> {
    let (mut children, mut failures) = (Vec::new(), Vec::new());
    for child in forked {
        match child {
            ForkedChild::Sandbox(child) => children.push(Sandbox::from(*child)),
            ForkedChild::Error(error) => failures.push(Failure {
                code: error.code,
                message: error.message,
                hint: error.hint,
            }),
        }
    }
    if children.is_empty()
        && let Some(first) = failures.first()
    {
        return Err(first.clone());
    }
    let errors: Vec<_> = failures.iter().map(Failure::text).collect();
    let rows = children.iter().map(Sandbox::line);
    let text = lines(rows.chain(errors.iter().cloned()), "no children");
    Ok(Done::new(text, Forks { children, errors }))
}

/// Levels that are drawn as such: of a chain of a thousand snapshots most of the drawing
/// would be blanks. The structured answer has each one's parent.
const MAX_INDENT: usize = 24;

/// A snapshot or sandbox in the drawing of the tree.
struct Row {
    id: String,
    line: String,
}

/// All snapshots and sandboxes, each below what it came from and indented. What came from
/// something that is gone stands at the edge.
fn draw(tree: &api::Tree) -> Vec<Row> {
    let snapshots = tree.snapshots.iter().map(|snapshot| {
        let name = snapshot.name.as_deref().unwrap_or("-");
        let line = format!("snapshot {} {name} {}", snapshot.id, snapshot.created_at);
        (&snapshot.id, &snapshot.parent, line)
    });
    let sandboxes = tree.sandboxes.iter().map(|sandbox| {
        let name = sandbox.name.as_deref().unwrap_or("-");
        let line = format!("sandbox {} {name} {}", sandbox.id, sandbox.state);
        (&sandbox.id, &sandbox.parent, line)
    });
    let known: HashSet<_> = tree.snapshots.iter().map(|snapshot| &snapshot.id).collect();
    let mut below: HashMap<Option<&String>, Vec<(&String, String)>> = HashMap::new();
    for (id, parent, line) in snapshots.chain(sandboxes) {
        let parent = parent.as_ref().filter(|parent| known.contains(parent));
        below.entry(parent).or_default().push((id, line));
    }
    // Not by recursion: how deep it goes is up to whoever takes snapshots.
    let mut rows = Vec::new();
    let mut open = vec![(0, below.remove(&None).unwrap_or_default().into_iter())];
    while let Some((depth, children)) = open.last_mut() {
        let Some((id, line)) = children.next() else {
            open.pop();
            continue;
        };
        let line = format!("{}{line}", "  ".repeat(MAX_INDENT.min(*depth)));
        let depth = *depth + 1;
        rows.push(Row {
            id: id.clone(),
            line,
        });
        if let Some(children) = below.remove(&Some(id)) {
            open.push((depth, children.into_iter()));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_client::api::ForkError;
    use serde_json::json;

    fn snapshot(id: &str, parent: Option<&str>) -> api::Snapshot {
        let snapshot = json!({
            "id": id, "name": null, "kind": "full", "sandbox": "s", "parent": parent,
            "template": "base", "cpus": 1, "memory_mib": 512, "labels": {}, "note": "",
            "created_at": "now", "pause_ms": 1.0, "durable_ms": 1.0, "bytes": 0,
            "dirty_pages": 0, "clean": true,
        });
        serde_json::from_value(snapshot).unwrap()
    }

    fn drawn(snapshots: Vec<api::Snapshot>) -> Vec<String> {
        let tree = api::Tree {
            snapshots,
            sandboxes: Vec::new(),
        };
        draw(&tree).into_iter().map(|row| row.line).collect()
    }

    #[test]
    fn each_stands_below_what_it_came_from() {
        let lines = drawn(vec![
            snapshot("a", Some("gone")),
            snapshot("b", None),
            snapshot("c", Some("a")),
            snapshot("d", Some("c")),
            snapshot("e", Some("a")),
        ]);
        let words = [
            "snapshot a - now",
            "  snapshot c - now",
            "    snapshot d - now",
            "  snapshot e - now",
            "snapshot b - now",
        ];
        assert_eq!(lines, words);
    }

    #[test]
    fn a_long_chain_is_drawn_whole_and_not_wide() {
        let parent = |n: u32| n.checked_sub(1).map(|before| format!("n{before}"));
        let chain = (0..5000).map(|n| snapshot(&format!("n{n}"), parent(n).as_deref()));
        let lines = drawn(chain.collect());
        assert_eq!(lines.len(), 5000);
        assert!(lines.iter().all(|line| line.len() < 100));
    }

    #[test]
    fn a_fork_without_children_is_a_failure_with_its_hint() {
        let error = ForkedChild::Error(ForkError {
            code: "quota_exceeded".to_owned(),
            message: "no more".to_owned(),
            hint: Some("remove some".to_owned()),
        });
        let failure = children(vec![error.clone(), error]).unwrap_err();
        assert_eq!(failure.code, "quota_exceeded");
        assert_eq!(failure.hint.as_deref(), Some("remove some"));
    }
}

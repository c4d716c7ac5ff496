//! What tools answer with, smaller than what the API says: a model reads it.

use pando_client::api;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names one sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneSandbox {
    /// Id or name.
    pub(super) sandbox: String,
}

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) name: Option<String>,
    pub(super) state: String,
    pub(super) state_reason: Option<String>,
    pub(super) template: String,
    pub(super) parent: Option<String>,
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
    pub(super) url_template: String,
    pub(super) created_at: String,
}

impl From<api::Sandbox> for Sandbox {
    fn from(sandbox: api::Sandbox) -> Self {
        Self {
            id: sandbox.id,
            name: sandbox.name,
            state: sandbox.state,
            state_reason: sandbox.state_reason,
            template: sandbox.template,
            parent: sandbox.parent,
            cpus: sandbox.cpus,
            memory_mib: sandbox.memory_mib,
            url_template: sandbox.url_template,
            created_at: sandbox.created_at,
        }
    }
}

impl Sandbox {
    /// A line about it.
    pub(super) fn line(&self) -> String {
        let mut line = self.id.clone();
        if let Some(name) = &self.name {
            line.push_str(&format!(" ({name})"));
        }
        line.push_str(&format!(": {}", self.state));
        if let Some(reason) = &self.state_reason {
            line.push_str(&format!(", {reason}"));
        }
        line.push_str(&format!(", {}, {} MiB", self.template, self.memory_mib));
        line
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Sandboxes {
    pub(super) sandboxes: Vec<Sandbox>,
}

impl Sandboxes {
    /// A line for each.
    pub(super) fn lines(&self) -> String {
        lines(self.sandboxes.iter().map(Sandbox::line), "no sandboxes")
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Snapshot {
    pub(super) id: String,
    pub(super) name: Option<String>,
    pub(super) kind: String,
    pub(super) sandbox: String,
    pub(super) parent: Option<String>,
    pub(super) note: String,
    pub(super) bytes: u64,
    pub(super) created_at: String,
}

impl From<api::Snapshot> for Snapshot {
    fn from(snapshot: api::Snapshot) -> Self {
        Self {
            id: snapshot.id,
            name: snapshot.name,
            kind: snapshot.kind,
            sandbox: snapshot.sandbox,
            parent: snapshot.parent,
            note: snapshot.note,
            bytes: snapshot.bytes,
            created_at: snapshot.created_at,
        }
    }
}

/// What was removed, by id.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Destroyed {
    pub(super) destroyed: Vec<String>,
}

/// Lines, or a word where there are none.
pub(super) fn lines(lines: impl Iterator<Item = String>, none: &str) -> String {
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        none.to_owned()
    } else {
        lines.join("\n")
    }
}

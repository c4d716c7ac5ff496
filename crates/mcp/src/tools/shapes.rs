//! What tools answer with, smaller than what the API says: a model reads it.

use crate::answer::Done;
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

/// What may have changed of a sandbox whose rest is known.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Brief {
    id: String,
    name: Option<String>,
    state: String,
    parent: Option<String>,
}

impl From<Sandbox> for Brief {
    fn from(sandbox: Sandbox) -> Self {
        Self {
            id: sandbox.id,
            name: sandbox.name,
            state: sandbox.state,
            parent: sandbox.parent,
        }
    }
}

/// What has become of a sandbox as an answer.
pub(super) fn in_brief(sandbox: api::Sandbox) -> Done<Brief> {
    let sandbox = Sandbox::from(sandbox);
    Done::new(sandbox.line(), sandbox.into())
}

/// Entries of a list in one answer: some ten thousand tokens of a model's context.
const PAGE: usize = 200;

/// Which entries of a list.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    /// Entries to skip, for the rest of a long list; 0 when left out.
    #[serde(default)]
    skip: usize,
}

impl Page {
    /// What of `all` is on it, and how many come after.
    pub(super) fn of<T>(self, all: Vec<T>) -> (Vec<T>, usize) {
        let left_out = all.len().saturating_sub(self.skip).saturating_sub(PAGE);
        (
            all.into_iter().skip(self.skip).take(PAGE).collect(),
            left_out,
        )
    }

    /// A line that says how the rest is read, where there is one.
    pub(super) fn rest(self, left_out: usize) -> String {
        match left_out {
            0 => String::new(),
            _ => format!(
                "\n… {left_out} left out; skip={} shows more",
                self.skip + PAGE
            ),
        }
    }
}

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
    pub(super) expires_at: Option<String>,
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
            expires_at: sandbox.expires_at,
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
        if let Some(end) = &self.expires_at {
            line.push_str(&format!(", until {end}"));
        }
        line
    }
}

/// One sandbox as an answer.
pub(super) fn about(sandbox: api::Sandbox) -> Done<Sandbox> {
    let sandbox = Sandbox::from(sandbox);
    Done::new(sandbox.line(), sandbox)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_give_each_entry_once() {
        let all: Vec<_> = (0..PAGE * 2 + 7).collect();
        let (mut seen, mut page) = (Vec::new(), Page { skip: 0 });
        loop {
            let (part, left_out) = page.of(all.clone());
            page.skip += part.len();
            seen.extend(part);
            assert_eq!(left_out, all.len() - seen.len());
            if left_out == 0 {
                break;
            }
        }
        assert_eq!(seen, all);
        assert_eq!(Page { skip: usize::MAX }.of(all).1, 0);
        assert_eq!(Page { skip: 0 }.rest(0), "");
        assert!(Page { skip: 200 }.rest(5).contains("5 left out; skip=400"));
    }
}

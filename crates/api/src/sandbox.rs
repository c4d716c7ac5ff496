//! Sandboxes: asking for one, and what is said about one.

use crate::{Egress, Limits, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Make a sandbox; the answer comes when it is ready. Every field may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandboxRequest {
    /// `name` or `name:tag`; `base` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Instead of a template, the snapshot to make it from: id, a prefix of it that fits no other, or name. Its size is the
    /// sandbox's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// With `from`: take the snapshot's disk and not its memory, so that it starts as after a power-on. Works also where
    /// the memory cannot be used on this host.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disk_only: bool,
    /// A name, unique among your sandboxes: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 1, 2, 4 or 8; the template's default, or the snapshot's, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// 256, 512, 1024, 2048, 4096, 8192 or 16384; the template's default, or the snapshot's, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Environment of every process in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Free text for your own use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What it may reach. When left out: what the snapshot's sandbox might, or what the template says, which is everything
    /// but private addresses unless it was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// `auto` (when left out): the quickest there is, a waiting clone first. `snapshot`: loaded for this request from the
    /// template's saved machine. `boot`: its kernel boots from nothing, which takes seconds without KVM; it then shares no
    /// kernel secret, such as the layout of its memory, with other sandboxes. With `from` it can only be `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// What it may use of its host, beside its size.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// Seconds from the moment at which it runs until its time is over, 1 to 2592000 (30 days); anew whenever it goes on after
    /// a pause. When left out or `null`: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Seconds without use until its time is over, 1 to 2592000. Use is a call, a followed process, a file on its way, a
    /// request or bytes of its ports. When left out or `null`: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_s: Option<f64>,
    /// What becomes of it when either is over. `kill` (when left out): it is removed, with its disk. `pause`: it is put on
    /// disk, memory included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
    /// Let it go on when it is paused, by whomever, and a call needs it running or there is traffic to its ports; that waits
    /// until it does.
    #[serde(default, skip_serializing_if = "is_false")]
    pub auto_resume: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A sandbox. Its environment is not repeated here, since it often holds secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// 20 characters, the first is `s`.
    pub id: String,
    /// The name it was given.
    pub name: Option<String>,
    /// `creating`, `running`, `stopping`, `stopped`, `paused` or `failed`.
    pub state: String,
    /// Why it is in this state, where there is more to say.
    pub state_reason: Option<String>,
    /// Where it failed: the last lines of its console. Not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_console: Vec<String>,
    /// The template it was made from, or its first ancestor.
    pub template: String,
    /// The id of the snapshot that its state came from last: the one it was made from or went back to, or the last that was
    /// taken of it. That snapshot may be gone.
    pub parent: Option<String>,
    /// What stands between it and the host.
    pub isolation: Isolation,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The labels it was given.
    pub labels: BTreeMap<String, String>,
    /// What it may reach.
    pub egress: Egress,
    /// What it may use of its host; what is not there is not limited.
    #[serde(default)]
    pub limits: Limits,
    /// What it costs its host; only in the answer about one sandbox, and in a list that was asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Where its ports are reached by HTTP; `{port}` stands for the port's number.
    pub url_template: String,
    /// When it was made: RFC 3339, UTC.
    pub created_at: String,
    /// When it last began to run: RFC 3339, UTC.
    pub started_at: Option<String>,
    /// How long it is there from the moment at which it runs.
    pub timeout_s: Option<f64>,
    /// When that is over: RFC 3339, UTC. Without a timeout, and while it is paused, there is none.
    pub expires_at: Option<String>,
    /// How long it is there without use.
    pub idle_timeout_s: Option<f64>,
    /// When it was last used, as far as this daemon knows: RFC 3339, UTC. While something uses it, that is now; a new daemon
    /// begins with the time at which it found the sandbox.
    pub last_used_at: String,
    /// What becomes of it when either is over: `kill` or `pause`.
    pub on_timeout: String,
    /// Whether a call or traffic lets it go on when it is paused.
    pub auto_resume: bool,
}

/// What stands between a sandbox and the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Isolation {
    /// The VMM and its version.
    pub vmm: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Why this accelerator was chosen.
    pub reason: String,
    /// The jail layers in force.
    pub layers: Vec<String>,
}

/// The caller's sandboxes, the newest last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    /// One entry each.
    pub sandboxes: Vec<Sandbox>,
}

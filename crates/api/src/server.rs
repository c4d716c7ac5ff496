//! The daemon, its templates and its journal.

use crate::Egress;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The last lines of a sandbox's serial console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsoleLog {
    /// What the kernel and the agent wrote there; bytes that are not UTF-8 are replaced.
    pub console: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Grows by one each; pass it as `after` to read on.
    pub sequence: u64,
    /// When: RFC 3339, UTC.
    pub at: String,
    /// A word such as `sandbox.created`.
    pub kind: String,
    /// The id it happened to.
    pub subject: String,
    /// For a person.
    pub detail: String,
}

/// A part of the journal, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// One entry each.
    pub events: Vec<Event>,
}

/// CPUs and memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Size {
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
}

/// A template that sandboxes can be made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// `name`, or `name:tag`.
    pub name: String,
    /// The hash of its root file system and kernel.
    pub content_hash: String,
    /// What its sandboxes may reach, unless they say it themselves.
    pub egress: Egress,
    /// The sizes that are baked: a sandbox of these starts at once.
    pub baked: Vec<Size>,
    /// What its files take on the host.
    pub disk_bytes: u64,
    /// When it was made: RFC 3339, UTC.
    pub created_at: String,
}

/// The templates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    /// One entry each.
    pub templates: Vec<Template>,
}

/// Bake a template at a size ahead of its first use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmRequest {
    /// Virtual CPUs; 1 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory in MiB; 512 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
}

/// Make a template, or make it again where its contents would differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BakeRequest {
    /// Whether guests trust the certificates that the host trusts beyond Debian's.
    #[serde(default)]
    pub host_ca: bool,
    /// Virtual CPUs of the size that is baked; 1 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory in MiB of the size that is baked; 512 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
}

/// What the daemon says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The running daemon's version.
    pub version: String,
    /// Its process id on its host.
    pub pid: u32,
    /// How long it has been up.
    pub uptime_s: u64,
    /// The VMM and its version.
    pub vmm: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Why this accelerator was chosen.
    pub accelerator_reason: String,
    /// How many sandboxes there are in each state.
    pub sandboxes: BTreeMap<String, u64>,
    /// What waits for the next request.
    pub pool: Pool,
    /// Starts that wait for their turn on the CPUs or have it.
    #[serde(default)]
    pub starts_under_way: u64,
    /// Starts that were refused since the daemon's: by a limit, a full host or a busy one.
    #[serde(default)]
    pub starts_refused: u64,
}

/// Work done ahead of requests: processes and clones that wait to become sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Slots that wait, by what they are made from.
    pub slots: Vec<PoolSlots>,
    /// Slots that are being made now.
    pub filling: u64,
    /// Why fewer wait than are wanted; absent when nothing is in the way.
    pub limited_by: Option<String>,
    /// Sandboxes made since the daemon's start, by what they were made from: `warm`, `bound`, `generic`, or `none` when
    /// nothing waited.
    pub claims: BTreeMap<String, u64>,
}

/// Slots of one template and size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolSlots {
    /// The template; absent for processes that fit any template of this size.
    pub template: Option<String>,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// `warm`: a clone that has answered and waits, stopped. `bound`: a VMM with this template's layers open. `generic`: a
    /// VMM that fits any template of this size.
    pub kind: String,
    /// How many wait.
    pub waiting: u64,
    /// How many are wanted.
    pub wanted: u64,
}

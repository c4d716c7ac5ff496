//! All that came out, for people and machines.

use crate::bounds::Definition;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::verdict::Verdict;
use pando_client::api::Status;
use serde::Serialize;

/// Grows when a field changes its meaning.
pub(crate) const FORMAT: u32 = 1;

/// A benchmark that was run to its end.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub(crate) format: u32,
    /// RFC 3339, UTC.
    pub(crate) started_at: String,
    pub(crate) duration_s: f64,
    pub(crate) machine: Machine,
    pub(crate) pando: Pando,
    pub(crate) figures: Vec<Figure>,
    pub(crate) definitions: Vec<Definition>,
    pub(crate) verdicts: Vec<Verdict>,
    /// Figures of experiments that were repeated, from the first time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) first_attempts: Vec<Figure>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pando {
    pub(crate) version: String,
    pub(crate) vmm: String,
    pub(crate) accelerator: String,
    pub(crate) accelerator_reason: String,
}

impl Report {
    /// What SPECIFICATION.md says of the figures, and whether it is so.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }
}

impl From<Status> for Pando {
    fn from(status: Status) -> Self {
        Self {
            version: status.version,
            vmm: status.vmm,
            accelerator: status.accelerator,
            accelerator_reason: status.accelerator_reason,
        }
    }
}

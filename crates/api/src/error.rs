//! The shape of every refusal.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer with a status of 400 and above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorResponse {
    /// What went wrong.
    pub error: ErrorBody,
}

/// What went wrong, for a machine and for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// A stable word; each has a section in `docs/errors.md`.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
    /// What the caller can do about it, and where it is explained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// With `daemon_restarted`: the process that runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<String>,
    /// Names this request in the daemon's log.
    pub request_id: String,
}

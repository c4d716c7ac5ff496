//! The words that every part of Pando shares: ids, names, sizes, states, limits.
//!
//! Pure values; no I/O, no wire format. Wire and disk types convert to and from
//! these at their own edge.

mod egress;
mod id;
mod isolation;
mod lifetime;
pub mod limits;
mod name;
mod sandbox_limits;
mod size;
mod snapshot;
mod state;

pub use egress::{
    EGRESS_RULES, EgressAction, EgressEntry, EgressError, EgressFault, EgressHost, EgressPolicy,
    EgressProtocol, EgressRule,
};
pub use id::{IdError, SandboxId, SnapshotId, TemplateId, is_id_shaped};
pub use isolation::{Accelerator, Isolation};
pub use lifetime::{Lifespan, LifespanError, OnTimeout};
pub use name::{Name, NameError, TemplateRef};
pub use sandbox_limits::{LimitError, LimitField, SandboxLimits};
pub use size::{CPUS, MEMORY_MIB, Size, SizeError};
pub use snapshot::SnapshotKind;
pub use state::SandboxState;

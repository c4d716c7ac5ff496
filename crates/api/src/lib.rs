//! The native REST API as types: what goes over the wire under `/v1`.
//!
//! [`route::ROUTES`] is the one list of its routes; the router, the client and
//! the OpenAPI document ([`openapi`]) are made from it. Nothing but `http`,
//! `client` and what stands on `client` knows these types.

mod error;
mod exec;
mod file;
mod lifetime;
mod limits;
mod network;
pub mod openapi;
mod port;
pub mod route;
mod sandbox;
mod server;
mod snapshot;
pub mod stream;

pub use error::{ErrorBody, ErrorResponse};
pub use exec::{ExecRequest, ExecResponse, Process, ProcessList};
pub use file::{FileInfo, FileList, FileType, MakeDirRequest, MoveRequest};
pub use lifetime::ChangeSandboxRequest;
pub use limits::{Limits, Usage};
pub use network::{ChangeRequest, Connection, Egress, Network, NetworkTotals, Refusal};
pub use port::{OpenPortRequest, Port, PortList};
pub use sandbox::{CreateSandboxRequest, Isolation, Sandbox, SandboxList};
pub use server::{
    BakeRequest, ConsoleLog, Event, EventList, Pool, PoolSlots, Size, Status, Template,
    TemplateList, WarmRequest,
};
pub use snapshot::{
    DiskUsage, ForkError, ForkRequest, Forked, ForkedChild, RollbackRequest, RolledBack, Snapshot,
    SnapshotList, TakeSnapshotRequest, Tree,
};

//! What a sandbox is allowed to do and when: the state machine, bakes, tenants.
//!
//! Knows no HTTP route and no VMM: doors translate to [`request`] values, and
//! every VM is behind a shim process that is spoken to over its socket.
//!
//! [`Engine`] is the surface. `lifecycle` says what is legal when and has no I/O;
//! `sandboxes` holds the entries; `spawn` makes them run and notices their end;
//! `lifetime` ends those whose time is over and wakes those that sleep;
//! `bake` makes snapshots of templates; `pool` keeps slots that wait for requests;
//! `shims` starts the processes; `admission` says who may start now.

mod admission;
mod adopt;
mod bake;
mod convert;
mod cost;
mod ending;
mod engine;
mod error;
mod exec;
mod groups;
mod headroom;
mod host;
mod identity;
mod ids;
mod journal;
mod keys;
mod lifecycle;
mod lifetime;
mod limits;
mod network;
mod observe;
mod pool;
mod ports;
mod reference;
pub mod request;
mod sandboxes;
mod shims;
mod snapshots;
mod source;
mod spawn;
pub mod stand_in;
mod template;
mod trace;
mod usage;

pub use admission::{AdmissionConfig, TenantLimits};
pub use engine::{Engine, EngineConfig, OpenError};
pub use error::{EngineError, Interruption};
pub use identity::may_be_of_a_sandbox;
pub use observe::{Finished, Observer, Operation, Outcome};
pub use pando_shim::client::{PortError, Protocol};
pub use pando_shim::error_chain;
pub use pando_shim::host::AcceleratorWish;
pub use pool::{PoolConfig, WarmCount};
pub use ports::{AGENT_PORT, Access, GuestPort, OpenPort, Pass, Port, PortsConfig, Refused};
pub use template::BakeOptions;

/// A connection as the two bodies of a request: see [`GuestPort::request`].
pub use pando_wire::tunnel;

/// The body of a raw request to a guest, and of its answer: streamed, never buffered whole.
pub type GuestBody = pando_shim::client::Body;

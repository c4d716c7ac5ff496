//! One sandbox's process: it owns the VMM, the channel, the NIC and process output.
//!
//! Everything that parses bytes a guest controls lives here, jailed, never in the
//! daemon. The daemon starts a shim with a listening socket and a [`spec`], talks to
//! it through [`client`], and may die and come back: the shim goes on.

mod chain;
pub mod client;
mod error_chain;
mod failure;
pub mod host;
mod limits;
mod machine;
mod network;
mod passthrough;
mod port_client;
mod ports;
mod processes;
mod replay;
mod restore;
mod serve;
mod service;
mod slot;
mod snapshot;
pub mod spec;
mod stall;

pub use error_chain::error_chain;
pub use serve::{CAUSE_FILE, LISTENER_FD, ShimError, run};
pub use stall::NO_SPACE;

//! What goes over wires inside Pando: the channel between shim and agent, and
//! the Connect services of agent and shim.
//!
//! [`channel`] frames a byte stream so that it survives snapshots; HTTP/2 runs
//! over it. The services are generated from `proto/` by `cargo xtask codegen`.

pub mod channel;
mod steps;
pub mod tunnel;

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    rust_2018_idioms
)]
mod generated {
    include!("generated/mod.rs");
}
pub use generated::{filesystem, pando::guest::v1 as guest, pando::shim::v1 as shim, process};
pub use steps::Steps;

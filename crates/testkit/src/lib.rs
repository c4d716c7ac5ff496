//! A real daemon in a temporary world, and plain verbs for tests.
//!
//! Nothing here pretends: the daemon is the release binary, sandboxes are VMs. A
//! [`World`] has a state directory of its own and shares the user's cache of images and
//! bakes. When a test fails, the daemon's and the shims' logs are printed.
#![allow(
    clippy::print_stderr,
    reason = "what a failed test prints is all that is left of its world"
)]

mod api;
mod footprint;
mod host;
pub mod lab;
mod loop_fs;
mod swap;
mod world;

pub use api::{Answer, Api};
pub use footprint::Footprint;
pub use host::available_mib;
pub use lab::Lab;
pub use loop_fs::{FileSystem, LoopFs};
pub use swap::SwapFile;
pub use world::{Options, Ran, World, pando};

//! Containers: what a sandbox is compared with. The same program, from the start of the
//! runtime's process to its end, with a root file system of only what that program needs.

mod bundle;
mod runtime;

pub(crate) use runtime::{Containers, Running, Runtime};

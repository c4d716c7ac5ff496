//! What a process may still do once it is confined: files ([`landlock`]) and
//! system calls ([`seccomp`]).
//!
//! Both are prepared in the parent, where they may allocate and fail with a
//! reason, and applied by [`crate::spawn`] between fork and exec.

#[cfg(feature = "attempts")]
pub mod attempts;
mod calls;
pub mod landlock;
mod layers;
pub mod seccomp;

pub use layers::{Layer, Layers};

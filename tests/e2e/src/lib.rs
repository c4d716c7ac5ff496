//! End-to-end tests live in `tests/`: each starts a real daemon and real VMs.
//!
//! Here is what a program of theirs shares with them: see [`jail`].

pub mod jail;

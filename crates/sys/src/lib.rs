//! The crate with `unsafe`: what Linux offers beyond `std` and that Pando needs,
//! each behind a safe function. The only other one is `crates/preload`, which
//! runs inside QEMU.
//!
//! | module | what |
//! |---|---|
//! | [`spawn`] | a child with chosen descriptors, identity and jail |
//! | [`jail`] | landlock rulesets and seccomp filters |
//! | [`memory`] | which pages of a VM are its own, which were written, and their contents |
//! | [`mod@file`] | reflinks, sparse copies, holes, durable folders |
//! | [`allocator`] | giving large buffers back to the kernel |
//! | [`host`] | memory and disk that are left |
//! | [`guest`] | what the agent does inside the VM |
//! | [`socket`] | who is at the other end |
//! | [`tcp`] | whose a connection within the host is |
//! | [`process`] | limits and costs of a process that runs |
//! | [`cgroup`] | control groups on the host |
//! | [`clock`] | the rate of the host's time stamp counter |
//! | [`random`] | bytes from the kernel |
//! | [`readiness`] | waiting for descriptors that are no sockets |
#![allow(unsafe_code)]

pub mod allocator;
pub mod cgroup;
pub mod clock;
pub mod file;
pub mod guest;
pub mod host;
pub mod jail;
pub mod memory;
pub mod process;
pub mod random;
pub mod readiness;
pub mod socket;
pub mod spawn;
pub mod tcp;

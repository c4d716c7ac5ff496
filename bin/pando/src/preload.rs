//! The library for QEMU, carried inside this program.

/// With it the kernel tracks what a VM writes. Put there by the build script; empty if it
/// was not built first.
pub(crate) static PRELOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));

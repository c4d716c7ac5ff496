//! The guest agent's program, carried inside this one.

/// A static ELF program for the guest.
pub(crate) const AGENT: &[u8] = &[];

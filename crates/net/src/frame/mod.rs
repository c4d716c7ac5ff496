//! Frames: what the guest sent, and what is written to it.
//!
//! Reading is pure and looks only at what the gateway decides by. Checksums are not
//! compared: between two ends of a socket pair no bit falls over, and whoever sends wrong
//! ones on purpose has gained nothing. Written ones are right, since the guest's kernel
//! compares them.

mod read;
mod write;

pub use read::{Echo, Frame, Packet, Payload, TcpHead, read};
pub use write::{
    Unreachable, arp_reply, echo_reply, neighbor_advertisement, reset, udp, unreachable,
};
pub(crate) use write::{question, sent_datagram, sent_ping};

#[cfg(test)]
mod tests;

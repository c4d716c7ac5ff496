//! The channel between a sandbox's shim and its agent.
//!
//! Two virtio-serial ports, `ctl` and `data`, each a byte stream that carries
//! *frames*; HTTP/2 runs inside the DATA frames of each port.
//!
//! ```text
//!  shim                                                agent
//!  hyper client ── ByteStream ── Port ═══ frames ═══ Port ── ByteStream ── hyper server
//! ```
//!
//! The layer exists because a memory snapshot freezes the stream at an arbitrary
//! byte and a clone sees what was meant for its parent:
//!
//! * After every start the host sends HELLO under a fresh random *epoch*; the
//!   agent drops its old HTTP/2 connection whole and answers HELLO_ACK. The host
//!   ignores every byte before that answer; frames of another epoch are ignored.
//! * Before a snapshot FREEZE/FROZEN bring both directions to a frame boundary
//!   with nothing in flight; THAW/THAWED let the running source go on, with the host's clock.
//!
//! [`Channel`] is the shim's end. [`GuestPort`] is the agent's.

mod frame;
mod guest;
mod host;
mod http2;
mod port;
#[cfg(test)]
mod tests;

pub use frame::{
    Decoder, Frame, HEADER_BYTES, Header, Kind, MAX_CONTROL_BYTES, MAX_DATA_BYTES, RESYNC_BYTES,
};
pub use guest::{GuestPort, PortHandler, ServePort};
pub use host::{Channel, FreezeError, OpenError, OpenOptions, ThawError};
pub use http2::{Body, BoxError, Connection, base_uri, server_builder};
pub use port::{ByteStream, Port, PortControl};

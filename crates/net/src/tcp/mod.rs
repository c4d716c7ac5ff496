//! TCP: a connection of the guest, carried by one of the host.
//!
//! ```text
//!  guest ══ frames ══► stack (rings) ──► inspector? ──► host socket ══► world
//!                                ◄────────────────────
//! ```
//!
//! The guest's SYN is held until the host's connection stands, so that the guest sees what
//! the host saw: an answer, a refusal, no way. Then one task per connection copies between
//! the stack's rings and the socket. Where one side does not read, its ring fills, its
//! window closes, and nothing is read from the other: there are no queues in between.

mod connection;
mod dial;
mod host;
mod pump;
mod stack;

pub(crate) use connection::Connection;
pub(crate) use dial::{Opening, serve};

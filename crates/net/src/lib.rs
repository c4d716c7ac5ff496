//! The gateway: all that a guest's network card can talk to.
//!
//! The card is one end of a datagram socket pair, a frame each; the other end is
//! here, in the sandbox's own process. Inside addresses are the same everywhere:
//! the guest is 10.0.2.15/24, gateway and name server are 10.0.2.2.
//!
//! For now nothing is let through, and everything is refused at once, so that a
//! program in the guest gets an error instead of a time-out:
//!
//! | the guest sends | it gets |
//! |---|---|
//! | an ARP request for the gateway | the gateway's address |
//! | a ping of the gateway | the reply |
//! | a name query to 10.0.2.2:53 | `REFUSED` |
//! | a TCP segment to anywhere | a reset |
//! | a UDP datagram or ping to anywhere else | ICMP "administratively prohibited" |
//! | anything else, malformed frames, fragments | nothing |
//!
//! [`answer`] decides that and is pure; [`Gateway`] moves the frames. The guest
//! is hostile: nothing here allocates more than a frame, panics or waits for it.

mod answer;
mod dns;
mod gateway;

pub use answer::{Answer, FRAME_BYTES, GATEWAY_ADDRESS, GATEWAY_MAC, GUEST_ADDRESS, answer};
pub use gateway::{Gateway, GatewayStats};

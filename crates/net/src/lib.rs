//! The gateway: all that a guest's network card can talk to.
//!
//! The card is one end of a datagram socket pair, a frame each; the other end is here, in
//! the sandbox's own process. Inside addresses are the same everywhere: the guest is
//! 10.0.2.15/24 and fd70:616e:646f::15/64, gateway and name server are 10.0.2.2 and
//! fd70:616e:646f::2. What the guest sends to the world is sent again by sockets of this
//! process, if the policy lets it:
//!
//! ```text
//!              ┌─ frame ──► ARP, NDP, ping of the gateway ──► answered
//!              │
//!  card ──► gateway ─ tcp ──► policy ──► dial ──► inspect? ──► a task per connection
//!              ├─ flow ─────► policy ──► a connected UDP or ping socket
//!              └─ dns ──────► policy ──► the host's resolvers ──► names
//! ```
//!
//! Refused connections get a reset, refused datagrams and pings ICMP "administratively
//! prohibited", refused names NXDOMAIN, at once; segments of unknown connections a reset,
//! which is how connections from before a spawn die.
//!
//! The guest is hostile: nothing here panics or waits for it, and everything that it can
//! fill has a limit. [`policy`], [`frame`], [`inspect`] and the messages of [`dns`] are
//! pure.

pub mod address;
mod before;
mod card;
pub mod dns;
mod flow;
pub mod frame;
mod gateway;
pub mod inspect;
mod limits;
mod own;
pub mod policy;
mod report;
mod shared;
mod tcp;

pub use address::{
    FRAME_BYTES, GATEWAY_ADDRESS, GATEWAY_ADDRESS_V6, GATEWAY_MAC, GUEST_ADDRESS, GUEST_ADDRESS_V6,
    MTU,
};
pub use flow::ping_allowed;
pub use gateway::{Gateway, GatewayConfig, GatewayHandle};
pub use limits::GatewayLimits;
pub use report::{
    ConnectionReport, ConnectionState, NetworkReport, NetworkTotals, Protocol, Refusal,
};

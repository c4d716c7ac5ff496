//! What sandboxes reach and what they do not: real clients in real guests, real servers in an
//! internet of the tests' own, and what must not be reached watched for packets.
#![allow(
    clippy::print_stdout,
    reason = "measured times are worth reading also where they are within their bounds"
)]

mod cheats;
mod lab;
mod live;
mod names;
mod policy;
mod protected;
mod reach;
mod refusals;
mod restore;
mod stage;

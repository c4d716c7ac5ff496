//! The guest's name server: names are resolved by the host's resolvers, under the policy.
//!
//! A name that is not allowed is not asked for: the answer is NXDOMAIN, which programs
//! believe at once. Addresses in protected ranges are taken out of answers. What is given
//! out is remembered ([`Names`]), since rules go by it. Types that would hide the name of
//! a later connection (SVCB and HTTPS, which carry keys for encrypted hellos) have no data.

mod message;
mod names;
mod serve;
mod upstream;

pub use message::{Question, parse_query};
pub(crate) use names::{Names, is_name};
pub(crate) use serve::{over_tcp, over_udp};
pub(crate) use upstream::Upstream;

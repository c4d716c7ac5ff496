//! Traces: what a request did in the daemon, the shim and the guest's agent, sent by OTLP.
//!
//! ```text
//!   caller ─ traceparent ─► POST /v1/sandboxes          a request, by the listener
//!                             └ create                  an operation, by the engine
//!                                └ spawn
//!                                   └ shim              what the shim says of itself
//!                                      ├ loaded
//!                                      └ answered
//!                                         └ agent       what the guest says of itself
//! ```
//!
//! The daemon alone exports. Shims and agents hand the times of their steps back in their
//! answers, and [`Steps`] makes spans of them: a jail needs no way to a collector, and what a
//! guest says can fill no more than its own small part of a trace.
//!
//! Spans are `tracing`'s, of the target [`TARGET`]; without [`Exporter::start`] nobody listens
//! to them and they cost next to nothing.

mod context;
mod export;
mod steps;

pub use context::{join, rename, traceparent};
pub use export::{Endpoint, EndpointError, Exporter, StartError};
pub use steps::{Component, Steps};

/// The target of every span that becomes part of a trace, so that logs can leave them out.
pub const TARGET: &str = "pando.trace";

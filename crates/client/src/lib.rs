//! The native API as a typed client: what the CLI and the MCP server speak through.
//!
//! One [`Client`] per daemon, cheap to clone. Processes that are followed come
//! as an [`ExecStream`]. Plain HTTP only; a daemon on another machine belongs
//! behind a tunnel or a proxy that ends TLS.

mod away;
mod client;
mod error;
mod events;
mod exec_stream;
mod network;
mod ports;
mod snapshots;
mod transport;

pub use client::{Client, FileSource};
pub use error::{ApiRefusal, ClientError};
pub use events::{EventFilter, Events};
pub use exec_stream::{ExecInput, ExecOutput, ExecStream, StreamEvent};
pub use pando_api as api;

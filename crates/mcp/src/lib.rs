//! MCP: Pando's operations as tools for language models, over the native API.
//!
//! ```text
//!   pando mcp   stdin, stdout ──┐
//!                               ├─► Server: tools, resources ─► pando_client ─► /v1
//!   daemon      /mcp ─ door ────┘
//! ```
//!
//! Knows nothing of the engine: each call is one or a few requests to `/v1`
//! with the key of whoever asks, so what a tool may do is what the key may do.
//! No tool touches the machine that `pando mcp` runs on: a model that reads a
//! hostile page inside a sandbox must not be able to fetch files from outside.
//!
//! Protocol: Model Context Protocol, revisions 2024-11-05 to 2026-07-28, as the
//! crate `rmcp` speaks it.

mod answer;
mod arguments;
mod door;
mod follow;
mod resources;
mod schema;
mod server;
mod sessions;
mod stdio;
mod text;
mod tools;

pub use door::router;
pub use stdio::{StdioError, serve_stdio};

//! The tools. Their doc comments are what a model reads: a sentence on what for, an example,
//! when not to.

mod arrakis;
mod commands;
mod files;
mod sandboxes;
mod shapes;
mod snapshots;

use crate::server::Server;
use rmcp::handler::server::router::tool::ToolRouter;

/// All of them.
pub(crate) fn router() -> ToolRouter<Server> {
    Server::sandbox_tools()
        + Server::command_tools()
        + Server::file_tools()
        + Server::snapshot_tools()
        + Server::arrakis_tools()
}

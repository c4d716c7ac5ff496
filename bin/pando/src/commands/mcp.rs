//! `pando mcp`: the tools for language models, on stdin and stdout.

use super::{block_on, client, load};
use crate::cli::Global;
use crate::config::SettingKey;
use crate::daemon_log;
use crate::exit;

/// Serves the client that started this program until it closes stdin. Stdout is the
/// protocol's: nothing else here may print.
pub(super) fn mcp(global: &Global) -> anyhow::Result<u8> {
    let config = load(global)?;
    tracing_subscriber::fmt()
        .with_env_filter(daemon_log::filter(config.get(SettingKey::Log))?)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let client = client(&config)?;
    block_on(async {
        pando_mcp::serve_stdio(client).await?;
        Ok(exit::DONE)
    })
}

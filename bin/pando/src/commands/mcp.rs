//! `pando mcp`: the tools for language models, on stdin and stdout.

use super::{block_on, load};
use crate::cli::Global;
use crate::config::SettingKey;
use crate::daemon_log;
use crate::exit;
use pando_client::Client;

/// Serves the client that started this program until it closes stdin. Stdout is the
/// protocol's: nothing else here may print.
pub(super) fn mcp(global: &Global) -> anyhow::Result<u8> {
    let config = load(global)?;
    tracing_subscriber::fmt()
        .with_env_filter(daemon_log::filter(config.get(SettingKey::Log))?)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let find = move || Client::new(&config.url(), config.api_key().as_deref());
    // An address or a key that is none is told at once, not to the model.
    find()?;
    block_on(async {
        pando_mcp::serve_stdio(find).await?;
        Ok(exit::DONE)
    })
}

//! `pando logs`: a sandbox's console, or the daemon's log.

use super::{block_on, client, load};
use crate::cli::{Global, Logs};
use crate::config::SettingKey;
use crate::daemon_log::{last_lines, tail};
use crate::exit::{self, Failure};
use crate::output;

/// Shows the last lines.
pub(super) fn logs(global: &Global, flags: Logs) -> anyhow::Result<u8> {
    let config = load(global)?;
    let text = match flags.id {
        Some(id) => {
            let client = client(&config)?;
            let console = block_on(async { Ok(client.console(&id).await?) })?;
            last_lines(&console, flags.lines).to_owned()
        }
        None => {
            let path = config.path(SettingKey::LogFile);
            tail(&path, 0, flags.lines).map_err(|error| {
                Failure::new(
                    exit::FAILED,
                    format!("cannot read the daemon's log `{}`: {error}", path.display()),
                )
                .hint("only a daemon in the background writes it: `pando serve --detach`")
            })?
        }
    };
    output::data(&text);
    Ok(exit::DONE)
}

//! `pando shim`: one sandbox's own process. The daemon starts it with its socket.

use crate::cli::Shim;
use crate::exit;
use anyhow::Context as _;
use pando_sys::socket::take_inherited_listener;

/// Runs the sandbox to its end.
pub(super) fn shim(flags: &Shim) -> anyhow::Result<u8> {
    let listener = take_inherited_listener(pando_shim::LISTENER_FD);
    let listener = listener.context("`pando shim` is started by the daemon only")?;
    // stderr is the shim's log, which the daemon bounds.
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let directory =
        std::path::absolute(&flags.dir).context("the sandbox's directory is malformed")?;
    super::block_on(async { Ok(pando_shim::run(&directory, listener).await?) })?;
    Ok(exit::DONE)
}

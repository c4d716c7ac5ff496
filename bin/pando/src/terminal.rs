//! The person's terminal: raw while a program in a sandbox has it, itself again on every way out.

use crate::exit::Failure;
use anyhow::Context as _;
use pando_client::api::stream::WindowSize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io;

/// A terminal in raw mode; dropping it restores what was before, also on a panic.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Makes stdin's terminal raw.
    pub(crate) fn enter() -> anyhow::Result<Self> {
        let before = tcgetattr(io::stdin()).context("cannot read the terminal's mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)
            .context("cannot change the terminal's mode")?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // There is nobody left to tell.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Fails unless stdin and stdout are a terminal.
pub(crate) fn require() -> anyhow::Result<()> {
    if isatty(io::stdin()) && isatty(io::stdout()) {
        return Ok(());
    }
    let failure = Failure::usage("`-it` needs a terminal: stdin or stdout is not one");
    Err(failure
        .hint("leave `-it` out; input and output are passed through without it")
        .into())
}

/// Whether stdin is a terminal.
pub(crate) fn stdin_is_terminal() -> bool {
    isatty(io::stdin())
}

/// Whether questions can be asked.
pub(crate) fn can_ask() -> bool {
    isatty(io::stdin()) && isatty(io::stderr())
}

/// The terminal's size, or the classic one where it has none.
pub(crate) fn size() -> WindowSize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => WindowSize {
            cols: u32::from(size.ws_col),
            rows: u32::from(size.ws_row),
        },
        _ => WindowSize { cols: 80, rows: 24 },
    }
}

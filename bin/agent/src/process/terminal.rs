//! Pseudo-terminals.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::users::User;

/// What a terminal takes for the end of input at the start of a line: Ctrl-D.
pub(super) const END_OF_FILE: u8 = 4;

/// Debian's group `tty`, whose members may write to a terminal.
const TTY_GROUP: u32 = 5;

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowSize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// Opens a terminal: the agent's side and the process's.
pub(super) fn open(size: WindowSize, user: &User) -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(name, flags, Mode::empty())?;
    let group = Gid::from_raw(TTY_GROUP);
    rustix::fs::fchown(&theirs, Some(Uid::from_raw(user.uid)), Some(group))?;
    resize(&ours, size)?;
    Ok((ours, theirs))
}

pub(super) fn resize(terminal: &OwnedFd, size: WindowSize) -> io::Result<()> {
    let size = Winsize {
        ws_col: size.columns,
        ws_row: size.rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

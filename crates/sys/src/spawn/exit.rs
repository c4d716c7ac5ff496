//! A child that was started, and how it ended.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ChildExit {
    /// Whether it exited with code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for ChildExit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "exit code {code}"),
            Self::Signal(signal) => write!(formatter, "signal {signal}"),
        }
    }
}

/// A running or ended child of this process.
///
/// Dropping it neither kills nor reaps: who starts a child must wait for it.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    pidfd: OwnedFd,
}

impl Child {
    /// Takes a pidfd for a child that has not been waited for.
    pub(super) fn adopt(pid: i32) -> io::Result<Self> {
        let id = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = rustix::process::pidfd_open(id, PidfdFlags::empty())?;
        Ok(Self {
            pid: pid.unsigned_abs(),
            pidfd,
        })
    }

    /// Its process id; valid until it has been waited for.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its pidfd, which polls readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends it a signal. One that has ended is left alone.
    ///
    /// # Errors
    /// When the number is no signal or the kernel refuses.
    pub fn kill(&self, signal: i32) -> io::Result<()> {
        let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// How it ended, or `None` while it runs. Reaps it: ask only once.
    ///
    /// # Errors
    /// When it was already reaped.
    pub fn try_wait(&self) -> io::Result<Option<ChildExit>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?;
        Ok(status.map(|status| exit_of(&status)))
    }

    /// Waits for its end, blocking the thread, and reaps it.
    ///
    /// # Errors
    /// When it was already reaped.
    pub fn wait(&self) -> io::Result<ChildExit> {
        loop {
            let id = WaitId::PidFd(self.pidfd.as_fd());
            match rustix::process::waitid(id, WaitIdOptions::EXITED) {
                Ok(Some(status)) => return Ok(exit_of(&status)),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn exit_of(status: &WaitIdStatus) -> ChildExit {
    match status.exit_status() {
        Some(code) => ChildExit::Code(code),
        None => ChildExit::Signal(status.terminating_signal().unwrap_or_default()),
    }
}

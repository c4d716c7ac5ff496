//! Descriptors for asynchronous use.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes a descriptor non-blocking and registers it with the runtime.
///
/// # Errors
/// The kernel refuses, or it is a regular file.
pub(crate) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // Deprecated because it also takes types whose descriptor may change under it.
    // An `OwnedFd` has one descriptor, its own, for all its life.
    #[allow(deprecated)]
    AsyncFd::with_interest(fd, interest)
}

//! Waiting, in a tokio runtime, for a descriptor that is no socket.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that the runtime watches for input, such as a pidfd.
#[derive(Debug)]
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Has the current runtime watch the descriptor.
    ///
    /// # Errors
    /// When the kernel cannot poll it.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is open and owned, and nothing here replaces
        // or closes it before the registration ends with it.
        let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        Ok(Self(registered?))
    }

    /// Waits until the descriptor has input, or has got some since the last
    /// call. It may not have any more: look without blocking, and wait again.
    ///
    /// # Errors
    /// When the runtime shuts down.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pidfd_is_ready_when_its_process_has_ended() {
        let child = crate::spawn::Spawn::new(std::path::Path::new("/bin/cat"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let child = child.descriptor(theirs.into(), 0).spawn().unwrap();
        let ready = Readiness::new(child.pidfd().try_clone_to_owned().unwrap()).unwrap();
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), ready.readable());
        early.await.unwrap_err();
        drop(ours);
        ready.readable().await.unwrap();
        assert!(child.try_wait().unwrap().unwrap().success());
    }
}

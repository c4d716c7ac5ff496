//! Sockets: who is at the other end, and those a process is born with.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

/// The process at the other end of a unix socket, when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id; it may have ended since.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// The credentials of a connected unix socket's peer.
///
/// # Errors
/// When the descriptor is no such socket.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let credentials = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(PeerCredentials {
        pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
        uid: credentials.uid.as_raw(),
        gid: credentials.gid.as_raw(),
    })
}

/// Takes over the listening socket that this process was started with, at descriptor
/// `number`. Call it once, first thing in `main`, before anything opens descriptors:
/// one that belongs to somebody else must not be there.
///
/// # Errors
/// The descriptor is closed or no listening socket, or was taken before.
pub fn take_inherited_listener(number: RawFd) -> io::Result<UnixListener> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if number < 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // SAFETY: the borrow lives for this check only, on one thread at the start of `main`,
    // so nothing closes the number meanwhile; it is not -1; a closed number is an error of
    // the system call, not undefined.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if !rustix::net::sockopt::socket_acceptconn(borrowed)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is open (checked above) and nobody else in this process owns it:
    // whoever started us put it there, and `TAKEN` lets no second caller through.
    Ok(UnixListener::from(unsafe { OwnedFd::from_raw_fd(number) }))
}

/// Descriptors that one message may carry. VMMs take one at a time.
const DESCRIPTORS_PER_MESSAGE: usize = 4;

/// Sends bytes and copies of descriptors over a unix socket; returns how many
/// bytes went out. The descriptors go with the first byte.
///
/// # Errors
/// `WouldBlock` where the socket is non-blocking and full; nothing was sent then.
pub fn send_with_descriptors(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space =
        [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [io::IoSlice::new(bytes)];
    Ok(rustix::net::sendmsg(
        socket,
        &parts,
        &mut control,
        SendFlags::NOSIGNAL,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = peer_credentials(&left).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(
            send_with_descriptors(&left, b"abc", &[file.as_fd()]).unwrap(),
            3
        );
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 8];
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&right, &mut parts, &mut control, flags).unwrap();
        assert_eq!(got.bytes, 3);
        let Some(RecvAncillaryMessage::ScmRights(mut received)) = control.drain().next() else {
            panic!("no descriptor")
        };
        let received = received.next().unwrap();
        let identity = |file: &dyn AsFd| rustix::fs::fstat(file.as_fd()).unwrap().st_rdev;
        assert_eq!(identity(&received), identity(&file));
    }
}

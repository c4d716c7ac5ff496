//! Who is at the other end of a socket.

use std::io;
use std::os::fd::AsFd;

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
}

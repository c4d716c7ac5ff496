//! Moves frames between a guest's network card and the gateway.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::UnixDatagram;

use crate::answer::{Answer, FRAME_BYTES, answer};

/// Counters of one gateway, for its sandbox's description.
#[derive(Debug, Default)]
pub struct GatewayStats {
    frames: AtomicU64,
    refused: AtomicU64,
    unsent: AtomicU64,
}

impl GatewayStats {
    /// Frames that the guest sent.
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Connections, datagrams, pings and name queries that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Answers that the guest had no room for.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }
}

/// The gateway of one guest.
#[derive(Debug)]
pub struct Gateway {
    card: UnixDatagram,
    stats: Arc<GatewayStats>,
}

impl Gateway {
    /// A gateway behind `card`, this process's end of the datagram pair whose
    /// other end is the guest's network card.
    ///
    /// # Errors
    /// When the descriptor is no socket.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(card: OwnedFd) -> io::Result<Self> {
        let card = StdDatagram::from(card);
        card.set_nonblocking(true)?;
        Ok(Self {
            card: UnixDatagram::from_std(card)?,
            stats: Arc::default(),
        })
    }

    /// The counters, which can be read while it runs.
    pub fn stats(&self) -> Arc<GatewayStats> {
        Arc::clone(&self.stats)
    }

    /// Answers frames. A datagram socket does not see its peer go, so this ends
    /// with an error of the socket or by being dropped, which is safe at any time.
    ///
    /// # Errors
    /// When the socket can no longer be read.
    pub async fn run(self) -> io::Result<()> {
        // One byte more, to tell a frame that was cut off from one that fits.
        let mut frame = [0; FRAME_BYTES + 1];
        let mut reply = Vec::with_capacity(FRAME_BYTES);
        loop {
            let length = self.card.recv(&mut frame).await?;
            self.stats.frames.fetch_add(1, Ordering::Relaxed);
            let said = answer(&frame[..length], &mut reply);
            if matches!(
                said,
                Answer::Reset | Answer::Prohibited | Answer::NameRefused
            ) {
                self.stats.refused.fetch_add(1, Ordering::Relaxed);
            }
            // A guest that does not read loses frames, as on any network; it
            // must not hold up anything here.
            if said != Answer::Silence && self.card.try_send(&reply).is_err() {
                self.stats.unsent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An ARP request for the gateway.
    fn request() -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([0x52, 0x54, 0, 1, 2, 3, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend([
            0x52, 0x54, 0, 1, 2, 3, 10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2,
        ]);
        frame
    }

    #[tokio::test]
    async fn frames_are_answered_over_the_socket() {
        let (guest, ours) = StdDatagram::pair().unwrap();
        let gateway = Gateway::new(ours.into()).unwrap();
        let stats = gateway.stats();
        let running = tokio::spawn(gateway.run());
        guest.set_nonblocking(true).unwrap();
        let guest = UnixDatagram::from_std(guest).unwrap();
        guest.send(b"no frame").await.unwrap();
        guest.send(&request()).await.unwrap();
        let mut reply = [0; 100];
        let length = guest.recv(&mut reply).await.unwrap();
        assert_eq!(&reply[..6], &request()[6..12]);
        assert_eq!((length, stats.frames(), stats.refused()), (42, 2, 0));
        running.abort();
    }

    #[tokio::test]
    async fn a_guest_that_does_not_read_stops_nothing() {
        let (guest, ours) = StdDatagram::pair().unwrap();
        let gateway = Gateway::new(ours.into()).unwrap();
        let stats = gateway.stats();
        let running = tokio::spawn(gateway.run());
        guest.set_nonblocking(true).unwrap();
        let guest = UnixDatagram::from_std(guest).unwrap();
        let flood = async {
            while stats.unsent() == 0 {
                guest.send(&request()).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(10), flood)
            .await
            .unwrap();
        assert!(!running.is_finished());
        running.abort();
    }
}

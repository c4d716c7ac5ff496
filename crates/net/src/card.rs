//! The guest's network card, written to.
//!
//! A frame is built in a buffer of the thread and handed to the socket at once. Where the
//! guest has no room, a TCP connection keeps its one frame and waits ([`Card::writable`]);
//! everything else is dropped, as on any network. So a guest that does not read costs a
//! frame per connection and holds up nobody.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::address::{ETHERNET_BYTES, FRAME_BYTES, GATEWAY_MAC};

/// Bytes that may wait in the socket, the kernel's own included: a dozen of the longest
/// frames, and so little that a short one is not long in coming. The
/// kernel may allow less.
const SOCKET_BYTES: usize = 1 << 20;

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [0x08, 0x06];

/// This process's end of the card.
#[derive(Debug)]
pub(crate) struct Card {
    socket: UnixDatagram,
    /// The guest's hardware address, as it was seen last.
    guest_mac: AtomicU64,
    unsent: AtomicU64,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Card {
    pub(crate) fn new(card: OwnedFd) -> io::Result<Self> {
        let card = StdDatagram::from(card);
        card.set_nonblocking(true)?;
        // Both only make it faster.
        let socket = socket2::SockRef::from(&card);
        let _ = socket.set_send_buffer_size(SOCKET_BYTES);
        let _ = socket.set_recv_buffer_size(SOCKET_BYTES);
        Ok(Self {
            socket: UnixDatagram::from_std(card)?,
            guest_mac: AtomicU64::new(u64::MAX),
            unsent: AtomicU64::new(0),
        })
    }

    /// Frames that the guest had no room for.
    pub(crate) fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Notes the guest's hardware address.
    pub(crate) fn seen(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        let number = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.guest_mac.store(number, Ordering::Relaxed);
    }

    /// The guest's hardware address; all ones before it was seen.
    pub(crate) fn guest_mac(&self) -> [u8; 6] {
        let [_, _, mac @ ..] = self.guest_mac.load(Ordering::Relaxed).to_be_bytes();
        mac
    }

    /// Waits for the guest's next frame and takes it.
    ///
    /// # Errors
    /// The VMM has gone: a socket that keeps a connection says so by frames of no bytes,
    /// without end.
    pub(crate) async fn receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        let length = self.socket.recv(frame).await?;
        if length == 0
            && self
                .socket
                .ready(Interest::READABLE)
                .await?
                .is_read_closed()
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(length)
    }

    /// Takes the next frame if it is there.
    pub(crate) fn try_receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        self.socket.try_recv(frame)
    }

    /// Waits until the guest may have room.
    pub(crate) async fn writable(&self) {
        // An error shows again when it is written.
        let _ = self.socket.writable().await;
    }

    /// Sends the packet that `write` appends, which may be none; drops it where there is
    /// no room.
    pub(crate) fn send(&self, write: impl FnOnce(&mut Vec<u8>) -> Option<()>) {
        self.in_buffer(|frame| {
            frame.resize(ETHERNET_BYTES, 0);
            if write(frame).is_some() {
                self.finish(frame);
                if self.socket.try_send(frame).is_err() {
                    self.unsent.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }

    /// Sends an ARP message.
    pub(crate) fn send_arp(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.in_buffer(|frame| {
            frame.resize(ETHERNET_BYTES, 0);
            write(frame);
            self.finish(frame);
            frame[12..ETHERNET_BYTES].copy_from_slice(&ARP);
            if self.socket.try_send(frame).is_err() {
                self.unsent.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Sends a packet of `length` bytes that `write` fills in; where there is no room, the
    /// frame comes back, for [`Card::send_again`].
    pub(crate) fn send_or_keep<R>(
        &self,
        length: usize,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> (R, Option<Vec<u8>>) {
        self.in_buffer(|frame| {
            frame.resize(ETHERNET_BYTES + length, 0);
            let result = write(&mut frame[ETHERNET_BYTES..]);
            self.finish(frame);
            let kept = self.send_again(frame).is_err().then(|| frame.clone());
            (result, kept)
        })
    }

    /// Sends a whole frame.
    ///
    /// # Errors
    /// There is still no room. A frame that the socket refuses for another reason is lost.
    pub(crate) fn send_again(&self, frame: &[u8]) -> Result<(), NoRoom> {
        match self.socket.try_send(frame) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(NoRoom),
            Err(_) => {
                self.unsent.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Writes the Ethernet header.
    fn finish(&self, frame: &mut [u8]) {
        let mac = self.guest_mac.load(Ordering::Relaxed).to_be_bytes();
        let version = frame.get(ETHERNET_BYTES).map_or(0, |first| first >> 4);
        frame[..6].copy_from_slice(&mac[2..]);
        frame[6..12].copy_from_slice(&GATEWAY_MAC);
        let kind = if version == 6 { IPV6 } else { IPV4 };
        frame[12..ETHERNET_BYTES].copy_from_slice(&kind);
    }

    /// The buffer is the thread's: it is too large for each connection to have its own.
    fn in_buffer<R>(&self, use_it: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        BUFFER.with(|buffer| {
            // Whoever writes a packet sends no other meanwhile; if one did, it would get
            // a buffer of its own.
            match buffer.try_borrow_mut() {
                Ok(mut buffer) => {
                    buffer.clear();
                    buffer.reserve(FRAME_BYTES);
                    use_it(&mut buffer)
                }
                Err(_) => use_it(&mut Vec::new()),
            }
        })
    }
}

/// The guest has not read what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

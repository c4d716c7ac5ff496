//! Sees every packet that arrives at a machine.

use super::machine::Machine;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// An address of the watched machine that tests send a mark to: whoever has seen the mark
/// has seen all that came before it.
pub(super) const FENCE: &str = "10.9.0.99";

/// All protocols, in the network's byte order.
const EVERYTHING: NonZeroU32 = NonZeroU32::new(0x0300).expect("it is not zero");

/// Enough of a packet: its headers.
const HEADER_BYTES: usize = 128;

/// How long the watch looks before it asks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// How long a packet may take through a wire.
const WIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// A packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Where it was to go.
    pub to: IpAddr,
    /// IP's number of its protocol: 6 TCP, 17 UDP, 1 and 58 ICMP.
    pub protocol: u8,
    /// The destination's port; for other than TCP and UDP what is in its place.
    pub port: u16,
}

#[derive(Default)]
struct Seen {
    packets: Vec<Packet>,
    marks: usize,
}

/// What arrived at one machine.
pub(super) struct Watch {
    seen: Arc<(Mutex<Seen>, Condvar)>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(machine: &Machine) -> Self {
        let seen: Arc<(Mutex<Seen>, Condvar)> = Arc::default();
        let end = Arc::new(AtomicBool::new(false));
        let (socket, seeing, ended) = (watch_socket(machine), Arc::clone(&seen), Arc::clone(&end));
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                look(&socket, &seeing);
            }
        });
        Self {
            seen,
            end,
            thread: Some(thread),
        }
    }

    /// All of them, but marks.
    pub(super) fn packets(&self) -> Vec<Packet> {
        let (lock, more) = &*self.seen;
        let marks = lock.lock().expect("nobody panics").marks;
        mark();
        let seen = lock.lock().expect("nobody panics");
        let (seen, waited) = more
            .wait_timeout_while(seen, WIRE_TIMEOUT, |seen| seen.marks == marks)
            .expect("nobody panics");
        assert!(!waited.timed_out(), "the lab's wire is broken");
        seen.packets.clone()
    }

    pub(super) fn packets_to(&self, address: IpAddr) -> Vec<Packet> {
        let mut packets = self.packets();
        packets.retain(|packet| packet.to == address);
        packets
    }

    pub(super) fn forget(&self) {
        self.seen.0.lock().expect("nobody panics").packets.clear();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// A socket for every packet of a machine; a read of it waits no longer than [`LOOK`].
fn watch_socket(machine: &Machine) -> OwnedFd {
    machine.run(async {
        let protocol = Some(Protocol::from_raw(EVERYTHING));
        // A datagram is a packet without its frame's header.
        let (family, kind) = (AddressFamily::PACKET, SocketType::DGRAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, protocol);
        let socket = socket.expect("a packet socket");
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK)).expect("a limit");
        socket
    })
}

/// The calling thread is on the host.
fn mark() {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket
        .send_to(b"mark", (FENCE, 9))
        .expect("there is a route to it");
}

/// Takes one packet, if there is one.
fn look(socket: &OwnedFd, seen: &(Mutex<Seen>, Condvar)) {
    let mut packet = [0; HEADER_BYTES];
    let Ok((length, _)) = recv(socket, &mut packet[..], RecvFlags::empty()) else {
        return;
    };
    let Some(found) = parse(&packet[..length]) else {
        return;
    };
    let (lock, more) = seen;
    let mut seen = lock.lock().expect("nobody panics");
    if found.to.to_string() == FENCE {
        seen.marks += 1;
        more.notify_all();
    } else if is_watched(found.to) {
        seen.packets.push(found);
    }
}

/// Not the wire's own ends, with which the kernels talk, and not the groups in which
/// neighbours find each other.
fn is_watched(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.octets().starts_with(&[10, 9, 0]),
        IpAddr::V6(v6) => v6.segments()[..2] != [0xfd00, 9] && v6.segments()[0] != 0xff02,
    }
}

/// Neighbours and routers finding each other, which kernels do unasked.
fn is_discovery(packet: &[u8]) -> bool {
    packet.get(6) == Some(&58) && matches!(packet.get(40), Some(133..=137))
}

fn parse(packet: &[u8]) -> Option<Packet> {
    let port_at = |at: usize| {
        let bytes = packet.get(at..at + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    match packet.first()? >> 4 {
        4 => {
            let header_bytes = usize::from(packet[0] & 15) * 4;
            let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(Packet {
                to: Ipv4Addr::from(to).into(),
                protocol: packet[9],
                port: port_at(header_bytes + 2)?,
            })
        }
        6 if is_discovery(packet) => None,
        6 => {
            let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(Packet {
                to: Ipv6Addr::from(to).into(),
                protocol: packet[6],
                port: port_at(42)?,
            })
        }
        // ARP, mostly.
        _ => None,
    }
}

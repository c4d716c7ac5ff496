//! One connection's end towards the guest: a TCP of its own, from smoltcp.
//!
//! Each connection has an interface with one socket and the remote end's address, so that
//! the work for a segment does not grow with the number of connections. Its two buffers
//! are mapped by the kernel as they fill, and rewind when they are empty: a connection that
//! carries little costs some pages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use crate::address::MTU;
use crate::card::Card;

/// Bytes that may wait in each direction: four of the longest segments, so that one is
/// on its way while others are filled and acknowledged.
pub(crate) const BUFFER_BYTES: usize = 256 << 10;

/// The guest acknowledges what it was sent, or its end is dead. Linux gives up later, but
/// there is no network in between that could come back.
const ACKNOWLEDGED_WITHIN: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(300);

/// The connection's end towards the guest.
pub(crate) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    port: Port,
    began: Instant,
}

/// The way to the card.
struct Port {
    card: Arc<Card>,
    /// A frame that the guest had no room for.
    kept: Option<Vec<u8>>,
}

impl Stack {
    /// A connection whose guest's end sent `opening`, a packet with SYN, to `remote`.
    /// `None` where that is not acceptable.
    pub(crate) fn accept(card: Arc<Card>, remote: SocketAddr, opening: &[u8]) -> Option<Self> {
        let mut port = Port { card, kept: None };
        let began = Instant::now();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rand::random();
        let mut view = port.view(None);
        let mut interface = Interface::new(config, &mut view, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let bits = if remote.is_ipv4() { 32 } else { 128 };
            // There is room for one.
            let _ = addresses.push(IpCidr::new(remote.ip().into(), bits));
        });
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(ACKNOWLEDGED_WITHIN));
        socket.listen((remote.ip(), remote.port())).ok()?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let socket = sockets.add(socket);
        let mut stack = Self {
            interface,
            sockets,
            socket,
            port,
            began,
        };
        stack.take(opening);
        (stack.socket().state() == tcp::State::SynReceived).then_some(stack)
    }

    /// Takes a packet of the guest.
    pub(crate) fn take(&mut self, packet: &[u8]) {
        let now = self.now();
        let mut view = self.port.view(Some(packet));
        self.interface
            .poll_ingress_single(now, &mut view, &mut self.sockets);
    }

    pub(crate) fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    /// Sends what can be sent; whether the guest has room for more.
    pub(crate) fn flush(&mut self) -> bool {
        let now = self.now();
        if let Some(frame) = &self.port.kept {
            if self.port.card.send_again(frame).is_err() {
                return false;
            }
            self.port.kept = None;
        }
        let mut view = self.port.view(None);
        // Each turn sends a segment, and the buffer holds a bounded number.
        while self
            .interface
            .poll_egress(now, &mut view, &mut self.sockets)
            != smoltcp::iface::PollResult::None
        {}
        self.port.kept.is_none()
    }

    /// How long until it must be flushed again, if nothing comes.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        let now = self.now();
        let wait = self.interface.poll_delay(now, &self.sockets)?;
        Some(Duration::from_micros(wait.total_micros()))
    }

    fn now(&self) -> StackInstant {
        let micros = self.began.elapsed().as_micros();
        StackInstant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

/// Zeroed memory, which the kernel maps when it is used: see [`crate::Gateway::new`].
fn buffer() -> tcp::SocketBuffer<'static> {
    tcp::SocketBuffer::new(vec![0; BUFFER_BYTES])
}

impl Port {
    fn view<'p>(&'p mut self, packet: Option<&'p [u8]>) -> View<'p> {
        View { port: self, packet }
    }
}

/// The port for one call, with the packet that came.
struct View<'p> {
    port: &'p mut Port,
    packet: Option<&'p [u8]>,
}

struct Received<'p>(&'p [u8]);

struct Sending<'p>(&'p mut Port);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let (result, kept) = self.0.card.send_or_keep(length, f);
        // An answer to a packet may come while one waits; the peer asks again.
        if self.0.kept.is_none() {
            self.0.kept = kept;
        }
        result
    }
}

impl phy::Device for View<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Sending<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: StackInstant) -> Option<(Received<'_>, Sending<'_>)> {
        let packet = self.packet.take()?;
        Some((Received(packet), Sending(self.port)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sending<'_>> {
        self.port.kept.is_none().then_some(Sending(self.port))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // As in `frame`: written, not compared.
        let mut checksums = ChecksumCapabilities::ignored();
        checksums.ipv4 = Checksum::Tx;
        checksums.tcp = Checksum::Tx;
        capabilities.checksum = checksums;
        capabilities
    }
}

/// Whether the guest's end was ever heard of after it opened.
pub(crate) fn is_opening(state: tcp::State) -> bool {
    state == tcp::State::SynReceived
}

/// Whether nothing more will come from the guest once its buffer is empty.
pub(crate) fn has_ended(socket: &tcp::Socket<'_>) -> bool {
    !socket.may_recv() && !is_opening(socket.state())
}

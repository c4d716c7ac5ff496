//! A guest: a TCP/IP stack of its own at the other end of the card. It is a peer, driven
//! by the test's thread; the gateway runs on threads of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use pando_net::{
    FRAME_BYTES, GATEWAY_ADDRESS, GATEWAY_ADDRESS_V6, GUEST_ADDRESS, GUEST_ADDRESS_V6, Gateway,
    GatewayConfig, GatewayHandle, GatewayLimits,
};
use pando_types::{EgressAction, EgressPolicy};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

/// Longer than anything takes on a busy machine; it is the bound of failures.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x70, 0x61, 0x6e];

/// Rules as people write them; the last word may be `default deny`.
pub(crate) fn policy(rules: &[&str]) -> EgressPolicy {
    let (default, rules) = match rules {
        [rules @ .., "default deny"] => (EgressAction::Deny, rules),
        rules => (EgressAction::Allow, rules),
    };
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    EgressPolicy::ordered(rules, default).unwrap()
}

/// A gateway and its guest.
pub(crate) struct World {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) handle: GatewayHandle,
    pub(crate) guest: Guest,
}

pub(crate) struct Settings {
    pub(crate) policy: EgressPolicy,
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) names: Vec<u8>,
    pub(crate) limits: GatewayLimits,
    pub(crate) mtu: usize,
}

impl Settings {
    pub(crate) fn with(rules: &[&str]) -> Self {
        Self {
            policy: policy(rules),
            resolvers: Vec::new(),
            names: Vec::new(),
            limits: GatewayLimits::default(),
            mtu: 1500,
        }
    }
}

impl World {
    /// A world whose guest may reach what the rules say.
    pub(crate) fn new(rules: &[&str]) -> Self {
        Self::start(Settings::with(rules))
    }

    pub(crate) fn start(settings: Settings) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (guest, card) = UnixDatagram::pair().unwrap();
        let handle = {
            let _entered = runtime.enter();
            let (gateway, handle) = Gateway::new(GatewayConfig {
                card: card.into(),
                policy: settings.policy,
                resolvers: settings.resolvers,
                names: settings.names,
                limits: settings.limits,
            })
            .unwrap();
            runtime.spawn(gateway.run());
            handle
        };
        Self {
            runtime,
            handle,
            guest: Guest::new(guest, settings.mtu),
        }
    }
}

/// The stack, its sockets and its card.
pub(crate) struct Guest {
    card: Card,
    interface: Interface,
    pub(crate) sockets: SocketSet<'static>,
    began: Instant,
    next_port: u16,
    pub(crate) window: usize,
}

struct Card {
    socket: UnixDatagram,
    mtu: usize,
    received: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
    /// Frames that the stack is not shown: `true` takes one away.
    hidden: Option<fn(&[u8]) -> bool>,
    pub(crate) caught: Vec<Vec<u8>>,
}

impl Guest {
    pub(crate) fn new(socket: UnixDatagram, mtu: usize) -> Self {
        let mut card = Card {
            socket,
            mtu,
            received: VecDeque::new(),
            buffer: vec![0; FRAME_BYTES],
            hidden: None,
            caught: Vec::new(),
        };
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(GUEST_MAC)));
        config.random_seed = rand::random();
        let mut interface = Interface::new(config, &mut card, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(GUEST_ADDRESS.into(), 24))
                .unwrap();
            addresses
                .push(IpCidr::new(GUEST_ADDRESS_V6.into(), 64))
                .unwrap();
        });
        let routes = interface.routes_mut();
        routes.add_default_ipv4_route(GATEWAY_ADDRESS).unwrap();
        routes.add_default_ipv6_route(GATEWAY_ADDRESS_V6).unwrap();
        Self {
            card,
            interface,
            sockets: SocketSet::new(Vec::new()),
            began: Instant::now(),
            next_port: 20_000,
            window: 1 << 18,
        }
    }

    /// Puts each guest behind the other's gateway.
    pub(crate) fn swap_card(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.card.socket, &mut other.card.socket);
    }

    /// Sends a frame as it is.
    pub(crate) fn inject(&self, frame: &[u8]) {
        self.card.socket.send(frame).unwrap();
    }

    /// Keeps such frames from the stack, for [`Guest::caught`].
    pub(crate) fn catch(&mut self, frames: fn(&[u8]) -> bool) {
        self.card.hidden = Some(frames);
    }

    pub(crate) fn caught(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.card.caught)
    }

    /// Lets the stack work: waits for the next frame, `wait` at most.
    pub(crate) fn poll(&mut self, wait: Duration) {
        let now = self.now();
        self.interface.poll(now, &mut self.card, &mut self.sockets);
        let own = self.interface.poll_delay(self.now(), &self.sockets);
        let own = own.map_or(wait, |own| Duration::from_micros(own.total_micros()));
        self.card.receive(wait.min(own));
        let now = self.now();
        self.interface.poll(now, &mut self.card, &mut self.sockets);
    }

    /// Works until `done` returns something.
    ///
    /// # Panics
    /// When that takes more than [`PATIENCE`].
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            assert!(Instant::now() < deadline, "it did not happen: {what}");
            self.poll(Duration::from_millis(20));
        }
    }

    /// Like [`Guest::until`], for what takes as long as it takes.
    pub(crate) fn until_slowly<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        loop {
            let mut turns = 0;
            let value = self.until(what, |guest| {
                turns += 1;
                done(guest).map(Some).or((turns == 1000).then_some(None))
            });
            if let Some(value) = value {
                return value;
            }
        }
    }

    /// Opens a connection, without waiting.
    pub(crate) fn open(&mut self, remote: SocketAddr) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; self.window]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        let port = self.port();
        // Said, since the stack would take loopback for itself.
        let own: IpAddr = match remote {
            SocketAddr::V4(_) => GUEST_ADDRESS.into(),
            SocketAddr::V6(_) => GUEST_ADDRESS_V6.into(),
        };
        let context = self.interface.context();
        socket
            .connect(context, (remote.ip(), remote.port()), (own, port))
            .unwrap();
        self.sockets.add(socket)
    }

    pub(crate) fn port(&mut self) -> u16 {
        self.next_port = 20_000 + (self.next_port - 19_999) % 40_000;
        self.next_port
    }

    /// Opens a connection; `None` where it was refused.
    pub(crate) fn connect(&mut self, remote: impl Into<SocketAddr>) -> Option<SocketHandle> {
        let remote = remote.into();
        let handle = self.open(remote);
        let open = self.until("an answer to the opening", |guest| {
            match guest.tcp(handle).state() {
                tcp::State::SynSent | tcp::State::SynReceived => None,
                tcp::State::Closed => Some(false),
                _ => Some(true),
            }
        });
        if !open {
            self.sockets.remove(handle);
        }
        open.then_some(handle)
    }

    pub(crate) fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Sends all of it.
    pub(crate) fn send(&mut self, handle: SocketHandle, mut bytes: &[u8]) {
        self.until("the sending of bytes", |guest| {
            let socket = guest.tcp(handle);
            if !socket.may_send() {
                return Some(());
            }
            let sent = socket.send_slice(bytes).unwrap();
            bytes = &bytes[sent..];
            bytes.is_empty().then_some(())
        });
        self.poll(Duration::ZERO);
    }

    /// Receives exactly that many bytes, or fewer where the connection ends before.
    pub(crate) fn receive(&mut self, handle: SocketHandle, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.until("the arrival of bytes", |guest| {
            let socket = guest.tcp(handle);
            while socket.can_recv() && bytes.len() < count {
                let left = count - bytes.len();
                socket
                    .recv(|part| {
                        let part = &part[..part.len().min(left)];
                        bytes.extend_from_slice(part);
                        (part.len(), ())
                    })
                    .unwrap();
            }
            (bytes.len() == count || !socket.may_recv()).then_some(())
        });
        bytes
    }

    /// Waits until the connection was reset.
    pub(crate) fn is_reset(&mut self, handle: SocketHandle) {
        self.until("a reset", |guest| {
            (guest.tcp(handle).state() == tcp::State::Closed).then_some(())
        });
    }

    /// Ends the connection from both sides.
    pub(crate) fn close(&mut self, handle: SocketHandle) {
        self.tcp(handle).close();
        self.until("the end of a connection", |guest| {
            let ended = matches!(
                guest.tcp(handle).state(),
                tcp::State::Closed | tcp::State::TimeWait
            );
            ended.then_some(())
        });
        self.sockets.remove(handle);
    }

    /// A socket for datagrams.
    pub(crate) fn udp(&mut self) -> SocketHandle {
        let buffer =
            || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 1 << 18]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        let port = self.port();
        socket.bind(port).unwrap();
        self.sockets.add(socket)
    }

    pub(crate) fn send_to(
        &mut self,
        handle: SocketHandle,
        bytes: &[u8],
        remote: impl Into<SocketAddr>,
    ) {
        let remote: SocketAddr = remote.into();
        let socket: &mut udp::Socket<'_> = self.sockets.get_mut(handle);
        socket
            .send_slice(bytes, (remote.ip(), remote.port()))
            .unwrap();
        self.poll(Duration::ZERO);
        // The neighbour may have to be asked for first.
        self.until("the sending of a datagram", |guest| {
            let socket: &mut udp::Socket<'_> = guest.sockets.get_mut(handle);
            (socket.send_queue() == 0).then_some(())
        });
    }

    pub(crate) fn receive_from(&mut self, handle: SocketHandle) -> (Vec<u8>, IpAddr) {
        self.until("a datagram", |guest| {
            let socket: &mut udp::Socket<'_> = guest.sockets.get_mut(handle);
            let (bytes, from) = socket.recv().ok()?;
            Some((bytes.to_vec(), from.endpoint.addr.into()))
        })
    }

    fn now(&self) -> StackInstant {
        StackInstant::from_micros(i64::try_from(self.began.elapsed().as_micros()).unwrap())
    }
}

impl Card {
    fn receive(&mut self, wait: Duration) {
        if !wait.is_zero() {
            self.socket.set_nonblocking(false).unwrap();
            self.socket.set_read_timeout(Some(wait)).unwrap();
            match self.socket.recv(&mut self.buffer) {
                Ok(length) => self.sort(self.buffer[..length].to_vec()),
                Err(error) => assert!(
                    matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                    ),
                    "{error}"
                ),
            }
        }
        self.socket.set_nonblocking(true).unwrap();
        while self.received.len() <= 64
            && let Ok(length) = self.socket.recv(&mut self.buffer)
        {
            self.sort(self.buffer[..length].to_vec());
        }
        self.socket.set_nonblocking(false).unwrap();
    }

    fn sort(&mut self, frame: Vec<u8>) {
        if self.hidden.is_some_and(|hidden| hidden(&frame)) {
            self.caught.push(frame);
        } else {
            self.received.push_back(frame);
        }
    }
}

pub(crate) struct Received(Vec<u8>);

pub(crate) struct Sending<'c>(&'c UnixDatagram);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = vec![0; length];
        let result = f(&mut frame);
        // The gateway always reads.
        self.0.send(&frame).unwrap();
        result
    }
}

impl phy::Device for Card {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Received, Sending<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Received(frame), Sending(&self.socket)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sending<'_>> {
        Some(Sending(&self.socket))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        let mut checksums = ChecksumCapabilities::ignored();
        // A guest's kernel compares them.
        checksums.ipv4 = Checksum::Both;
        checksums.tcp = Checksum::Both;
        checksums.udp = Checksum::Both;
        checksums.icmpv4 = Checksum::Both;
        checksums.icmpv6 = Checksum::Both;
        capabilities.checksum = checksums;
        capabilities
    }
}

/// Loopback, which is protected and must be opened by a rule.
pub(crate) const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

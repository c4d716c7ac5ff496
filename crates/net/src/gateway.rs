//! The gateway: reads the guest's frames and gives each to whom it belongs.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pando_types::{EgressPolicy, EgressProtocol};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::address::{DNS_PORT, FRAME_BYTES, is_gateway};
use crate::before::Before;
use crate::card::Card;
use crate::dns::{self, Names};
use crate::flow::{self, Flow};
use crate::frame::{self, Echo, Frame, Packet, Payload, TcpHead, Unreachable};
use crate::limits::GatewayLimits;
use crate::own::Reach;
use crate::policy::{Claim, Verdict};
use crate::report::{NetworkReport, Protocol};
use crate::shared::{Ends, Shared, add};
use crate::tcp::{self, Connection, Opening};

/// Frames read before others get their turn.
const FRAMES_PER_TURN: usize = 64;

/// Name queries of one guest under way, each a task. More than the resolvers are asked at
/// once, so that the rest is refused and not forgotten.
const DNS_TASKS: usize = 128;

/// What a gateway begins with.
#[derive(Debug)]
pub struct GatewayConfig {
    /// This process's end of the datagram pair whose other end is the guest's card.
    pub card: OwnedFd,
    /// What the guest may reach.
    pub policy: EgressPolicy,
    /// The host's resolvers, in the order in which they are asked.
    pub resolvers: Vec<SocketAddr>,
    /// What [`GatewayHandle::names`] of an earlier gateway of this guest returned; empty
    /// for a new guest. Anything else is ignored.
    pub names: Vec<u8>,
    /// How much the guest may use.
    pub limits: GatewayLimits,
}

/// The gateway of one guest.
pub struct Gateway {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// Permits for name queries.
    queries: Arc<tokio::sync::Semaphore>,
}

/// What is done with a gateway while it runs.
#[derive(Clone)]
pub struct GatewayHandle {
    shared: Arc<Shared>,
}

impl GatewayHandle {
    /// Takes another policy. Connections and flows that it forbids are cut at once.
    pub fn set_policy(&self, policy: EgressPolicy) {
        self.shared.set_policy(policy);
    }

    /// Takes other resolvers.
    pub fn set_resolvers(&self, resolvers: Vec<SocketAddr>) {
        self.shared.upstream.set_resolvers(resolvers);
    }

    /// Limits the payload of each way, in bytes a second, from now on; where
    /// [`GatewayLimits`] or an earlier call said it already, nothing changes.
    pub fn limit_bandwidth(&self, bytes_per_second: u64) {
        let limits = GatewayLimits {
            bandwidth_bytes_per_second: Some(bytes_per_second),
            ..self.shared.limits
        };
        for way in &self.shared.bandwidth {
            if let Some(bucket) = limits.bandwidth_bucket() {
                // Said already: see above.
                let _ = way.set(bucket);
            }
        }
    }

    /// What lives, what there was, and what was refused last.
    pub fn report(&self) -> NetworkReport {
        self.shared.report()
    }

    /// The newest refusal's number, 0 before the first; it changes with each that is no
    /// repeat.
    pub fn refused(&self) -> watch::Receiver<u64> {
        self.shared.refusals.subscribe()
    }

    /// What another gateway needs of this one, for [`GatewayHandle::restore`]: the names,
    /// and which connections there are.
    pub fn save(&self) -> Vec<u8> {
        let before = Before {
            mac: self.shared.card.guest_mac(),
            connections: self.shared.connections().keys().copied().collect(),
        };
        let names = self.names();
        // At most 256 KiB.
        let length = u32::try_from(names.len()).unwrap_or(0);
        [&length.to_be_bytes()[..], &names, &before.to_bytes()].concat()
    }

    /// Takes what another guest's gateway saved, of which this guest is a copy: names are
    /// known, and connections are reset, for which the guest must run. Other bytes are
    /// ignored.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn restore(&self, saved: &[u8]) {
        let Some((length, rest)) = saved.split_first_chunk() else {
            return;
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let Some((names, before)) = rest.split_at_checked(length) else {
            return;
        };
        *self.shared.names() = Names::from_bytes(names, std::time::Instant::now());
        let Some(before) = Before::from_bytes(before) else {
            return;
        };
        self.shared.card.seen(before.mac);
        tokio::spawn(before.end(Arc::clone(&self.shared)));
    }

    /// Which addresses were given out under which names, for
    /// [`GatewayConfig::names`]; at most 256 KiB.
    pub fn names(&self) -> Vec<u8> {
        self.shared.names().to_bytes(std::time::Instant::now())
    }
}

impl std::fmt::Debug for GatewayHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("GatewayHandle")
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway, and the handle to it. From now on this process's large allocations are
    /// mapped one by one ([`pando_sys::allocator::map_large_allocations`]): a connection's
    /// buffers cost what is used of them, and nothing afterwards.
    ///
    /// # Errors
    /// When the descriptor is no socket.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(config: GatewayConfig) -> io::Result<(Self, GatewayHandle)> {
        pando_sys::allocator::map_large_allocations();
        let shared = Arc::new(Shared::new(
            Card::new(config.card)?,
            config.policy,
            config.resolvers,
            &config.names,
            config.limits,
        ));
        let handle = GatewayHandle {
            shared: Arc::clone(&shared),
        };
        let gateway = Self {
            shared,
            tasks: JoinSet::new(),
            queries: Arc::new(tokio::sync::Semaphore::new(DNS_TASKS)),
        };
        Ok((gateway, handle))
    }

    /// Carries the guest's traffic. A datagram socket does not see its peer go, so this
    /// ends with an error of the socket or by being dropped, which is safe at any time and
    /// ends all connections.
    ///
    /// # Errors
    /// When the socket can no longer be read.
    pub async fn run(mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        // One byte more, to tell a frame that was cut off from one that fits.
        let mut frame = vec![0; FRAME_BYTES + 1];
        loop {
            let length = tokio::select! {
                length = shared.card.receive(&mut frame) => length?,
                // A task's panic is in the log; it took its connection along.
                Some(_) = self.tasks.join_next() => continue,
            };
            self.take(&frame[..length]);
            for _ in 1..FRAMES_PER_TURN {
                match shared.card.try_receive(&mut frame) {
                    Ok(length) => self.take(&frame[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            while self.tasks.try_join_next().is_some() {}
            tokio::task::yield_now().await;
        }
    }

    fn take(&mut self, frame: &[u8]) {
        add(&self.shared.sums.frames, 1);
        let Some((mac, frame)) = frame::read(frame) else {
            return;
        };
        let card = &self.shared.card;
        card.seen(mac);
        match frame {
            Frame::ArpRequest { from, about } => {
                card.send_arp(|out| frame::arp_reply(from, about, mac, out));
            }
            Frame::NeighborSolicitation { from, about } => card.send(|out| {
                frame::neighbor_advertisement(from, about, out);
                Some(())
            }),
            Frame::Ip(packet) => self.take_packet(&packet),
        }
    }

    fn take_packet(&mut self, packet: &Packet<'_>) {
        match packet.payload {
            Payload::Tcp(head) => self.take_segment(packet, &head),
            Payload::Udp {
                source_port,
                destination_port,
                data,
            } => {
                let ends = Ends {
                    guest: SocketAddr::new(packet.source, source_port),
                    remote: SocketAddr::new(packet.destination, destination_port),
                };
                self.take_datagram(packet, ends, data);
            }
            Payload::Ping(echo) => self.take_ping(packet, &echo),
            // Datagrams that do not fit into a packet are refused: the guest's card takes
            // packets as long as there are datagrams.
            Payload::Fragment { first: true } => self.prohibit(packet),
            Payload::Fragment { first: false } | Payload::Other => {}
        }
    }

    fn take_segment(&mut self, packet: &Packet<'_>, head: &TcpHead) {
        let ends = Ends {
            guest: SocketAddr::new(packet.source, head.source_port),
            remote: SocketAddr::new(packet.destination, head.destination_port),
        };
        let listed = self.shared.connections().get(&ends).cloned();
        if let Some(connection) = listed
            && connection.take(packet, head)
        {
            return;
        }
        if !head.opens {
            // From before this gateway, or from after its end.
            self.reset(packet);
        } else if is_gateway(packet.destination) {
            self.open_to_gateway(packet, ends);
        } else {
            self.open(packet, ends);
        }
    }

    /// Opens a connection to the world, if it may.
    fn open(&mut self, packet: &Packet<'_>, ends: Ends) {
        let shared = Arc::clone(&self.shared);
        if let Err(rule) = self.may_open() {
            shared.refuse(Protocol::Tcp, ends.remote, None, rule);
            return self.reset(packet);
        }
        let policy = shared.policy();
        let names = shared.names_of(ends.remote.ip());
        let (verdict, reach) =
            shared.decide(EgressProtocol::Tcp, ends.remote, &names, Claim::Unknown);
        if let Verdict::Deny(rule) = verdict {
            let name = names.first().map(|name| name.to_string());
            shared.refuse(Protocol::Tcp, ends.remote, name, rule);
            return self.reset(packet);
        }
        if reach == Reach::Nowhere {
            return shared
                .card
                .send(|out| frame::unreachable(Unreachable::Host, packet.bytes, out));
        }
        let inspected = verdict == Verdict::Inspect;
        let connection = Arc::new(Connection::new(ends, names, packet.bytes, inspected));
        self.serve(Arc::clone(&connection), Opening::Dial);
        if !Arc::ptr_eq(&policy, &shared.policy()) {
            // Another policy came between the decision and the table.
            connection.judge_again(&shared);
        }
    }

    /// Opens a connection to the gateway's own name server.
    fn open_to_gateway(&mut self, packet: &Packet<'_>, ends: Ends) {
        if ends.remote.port() != DNS_PORT || self.may_open().is_err() {
            return self.reset(packet);
        }
        let Ok((ours, theirs)) = UnixStream::pair() else {
            return self.reset(packet);
        };
        self.tasks
            .spawn(dns::over_tcp(Arc::clone(&self.shared), theirs));
        let connection = Connection::new(ends, Vec::new(), packet.bytes, false);
        self.serve(Arc::new(connection), Opening::Local(ours));
    }

    fn serve(&mut self, connection: Arc<Connection>, opening: Opening) {
        let ends = connection.ends;
        self.shared
            .connections()
            .insert(ends, Arc::clone(&connection));
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(tcp::serve(shared, connection, opening));
    }

    fn may_open(&self) -> Result<(), &'static str> {
        if self.shared.connections().len() >= self.shared.limits.connections {
            return Err("connection limit");
        }
        if !self.shared.new_connections.take_one() {
            return Err("connection rate limit");
        }
        Ok(())
    }

    fn take_datagram(&mut self, packet: &Packet<'_>, ends: Ends, data: &[u8]) {
        if is_gateway(ends.remote.ip()) {
            if ends.remote.port() != DNS_PORT {
                return self.prohibit(packet);
            }
            // One more than fits is a flood; its sender asks again.
            if let Ok(permit) = Arc::clone(&self.queries).try_acquire_owned() {
                let answering = dns::over_udp(Arc::clone(&self.shared), ends.guest, data.to_vec());
                self.tasks.spawn(async move {
                    answering.await;
                    drop(permit);
                });
            }
            return;
        }
        if let Some(flow) = self.flow(EgressProtocol::Udp, packet, ends) {
            flow.send(&self.shared, data);
        }
    }

    fn take_ping(&mut self, packet: &Packet<'_>, echo: &Echo<'_>) {
        if is_gateway(packet.destination) {
            let (from, to) = (packet.destination, packet.source);
            return self
                .shared
                .card
                .send(|out| frame::echo_reply(from, to, echo, out));
        }
        let ends = Ends {
            guest: SocketAddr::new(packet.source, echo.identifier),
            remote: SocketAddr::new(packet.destination, 0),
        };
        if let Some(flow) = self.flow(EgressProtocol::Icmp, packet, ends) {
            flow.ping(&self.shared, echo);
        }
    }

    /// The flow between two ends, a new one if it may be; otherwise the guest is told.
    fn flow(
        &mut self,
        protocol: EgressProtocol,
        packet: &Packet<'_>,
        ends: Ends,
    ) -> Option<Arc<Flow>> {
        let shared = Arc::clone(&self.shared);
        if let Some(flow) = shared.flows().get(&(protocol, ends)) {
            return Some(Arc::clone(flow));
        }
        let policy = shared.policy();
        let names = shared.names_of(ends.remote.ip());
        let name = names.first().map(|name| name.to_string());
        let (verdict, _) = shared.decide(protocol, ends.remote, &names, Claim::Unknown);
        if let Verdict::Deny(rule) = verdict {
            shared.refuse(protocol.into(), ends.remote, name, rule);
            self.prohibit(packet);
            return None;
        }
        if !shared.new_connections.take_one() {
            shared.refuse(protocol.into(), ends.remote, name, "connection rate limit");
            self.prohibit(packet);
            return None;
        }
        let flow = match Flow::open(protocol, ends, names) {
            Ok(flow) => Arc::new(flow),
            Err(error) => {
                self.unopened(protocol, packet, ends, name, &error);
                return None;
            }
        };
        let mut flows = shared.flows();
        flow::make_room(&mut flows, shared.limits.udp_flows);
        flows.insert((protocol, ends), Arc::clone(&flow));
        drop(flows);
        add(&shared.sums.connections, 1);
        if !Arc::ptr_eq(&policy, &shared.policy()) {
            flow.judge_again(&shared);
        }
        self.tasks
            .spawn(flow::serve(Arc::clone(&shared), Arc::clone(&flow)));
        Some(flow)
    }

    /// Tells the guest why the host opens no such flow.
    fn unopened(
        &self,
        protocol: EgressProtocol,
        packet: &Packet<'_>,
        ends: Ends,
        name: Option<String>,
        error: &io::Error,
    ) {
        let no_way = matches!(
            error.kind(),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
        );
        let why = if no_way {
            Unreachable::Host
        } else {
            let rule = match protocol {
                EgressProtocol::Icmp => "the host does not allow pings",
                _ => "the host has no socket left",
            };
            self.shared.refuse(protocol.into(), ends.remote, name, rule);
            Unreachable::Prohibited
        };
        self.shared
            .card
            .send(|out| frame::unreachable(why, packet.bytes, out));
    }

    fn reset(&self, packet: &Packet<'_>) {
        self.shared.card.send(|out| frame::reset(packet, out));
    }

    fn prohibit(&self, packet: &Packet<'_>) {
        self.shared
            .card
            .send(|out| frame::unreachable(Unreachable::Prohibited, packet.bytes, out));
    }
}

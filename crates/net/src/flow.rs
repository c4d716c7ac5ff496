//! Datagrams and pings of the guest, each pair of ends with a connected socket of the
//! host, so that nobody else's datagrams come back and errors have an owner.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pando_types::EgressProtocol;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

use crate::frame::{self, Echo, Unreachable};
use crate::policy::{Claim, Verdict};
use crate::report::{ConnectionReport, ConnectionState};
use crate::shared::{Ends, Flows, Shared, add};

/// How long nothing need pass. Name queries are over at once; calls and games send more
/// often.
const IDLE: Duration = Duration::from_secs(60);

/// Longest datagram, over either version of IP.
const DATAGRAM_BYTES: usize = 65507;

/// Bytes before a ping's data.
const PING_HEADER_BYTES: usize = 8;

const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// Whether this host lets this user ping: `net.ipv4.ping_group_range` says who may.
pub fn ping_allowed() -> bool {
    ping_socket(IpAddr::from([0, 0, 0, 0])).is_ok()
}

/// Datagrams between two ends, or pings.
pub(crate) struct Flow {
    protocol: EgressProtocol,
    ends: Ends,
    names: Vec<Arc<str>>,
    socket: UdpSocket,
    began: Instant,
    /// Milliseconds after it began.
    used_ms: AtomicU64,
    cut: AtomicBool,
    wake: Notify,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Flow {
    /// A flow with a socket of its own. No packet is sent.
    ///
    /// # Errors
    /// There is no way there, or the host does not allow it.
    pub(crate) fn open(
        protocol: EgressProtocol,
        ends: Ends,
        names: Vec<Arc<str>>,
    ) -> io::Result<Self> {
        let socket = match protocol {
            EgressProtocol::Icmp => ping_socket(ends.remote.ip())?,
            _ => Socket::new(Domain::for_address(ends.remote), Type::DGRAM, None)?,
        };
        socket.set_nonblocking(true)?;
        socket.connect(&ends.remote.into())?;
        Ok(Self {
            protocol,
            ends,
            names,
            socket: UdpSocket::from_std(OwnedFd::from(socket).into())?,
            began: Instant::now(),
            used_ms: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            wake: Notify::new(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        })
    }

    /// Sends a datagram of the guest, or drops it where the host has no room.
    pub(crate) fn send(&self, shared: &Shared, data: &[u8]) {
        self.touch();
        if let Some(bucket) = shared.bandwidth[0].get()
            && !bucket.take(data.len() as u64, Instant::now())
        {
            return;
        }
        // The first error may be about what was sent before.
        // Not by the runtime, which does not know yet that a new socket can be written.
        let socket = SockRef::from(&self.socket);
        let sent = socket.send(data).or_else(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                return Err(error);
            }
            self.tell(shared, &error);
            socket.send(data)
        });
        if let Ok(count) = sent {
            add(&self.sent_bytes, count);
            add(&shared.sums.sent_bytes, count);
        }
    }

    /// Sends a ping of the guest.
    pub(crate) fn ping(&self, shared: &Shared, echo: &Echo<'_>) {
        let kind = match self.ends.remote {
            SocketAddr::V4(_) => ECHO_REQUEST_V4,
            SocketAddr::V6(_) => ECHO_REQUEST_V6,
        };
        // The kernel puts its own identifier and the checksum in.
        let mut message = vec![kind, 0, 0, 0, 0, 0];
        message.extend(echo.sequence.to_be_bytes());
        message.extend_from_slice(echo.data);
        self.send(shared, &message);
    }

    /// Cuts it if the policy, which is another now, forbids it.
    pub(crate) fn judge_again(&self, shared: &Shared) {
        let (verdict, _) =
            shared.decide(self.protocol, self.ends.remote, &self.names, Claim::Unknown);
        if let Verdict::Deny(rule) = verdict {
            self.cut();
            let name = self.names.first().map(|name| name.to_string());
            shared.refuse(self.protocol.into(), self.ends.remote, name, rule);
        }
    }

    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn report(&self) -> ConnectionReport {
        ConnectionReport {
            protocol: self.protocol.into(),
            guest: self.ends.guest,
            remote: self.ends.remote,
            name: self.names.first().map(|name| name.to_string()),
            state: ConnectionState::Open,
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            age_ms: self.age_ms(),
        }
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn touch(&self) {
        self.used_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        let used = self.used_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.age_ms().saturating_sub(used))
    }

    /// Tells the guest what became of something it sent.
    fn tell(&self, shared: &Shared, error: &io::Error) {
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => Unreachable::Port,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Unreachable::Host,
            io::ErrorKind::PermissionDenied => Unreachable::Prohibited,
            _ => return,
        };
        let Ends { guest, remote } = self.ends;
        let sent = match self.protocol {
            EgressProtocol::Icmp => frame::sent_ping(guest.ip(), remote.ip(), guest.port()),
            _ => frame::sent_datagram(guest, remote),
        };
        shared.card.send(|out| frame::unreachable(why, &sent, out));
    }

    /// Passes a datagram of the world to the guest, or drops it.
    fn pass(&self, shared: &Shared, data: &[u8]) {
        self.touch();
        if let Some(bucket) = shared.bandwidth[1].get()
            && !bucket.take(data.len() as u64, Instant::now())
        {
            return;
        }
        add(&self.received_bytes, data.len());
        add(&shared.sums.received_bytes, data.len());
        let Ends { guest, remote } = self.ends;
        if self.protocol != EgressProtocol::Icmp {
            shared.card.send(|out| frame::udp(remote, guest, data, out));
            return;
        }
        let Some((header, data)) = data.split_first_chunk::<PING_HEADER_BYTES>() else {
            return;
        };
        let reply = match remote {
            SocketAddr::V4(_) => ECHO_REPLY_V4,
            SocketAddr::V6(_) => ECHO_REPLY_V6,
        };
        if header[0] != reply {
            return;
        }
        let echo = Echo {
            identifier: guest.port(),
            sequence: u16::from_be_bytes([header[6], header[7]]),
            data,
        };
        shared
            .card
            .send(|out| frame::echo_reply(remote.ip(), guest.ip(), &echo, out));
    }
}

/// Takes the flow out of the table at the end, whatever ends it.
struct Listed<'s> {
    shared: &'s Shared,
    flow: Arc<Flow>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut flows = self.shared.flows();
        let key = (self.flow.protocol, self.flow.ends);
        if flows
            .get(&key)
            .is_some_and(|listed| Arc::ptr_eq(listed, &self.flow))
        {
            flows.remove(&key);
        }
    }
}

/// Serves a flow that is in the table, until it is idle or cut.
pub(crate) async fn serve(shared: Arc<Shared>, flow: Arc<Flow>) {
    thread_local! {
        static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let listed = Listed {
        shared: &shared,
        flow,
    };
    let flow = &listed.flow;
    while !flow.cut.load(Ordering::Acquire) {
        let Some(left) = IDLE.checked_sub(flow.idle()) else {
            return;
        };
        // An error alone, such as that nobody listens, must wake it too.
        let interest = Interest::READABLE | Interest::ERROR;
        tokio::select! {
            received = flow.socket.async_io(interest, || {
                BUFFER.with_borrow_mut(|buffer| {
                    buffer.resize(DATAGRAM_BYTES, 0);
                    let count = (&*SockRef::from(&flow.socket)).read(buffer)?;
                    flow.pass(&shared, &buffer[..count]);
                    Ok(())
                })
            }) => if let Err(error) = received {
                flow.tell(&shared, &error);
            },
            () = flow.wake.notified() => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

/// Makes room for another flow, where there are as many as allowed: the one that was
/// longest unused goes.
pub(crate) fn make_room(flows: &mut Flows, limit: usize) {
    while flows.len() >= limit.max(1) {
        let Some(oldest) = flows
            .iter()
            .max_by_key(|(_, flow)| flow.idle())
            .map(|(key, _)| *key)
        else {
            return;
        };
        if let Some(flow) = flows.remove(&oldest) {
            flow.cut();
        }
    }
}

fn ping_socket(remote: IpAddr) -> io::Result<Socket> {
    let (domain, protocol) = match remote {
        IpAddr::V4(_) => (Domain::IPV4, socket2::Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, socket2::Protocol::ICMPV6),
    };
    Socket::new(domain, Type::DGRAM, Some(protocol))
}

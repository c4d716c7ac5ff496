//! Copying between the two ends of a connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pando_types::{EgressAction, EgressProtocol};
use smoltcp::socket::tcp::{self, State};

use super::connection::{Connection, Phase};
use super::host::HostEnd;
use super::stack::{self, Stack};
use crate::inspect::{Glance, Inspector, glance};
use crate::limits::Bucket;
use crate::policy::{Claim, Verdict};
use crate::report::Protocol;
use crate::shared::{Shared, add, lock};

/// Bytes moved each way before others get their turn.
const TURN_BYTES: usize = 256 << 10;

/// How long the guest may take to answer the gateway's answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long bytes may wait for the rest of what names somebody.
const NAME_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a reset waits for a guest that does not read.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);

/// The shortest sleep: the timers' own resolution.
const LEAST_SLEEP: Duration = Duration::from_millis(1);

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Both ends said all.
    Done,
    /// The guest reset it, or is gone.
    GuestReset,
    /// The world reset it.
    HostReset,
    /// We do, both ways.
    Cut,
}

/// What comes next.
enum Next {
    Turn,
    Wait(Waits),
    End(End),
}

/// What a connection waits for, besides packets.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    read: bool,
    write: bool,
    card: bool,
    sleep: Option<Duration>,
    /// There is more to do at once.
    more: bool,
}

impl Waits {
    fn sleep(&mut self, time: Duration) {
        self.sleep = Some(self.sleep.map_or(time, |other| other.min(time)));
    }
}

struct Pump<'s> {
    shared: &'s Shared,
    connection: &'s Connection,
    host: HostEnd,
    inspector: Option<Inspector>,
    /// The guest's first bytes were seen.
    begun: bool,
    /// Since when bytes wait for a name.
    unnamed_since: Option<Instant>,
    accepted: Instant,
    guest_ended: bool,
    host_ended: bool,
}

/// Copies until the connection is over.
pub(super) async fn run(shared: &Shared, connection: &Arc<Connection>, host: HostEnd) {
    let mut pump = Pump {
        shared,
        connection,
        host,
        inspector: None,
        begun: false,
        unnamed_since: None,
        accepted: Instant::now(),
        guest_ended: false,
        host_ended: false,
    };
    let end = loop {
        match pump.turn() {
            Next::Turn => tokio::task::yield_now().await,
            Next::Wait(waits) => pump.wait(waits).await,
            Next::End(end) => break end,
        }
    };
    pump.finish(end).await;
}

impl Pump<'_> {
    fn turn(&mut self) -> Next {
        let connection = self.connection;
        let mut phase = lock(&connection.phase);
        let Phase::Open(stack) = &mut *phase else {
            return Next::End(End::GuestReset);
        };
        match self.copy(stack) {
            Ok(waits) if waits.more => Next::Turn,
            Ok(waits) => Next::Wait(waits),
            Err(end) => Next::End(end),
        }
    }

    fn copy(&mut self, stack: &mut Stack) -> Result<Waits, End> {
        if self.connection.is_cut() {
            return Err(End::Cut);
        }
        self.look_for_end(stack.socket())?;
        let mut waits = Waits::default();
        self.send_out(stack.socket(), &mut waits)?;
        self.bring_in(stack.socket(), &mut waits)?;
        waits.card = !stack.flush();
        let state = stack.socket().state();
        if state == State::TimeWait && !waits.card {
            // The guest's last word is acknowledged. Should it not have arrived, the guest
            // repeats it, and gets a reset for a connection that is over either way.
            return Err(End::Done);
        }
        self.look_for_end(stack.socket())?;
        if !waits.card
            && let Some(wait) = stack.wait()
        {
            waits.sleep(wait.max(LEAST_SLEEP));
        }
        if stack::is_opening(state) {
            let passed = self.accepted.elapsed();
            waits.sleep(OPEN_TIMEOUT.checked_sub(passed).ok_or(End::Cut)?);
        }
        Ok(waits)
    }

    fn look_for_end(&self, socket: &tcp::Socket<'_>) -> Result<(), End> {
        match socket.state() {
            State::Closed if self.guest_ended && self.host_ended => Err(End::Done),
            State::Closed | State::Listen => Err(End::GuestReset),
            _ => Ok(()),
        }
    }

    fn send_out(&mut self, socket: &mut tcp::Socket<'_>, waits: &mut Waits) -> Result<(), End> {
        let mut left = TURN_BYTES;
        while socket.can_recv() || self.inspector.is_some() {
            let allowed = allowed(self.shared.bandwidth[0].get(), left, waits);
            if allowed == 0 {
                break;
            }
            if !self.begun {
                self.begin(socket);
            }
            let written = if self.inspector.is_some() {
                self.inspect(socket, allowed)?
            } else {
                let host = &self.host;
                let write = |bytes: &mut [u8]| {
                    let bytes = &bytes[..bytes.len().min(allowed)];
                    match host.try_write(bytes) {
                        Ok(count) => (count, Ok(Some(count))),
                        Err(error) => (0, Err(error)),
                    }
                };
                socket.recv(write).unwrap_or(Ok(None))
            };
            match written {
                Ok(Some(count)) => {
                    self.count_sent(count);
                    left -= count.min(left);
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    waits.write = true;
                    break;
                }
                Err(_) => return Err(End::HostReset),
            }
        }
        self.wait_for_name(waits)?;
        let empty = !socket.can_recv() && self.inspector.is_none();
        if stack::has_ended(socket) && !self.guest_ended {
            if empty {
                self.guest_ended = true;
                self.connection.half_closed.store(true, Ordering::Relaxed);
                self.host.finish_writing();
            } else if self.inspector.as_ref().is_some_and(Inspector::waits) {
                // It will never be whole.
                return Err(End::Cut);
            } else if self.inspector.as_ref().is_some_and(Inspector::is_empty) {
                self.inspector = None;
                waits.more = true;
            }
        }
        Ok(())
    }

    /// Sees the guest's first bytes, and decides who looks at them.
    fn begin(&mut self, socket: &mut tcp::Socket<'_>) {
        self.begun = true;
        let port = self.connection.ends.remote.port();
        // Under the lock, so that another policy sees either nothing or what was seen.
        let mut seen = lock(&self.connection.seen);
        if self.connection.inspected.load(Ordering::Acquire) {
            let inspector = Inspector::new(port);
            self.inspector = Some(match self.shared.policy().default {
                EgressAction::Allow => inspector.lenient(),
                EgressAction::Deny => inspector,
            });
        } else if let Ok(bytes) = socket.peek(TURN_BYTES) {
            seen.glance = glance(bytes, port);
        }
    }

    /// Moves bytes through the inspector; how many went out, or `None` where none can.
    fn inspect(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        allowed: usize,
    ) -> Result<io::Result<Option<usize>>, End> {
        let (shared, connection) = (self.shared, self.connection);
        let Some(inspector) = &mut self.inspector else {
            return Ok(Ok(None));
        };
        let room = inspector.room();
        let mut taken = 0;
        if room > 0 && socket.can_recv() {
            let push = |bytes: &mut [u8]| {
                let count = bytes.len().min(room);
                inspector.push(&bytes[..count]);
                (count, count)
            };
            taken = socket.recv(push).unwrap_or(0);
        }
        let mut check = |claim: Claim<'_>| check(shared, connection, claim);
        if let Err(rule) = inspector.advance(&mut check) {
            refuse(shared, connection, rule);
            return Err(End::Cut);
        }
        let ready = inspector.ready();
        if ready.is_empty() {
            if inspector.is_through() {
                self.inspector = None;
                return Ok(Ok(Some(0)));
            }
            return Ok(Ok((taken > 0 && socket.can_recv()).then_some(0)));
        }
        let written = self.host.try_write(&ready[..ready.len().min(allowed)]);
        if let Ok(count) = written {
            inspector.sent(count);
        }
        if inspector.is_through() {
            self.inspector = None;
        }
        Ok(written.map(Some))
    }

    fn wait_for_name(&mut self, waits: &mut Waits) -> Result<(), End> {
        if !self.inspector.as_ref().is_some_and(Inspector::waits) {
            self.unnamed_since = None;
            return Ok(());
        }
        let since = *self.unnamed_since.get_or_insert_with(Instant::now);
        match NAME_TIMEOUT.checked_sub(since.elapsed()) {
            Some(left) => waits.sleep(left),
            None => {
                refuse(self.shared, self.connection, "no name in time".into());
                return Err(End::Cut);
            }
        }
        Ok(())
    }

    fn bring_in(&mut self, socket: &mut tcp::Socket<'_>, waits: &mut Waits) -> Result<(), End> {
        let mut left = TURN_BYTES;
        while !self.host_ended && socket.can_send() {
            let allowed = allowed(self.shared.bandwidth[1].get(), left, waits);
            if allowed == 0 {
                break;
            }
            let (host, inspector) = (&self.host, &mut self.inspector);
            let mut observed = Ok(());
            let read = socket.send(|room| {
                let count = room.len().min(allowed);
                match host.try_read(&mut room[..count]) {
                    Ok(count) => {
                        if let Some(inspector) = inspector {
                            observed = inspector.observe(&room[..count]);
                        }
                        (count, Ok(count))
                    }
                    Err(error) => (0, Err(error)),
                }
            });
            if let Err(rule) = observed {
                refuse(self.shared, self.connection, rule);
                return Err(End::Cut);
            }
            match read {
                Ok(Ok(0)) => {
                    self.host_ended = true;
                    self.connection.half_closed.store(true, Ordering::Relaxed);
                    socket.close();
                }
                Ok(Ok(count)) => {
                    self.count_received(count);
                    left -= count.min(left);
                    // The answer to an upgrade frees what waits for it.
                    waits.more |= self.inspector.is_some();
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    waits.read = true;
                    break;
                }
                Ok(Err(_)) => return Err(End::HostReset),
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn count_sent(&self, count: usize) {
        add(&self.connection.sent_bytes, count);
        add(&self.shared.sums.sent_bytes, count);
        if let Some(bucket) = self.shared.bandwidth[0].get() {
            bucket.use_up(count);
        }
    }

    fn count_received(&self, count: usize) {
        add(&self.connection.received_bytes, count);
        add(&self.shared.sums.received_bytes, count);
        if let Some(bucket) = self.shared.bandwidth[1].get() {
            bucket.use_up(count);
        }
    }

    async fn wait(&self, waits: Waits) {
        tokio::select! {
            () = self.connection.wake.notified() => {}
            () = self.host.ready(waits.read, waits.write) => {}
            () = self.shared.card.writable(), if waits.card => {}
            () = tokio::time::sleep(waits.sleep.unwrap_or_default()), if waits.sleep.is_some() => {}
        }
    }

    /// Tells both ends how it ended.
    async fn finish(self, end: End) {
        if matches!(end, End::GuestReset | End::Cut) {
            self.host.reset_when_dropped();
        }
        if !matches!(end, End::HostReset | End::Cut) {
            return;
        }
        let told = async {
            while !self.reset_guest() {
                self.shared.card.writable().await;
            }
        };
        // Where it is not told in time, the guest's next segment is answered by a reset.
        let _ = tokio::time::timeout(RESET_TIMEOUT, told).await;
    }

    /// Whether the guest's reset is on its way.
    fn reset_guest(&self) -> bool {
        let mut phase = lock(&self.connection.phase);
        let Phase::Open(stack) = &mut *phase else {
            return true;
        };
        stack.socket().abort();
        stack.flush()
    }
}

/// How much of `left` may be moved now; where it is nothing, what is waited for.
fn allowed(bucket: Option<&Bucket>, left: usize, waits: &mut Waits) -> usize {
    if left == 0 {
        waits.more = true;
        return 0;
    }
    let Some(bucket) = bucket else {
        return left;
    };
    let allowed = bucket.left(Instant::now()).min(left);
    if allowed == 0 {
        waits.sleep(bucket.wait().max(LEAST_SLEEP));
    }
    allowed
}

/// Asks the policy about a claim, and remembers what was allowed.
fn check(shared: &Shared, connection: &Connection, claim: Claim<'_>) -> Result<(), String> {
    let mut seen = lock(&connection.seen);
    match claim {
        Claim::Named(name) => seen.claimed = Some(name.to_owned()),
        Claim::Nameless(_) => seen.glance = Glance::Tls(None),
        Claim::Opaque => seen.glance = Glance::Opaque,
        Claim::Unknown => {}
    }
    drop(seen);
    let remote = connection.ends.remote;
    let (verdict, _) = shared.decide(EgressProtocol::Tcp, remote, &connection.names, claim);
    match verdict {
        Verdict::Allow => Ok(()),
        Verdict::Deny(rule) => Err(rule),
        Verdict::Inspect => Err("unclear".into()),
    }
}

fn refuse(shared: &Shared, connection: &Connection, rule: String) {
    shared.refuse(
        Protocol::Tcp,
        connection.ends.remote,
        connection.name(),
        rule,
    );
}

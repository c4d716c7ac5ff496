//! What everybody may know and do about a connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pando_types::EgressProtocol;
use tokio::sync::Notify;

use super::stack::Stack;
use crate::frame::{Packet, TcpHead};
use crate::inspect::Glance;
use crate::policy::{Claim, Verdict};
use crate::report::{ConnectionReport, ConnectionState, Protocol};
use crate::shared::{Ends, Shared, lock};

/// One connection of the guest. Its task drives it; the gateway's loop gives it packets.
pub(crate) struct Connection {
    pub(crate) ends: Ends,
    /// The names of the remote address when it was dialled: they live as long as this.
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) phase: Mutex<Phase>,
    /// Wakes its task.
    pub(crate) wake: Notify,
    /// Its task ends it with a reset.
    cut: AtomicBool,
    /// Whether its bytes must be looked at before they go out. Read by its task before the
    /// guest's first bytes do.
    pub(crate) inspected: AtomicBool,
    pub(crate) seen: Mutex<Seen>,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) half_closed: AtomicBool,
    began: Instant,
}

/// How far it is.
pub(crate) enum Phase {
    /// The host is connecting; this is the guest's opening packet.
    Dialling(Vec<u8>),
    /// Both ends stand.
    Open(Box<Stack>),
    /// It is over; nothing more is taken.
    Over,
}

/// What was seen of it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// By its first bytes.
    pub(crate) glance: Glance,
    /// The name that it said and that was found allowed.
    pub(crate) claimed: Option<String>,
}

impl Connection {
    pub(crate) fn new(ends: Ends, names: Vec<Arc<str>>, opening: &[u8], inspected: bool) -> Self {
        Self {
            ends,
            names,
            phase: Mutex::new(Phase::Dialling(opening.to_vec())),
            wake: Notify::new(),
            cut: AtomicBool::new(false),
            inspected: AtomicBool::new(inspected),
            seen: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            half_closed: AtomicBool::new(false),
            began: Instant::now(),
        }
    }

    /// Takes a packet of the guest. `false` where it is over, so that the packet belongs
    /// to another connection or to none.
    pub(crate) fn take(&self, packet: &Packet<'_>, head: &TcpHead) -> bool {
        let mut phase = lock(&self.phase);
        match &mut *phase {
            Phase::Dialling(_) => {
                // A repeated opening waits with the first; a reset takes it back.
                if head.reset {
                    *phase = Phase::Over;
                    self.wake.notify_one();
                }
                true
            }
            Phase::Open(stack) => {
                // The stack is somebody else's code and reads hostile bytes: what it does
                // not survive must not take the sandbox's network with it.
                let taken = catch_unwind(AssertUnwindSafe(|| stack.take(packet.bytes)));
                if taken.is_err() {
                    *phase = Phase::Over;
                }
                drop(phase);
                self.wake.notify_one();
                true
            }
            Phase::Over => false,
        }
    }

    /// Has its task end it with a reset both ways.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Cuts it if the policy, which is another now, forbids it.
    pub(crate) fn judge_again(&self, shared: &Shared) {
        let seen = lock(&self.seen);
        let claim = match &seen.glance {
            _ if seen.claimed.is_some() => Claim::Named(seen.claimed.as_deref().unwrap_or("")),
            Glance::Nothing => Claim::Unknown,
            Glance::Tls(Some(name)) => Claim::Named(name),
            Glance::Tls(None) => Claim::Nameless("no SNI"),
            Glance::Http => Claim::Unknown,
            Glance::Opaque => Claim::Opaque,
        };
        let (verdict, _) = shared.decide(EgressProtocol::Tcp, self.ends.remote, &self.names, claim);
        let rule = match verdict {
            Verdict::Allow => return,
            Verdict::Inspect if seen.glance == Glance::Nothing => {
                self.inspected.store(true, Ordering::Release);
                return;
            }
            Verdict::Inspect => "names were not looked at before".to_owned(),
            Verdict::Deny(rule) => rule,
        };
        drop(seen);
        self.cut();
        shared.refuse(Protocol::Tcp, self.ends.remote, self.name(), rule);
    }

    /// The name it is for, as far as one is known.
    pub(crate) fn name(&self) -> Option<String> {
        let seen = lock(&self.seen);
        let glanced = match &seen.glance {
            Glance::Tls(name) => name.clone(),
            _ => None,
        };
        let by_address = || self.names.first().map(|name| name.to_string());
        seen.claimed.clone().or(glanced).or_else(by_address)
    }

    pub(crate) fn report(&self) -> ConnectionReport {
        let state = match *lock(&self.phase) {
            Phase::Dialling(_) => ConnectionState::Connecting,
            _ if self.half_closed.load(Ordering::Relaxed) => ConnectionState::HalfClosed,
            _ => ConnectionState::Open,
        };
        ConnectionReport {
            protocol: Protocol::Tcp,
            guest: self.ends.guest,
            remote: self.ends.remote,
            name: self.name(),
            state,
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            age_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

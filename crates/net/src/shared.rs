//! What all tasks of one gateway share.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use pando_types::{EgressPolicy, EgressProtocol};

use crate::card::Card;
use crate::dns::{Names, Upstream};
use crate::flow::Flow;
use crate::limits::{Bucket, GatewayLimits};
use crate::own::{OwnAddresses, Reach};
use crate::policy::{self, Claim, Target, Verdict};
use crate::report::{ConnectionReport, NetworkReport, NetworkTotals, Protocol, Refusals, Refused};
use crate::tcp::Connection;

/// Both ends of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub(crate) guest: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// Connections by their ends.
pub(crate) type Connections = HashMap<Ends, Arc<Connection>>;

/// UDP flows and pings by what they are and their ends.
pub(crate) type Flows = HashMap<(EgressProtocol, Ends), Arc<Flow>>;

/// What all tasks of one gateway share.
pub(crate) struct Shared {
    pub(crate) card: Arc<Card>,
    pub(crate) limits: GatewayLimits,
    pub(crate) own: OwnAddresses,
    pub(crate) upstream: Upstream,
    pub(crate) refusals: Refusals,
    pub(crate) sums: Sums,
    pub(crate) new_connections: Bucket,
    pub(crate) queries: Bucket,
    /// From and to the guest; empty where nothing is limited.
    pub(crate) bandwidth: [OnceLock<Bucket>; 2],
    policy: RwLock<Arc<EgressPolicy>>,
    names: Mutex<Names>,
    connections: Mutex<Connections>,
    flows: Mutex<Flows>,
}

/// Sums since the gateway began.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) connections: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) names: AtomicU64,
    pub(crate) frames: AtomicU64,
}

/// Adds to a sum.
pub(crate) fn add(sum: &AtomicU64, count: usize) {
    sum.fetch_add(count as u64, Ordering::Relaxed);
}

/// A lock whose holder panicked is as good as before: what is under these is always whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(
        card: Card,
        policy: EgressPolicy,
        resolvers: Vec<SocketAddr>,
        names: &[u8],
        limits: GatewayLimits,
    ) -> Self {
        Self {
            card: Arc::new(card),
            limits,
            own: OwnAddresses::default(),
            upstream: Upstream::new(resolvers),
            refusals: Refusals::default(),
            sums: Sums::default(),
            new_connections: limits.connection_bucket(),
            queries: limits.dns_bucket(),
            bandwidth: [(); 2].map(|()| {
                let bucket = limits.bandwidth_bucket();
                bucket.map_or_else(OnceLock::new, OnceLock::from)
            }),
            policy: RwLock::new(Arc::new(policy)),
            names: Mutex::new(Names::from_bytes(names, Instant::now())),
            connections: Mutex::default(),
            flows: Mutex::default(),
        }
    }

    pub(crate) fn policy(&self) -> Arc<EgressPolicy> {
        let policy = self.policy.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&policy)
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    pub(crate) fn connections(&self) -> MutexGuard<'_, Connections> {
        lock(&self.connections)
    }

    pub(crate) fn flows(&self) -> MutexGuard<'_, Flows> {
        lock(&self.flows)
    }

    /// The names under which an address was given out.
    pub(crate) fn names_of(&self, address: IpAddr) -> Vec<Arc<str>> {
        self.names().of(address, Instant::now())
    }

    /// Decides about a target by the policy of now. What has no route is [`Reach::Nowhere`],
    /// whatever is decided.
    pub(crate) fn decide(
        &self,
        protocol: EgressProtocol,
        remote: SocketAddr,
        names: &[Arc<str>],
        claim: Claim<'_>,
    ) -> (Verdict, Reach) {
        let reach = self.own.reach(remote.ip());
        let target = Target {
            address: remote.ip(),
            port: (protocol != EgressProtocol::Icmp).then_some(remote.port()),
            protocol: Some(protocol),
            own: reach == Reach::Own,
        };
        (policy::decide(&self.policy(), &target, names, claim), reach)
    }

    /// Remembers a refusal.
    pub(crate) fn refuse(
        &self,
        protocol: Protocol,
        destination: SocketAddr,
        name: Option<String>,
        rule: impl Into<String>,
    ) {
        self.refusals.add(Refused {
            protocol,
            destination,
            name,
            rule: rule.into(),
        });
    }

    /// Takes another policy and cuts what it forbids.
    pub(crate) fn set_policy(&self, policy: EgressPolicy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        let connections: Vec<_> = self.connections().values().cloned().collect();
        for connection in connections {
            connection.judge_again(self);
        }
        let flows: Vec<_> = self.flows().values().cloned().collect();
        for flow in flows {
            flow.judge_again(self);
        }
    }

    pub(crate) fn report(&self) -> NetworkReport {
        // Not under the tables' locks: a connection at work holds its own for a while.
        let live: Vec<_> = self.connections().values().cloned().collect();
        let flows: Vec<_> = self.flows().values().cloned().collect();
        let mut connections: Vec<ConnectionReport> =
            live.iter().map(|connection| connection.report()).collect();
        connections.extend(flows.iter().map(|flow| flow.report()));
        connections.sort_by_key(|connection| std::cmp::Reverse(connection.age_ms));
        let (refused, refusals) = self.refusals.list();
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        NetworkReport {
            connections,
            totals: NetworkTotals {
                connections: read(&self.sums.connections),
                sent_bytes: read(&self.sums.sent_bytes),
                received_bytes: read(&self.sums.received_bytes),
                names: read(&self.sums.names),
                refused,
                frames: read(&self.sums.frames),
                unsent: self.card.unsent(),
            },
            refusals,
        }
    }
}

//! The guest's network card: what the daemon says of it, and what it is told.

use crate::machine::{Machine, StartError};
use crate::spec::{self, Network};
use connectrpc::{ConnectError, ServiceStream};
use futures::stream;
use pando_net::{GatewayHandle, NetworkReport};
use pando_types::{EgressAction, EgressError, EgressPolicy};
use pando_wire::shim::{
    NetworkConnection, NetworkPolicy, NetworkResponse, Refusal, WatchRefusalsResponse,
};
use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// More than the gateway ever writes.
const NETWORK_FILE_BYTES: u64 = 1 << 20;

/// What there is of a policy where the daemon has said nothing.
pub(crate) fn nothing() -> EgressPolicy {
    EgressPolicy {
        rules: Vec::new(),
        default: EgressAction::Deny,
    }
}

/// Reads what came from the daemon.
pub(crate) fn policy_of(network: &Network) -> Result<EgressPolicy, EgressError> {
    let rules = network.rules.iter().map(|rule| rule.parse());
    let default = match network.allow_rest {
        true => EgressAction::Allow,
        false => EgressAction::Deny,
    };
    EgressPolicy::ordered(rules.collect::<Result<_, _>>()?, default)
}

/// The same from a message.
pub(crate) fn network_of(message: NetworkPolicy) -> Result<Network, String> {
    let resolvers: Result<Vec<SocketAddr>, _> = message
        .resolvers
        .iter()
        .map(|resolver| resolver.parse())
        .collect();
    Ok(Network {
        rules: message.rules,
        allow_rest: message.allow_rest,
        resolvers: resolvers.map_err(|error| format!("a resolver is malformed: {error}"))?,
    })
}

/// Has the gateway let through what this says and nothing else.
pub(crate) fn apply(gateway: &GatewayHandle, network: &Network) -> Result<(), EgressError> {
    gateway.set_resolvers(network.resolvers.clone());
    gateway.set_policy(policy_of(network)?);
    Ok(())
}

impl Machine {
    /// Gives the gateway what a snapshot's knew. Once the guest answers: it is asked, too.
    pub(crate) fn restore_network(&self, gateway: &GatewayHandle) -> Result<(), StartError> {
        let path = self.slot().join(spec::NETWORK);
        match read_bounded(&path) {
            Ok(known) => gateway.restore(&known),
            // A bake's has seen nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StartError::Network(error)),
        }
        Ok(())
    }

    pub(crate) fn gateway(&self) -> Result<&GatewayHandle, ConnectError> {
        let gateway = self.gateway.get();
        gateway.ok_or_else(|| ConnectError::failed_precondition("the sandbox is starting"))
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut known = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(NETWORK_FILE_BYTES).read_to_end(&mut known)?;
    Ok(known)
}

/// What the daemon is told.
pub(crate) fn report(report: NetworkReport) -> NetworkResponse {
    let connections = report.connections.into_iter();
    let connections = connections.map(|connection| NetworkConnection {
        protocol: connection.protocol.to_string(),
        guest: connection.guest.to_string(),
        remote: connection.remote.to_string(),
        name: connection.name.unwrap_or_default(),
        state: connection.state.to_string(),
        sent_bytes: connection.sent_bytes,
        received_bytes: connection.received_bytes,
        age_ms: connection.age_ms,
        ..NetworkConnection::default()
    });
    NetworkResponse {
        connections: connections.collect(),
        refusals: report.refusals.into_iter().map(refusal).collect(),
        sent_bytes: report.totals.sent_bytes,
        received_bytes: report.totals.received_bytes,
        connections_total: report.totals.connections,
        refused_total: report.totals.refused,
        ..NetworkResponse::default()
    }
}

fn refusal(refusal: pando_net::Refusal) -> Refusal {
    Refusal {
        sequence: refusal.sequence,
        at_ms: refusal.at_ms,
        protocol: refusal.protocol.to_string(),
        address: refusal.destination.to_string(),
        port: refusal.port.into(),
        name: refusal.name.unwrap_or_default(),
        rule: refusal.rule,
        count: refusal.count,
        ..Refusal::default()
    }
}

/// Every refusal from now on, in batches.
pub(crate) fn refusals(gateway: &GatewayHandle) -> ServiceStream<WatchRefusalsResponse> {
    let newest = gateway.refused();
    let seen = *newest.borrow();
    let begin = (gateway.clone(), newest, seen);
    Box::pin(stream::unfold(
        begin,
        |(gateway, mut newest, seen)| async move {
            newest.wait_for(|newest| *newest > seen).await.ok()?;
            let fresh: Vec<_> = gateway.report().refusals;
            let fresh: Vec<_> = fresh
                .into_iter()
                .filter(|refusal| refusal.sequence > seen)
                .collect();
            let seen = fresh.last().map_or(seen, |last| last.sequence);
            let message = WatchRefusalsResponse {
                refusals: fresh.into_iter().map(refusal).collect(),
                ..WatchRefusalsResponse::default()
            };
            Some((Ok(message), (gateway, newest, seen)))
        },
    ))
}

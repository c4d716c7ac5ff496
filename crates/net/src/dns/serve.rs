//! Answering the guest's queries.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use tokio::net::UnixStream;

use super::message::{Parsed, Question, parse_query};
use super::upstream::{NoAnswer, read_message, write_message};
use crate::address::{DNS_PORT, GATEWAY_ADDRESS, gateway_beside};
use crate::frame;
use crate::own::Reach;
use crate::policy;
use crate::report::Protocol;
use crate::shared::{Shared, add};

/// Longest answer over UDP, for guests whose card takes Ethernet's usual 1500 bytes.
const UDP_BYTES: usize = 1400;

/// How long a connection may be silent.
const TCP_IDLE: Duration = Duration::from_secs(10);

/// Answers a datagram that came to the gateway's address.
pub(crate) async fn over_udp(shared: Arc<Shared>, guest: SocketAddr, query: Vec<u8>) {
    let Some(answer) = answer(&shared, &query, Some(UDP_BYTES)).await else {
        return;
    };
    let server = SocketAddr::new(gateway_beside(guest.ip()), DNS_PORT);
    shared
        .card
        .send(|out| frame::udp(server, guest, &answer, out));
}

/// Answers the queries on a connection, one after the other.
pub(crate) async fn over_tcp(shared: Arc<Shared>, mut guest: UnixStream) {
    while let Ok(Ok(query)) = tokio::time::timeout(TCP_IDLE, read_message(&mut guest)).await {
        let Some(answer) = answer(&shared, &query, None).await else {
            return;
        };
        let written = tokio::time::timeout(TCP_IDLE, write_message(&mut guest, &answer)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

async fn answer(shared: &Shared, query: &[u8], longest: Option<usize>) -> Option<Vec<u8>> {
    let question = match parse_query(query)? {
        Parsed::Question(question) => question,
        Parsed::Refused(answer) => return Some(answer),
    };
    add(&shared.sums.names, 1);
    if !shared.queries.take_one() {
        refuse(shared, server(), &question, "name limit");
        return question.empty_answer(ResponseCode::Refused);
    }
    if let Err(rule) = policy::may_resolve(&shared.policy(), question.name()) {
        refuse(shared, server(), &question, rule);
        return question.empty_answer(ResponseCode::NXDomain);
    }
    if question.hides_names() {
        return question.empty_answer(ResponseCode::NoError);
    }
    let mut answer = match shared.upstream.ask(&question).await {
        Ok(answer) => answer,
        Err(NoAnswer::Busy) => return question.empty_answer(ResponseCode::Refused),
        Err(NoAnswer::Failed) => return question.empty_answer(ResponseCode::ServFail),
    };
    let policy = shared.policy();
    let filtered = question.filter(&mut answer, |address| {
        let own = shared.own.reach(address) == Reach::Own;
        policy::keeps_out(&policy, address, own).map(|range| format!("protected range {range}"))
    });
    for (address, rule) in filtered.kept_out {
        refuse(shared, SocketAddr::new(address, 0), &question, rule);
    }
    // Before the guest can use them.
    let now = Instant::now();
    let mut names = shared.names();
    for address in &filtered.addresses {
        for name in &filtered.names {
            names.insert(*address, name, now);
        }
    }
    drop(names);
    question.write_answer(answer, longest)
}

fn server() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(GATEWAY_ADDRESS), DNS_PORT)
}

fn refuse(shared: &Shared, to: SocketAddr, question: &Question, rule: impl Into<String>) {
    let name = question.name().to_owned();
    shared.refuse(Protocol::Dns, to, Some(name), rule);
}

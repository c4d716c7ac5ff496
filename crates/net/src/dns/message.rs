//! Queries and answers, without I/O.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// Longest query that is read. A name and the options that people send fit many times.
const QUERY_BYTES: usize = 4096;

/// Datagrams of every path (RFC 9715): what the gateway takes from resolvers over UDP.
const UPSTREAM_PAYLOAD: u16 = 1232;

/// What a resolver without EDNS takes (RFC 1035).
const CLASSIC_PAYLOAD: usize = 512;

/// Longest time that the guest may keep an address: no longer than its name is known here.
const LONGEST_TTL: u32 = 3600;

/// What the guest asks.
#[derive(Clone, Debug)]
pub struct Question {
    id: u16,
    recursion_desired: bool,
    checking_disabled: bool,
    has_edns: bool,
    payload: usize,
    query: Query,
    name: String,
}

/// What the guest sent.
#[derive(Clone, Debug)]
pub enum Parsed {
    /// A question that can be answered.
    Question(Box<Question>),
    /// Something that is refused with these bytes.
    Refused(Vec<u8>),
}

/// Reads a query of the guest; `None` for what deserves no answer.
pub fn parse_query(bytes: &[u8]) -> Option<Parsed> {
    if bytes.len() > QUERY_BYTES {
        return None;
    }
    let message = Message::from_vec(bytes).ok()?;
    if message.metadata.message_type != MessageType::Query {
        return None;
    }
    let refuse = |code| {
        let mut answer = Message::error_msg(message.metadata.id, message.metadata.op_code, code);
        answer.metadata.recursion_desired = message.metadata.recursion_desired;
        answer.add_queries(message.queries.iter().take(1).cloned());
        answer.to_vec().ok().map(Parsed::Refused)
    };
    if message.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    let [query] = &message.queries[..] else {
        return refuse(ResponseCode::FormErr);
    };
    let is_transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
    if query.query_class() != DNSClass::IN || is_transfer {
        return refuse(ResponseCode::Refused);
    }
    let payload = message.edns.as_ref().map_or(CLASSIC_PAYLOAD, |edns| {
        usize::from(edns.max_payload()).max(CLASSIC_PAYLOAD)
    });
    Some(Parsed::Question(Box::new(Question {
        id: message.metadata.id,
        recursion_desired: message.metadata.recursion_desired,
        checking_disabled: message.metadata.checking_disabled,
        has_edns: message.edns.is_some(),
        payload,
        query: query.clone(),
        name: name_text(query.name()),
    })))
}

/// A name as rules write it: lower case, no dot at the end.
fn name_text(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.strip_suffix('.').map(str::to_owned).unwrap_or(text)
}

/// What became of an answer.
#[derive(Debug, Default)]
pub(crate) struct Filtered {
    /// The addresses in it.
    pub(crate) addresses: Vec<IpAddr>,
    /// The names that lead to them, the question's first.
    pub(crate) names: Vec<String>,
    /// What was taken out, and because of what.
    pub(crate) kept_out: Vec<(IpAddr, String)>,
}

impl Question {
    /// The name, as rules write it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the type would hide whom later connections are for.
    pub(crate) fn hides_names(&self) -> bool {
        matches!(
            self.query.query_type(),
            RecordType::SVCB | RecordType::HTTPS
        )
    }

    /// The query for a resolver, with an id of ours.
    pub(crate) fn to_upstream(&self, id: u16) -> Option<Vec<u8>> {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = self.checking_disabled;
        message.add_query(self.query.clone());
        let mut edns = Edns::new();
        edns.set_max_payload(UPSTREAM_PAYLOAD);
        message.set_edns(edns);
        message.to_vec().ok()
    }

    /// Reads a resolver's answer to the query with this id; `None` where it is to another.
    pub(crate) fn read_answer(&self, id: u16, bytes: &[u8]) -> Option<Message> {
        let message = Message::from_vec(bytes).ok()?;
        let ours = message.metadata.id == id
            && message.metadata.message_type == MessageType::Response
            && matches!(&message.queries[..], [query]
                if query.query_type() == self.query.query_type()
                    && query.query_class() == self.query.query_class()
                    && query.name() == self.query.name());
        ours.then_some(message)
    }

    /// Takes out of an answer what the guest must not have. `keeps_out` says why an
    /// address is not given out.
    pub(crate) fn filter(
        &self,
        answer: &mut Message,
        mut keeps_out: impl FnMut(IpAddr) -> Option<String>,
    ) -> Filtered {
        let mut chain = vec![self.query.name().clone()];
        let mut filtered = Filtered::default();
        let mut kept = Vec::new();
        // A chain's links stand in order in every answer that is not meant to mislead.
        for mut record in std::mem::take(&mut answer.answers) {
            if !chain.contains(&record.name) {
                continue;
            }
            record.ttl = record.ttl.min(LONGEST_TTL);
            match &record.data {
                RData::CNAME(target) => chain.push(target.0.clone()),
                RData::A(address) => {
                    if !note(&mut filtered, address.0.into(), &mut keeps_out) {
                        continue;
                    }
                }
                RData::AAAA(address) => {
                    if !note(&mut filtered, address.0.into(), &mut keeps_out) {
                        continue;
                    }
                }
                _ => {}
            }
            kept.push(record);
        }
        filtered.names = chain.iter().map(name_text).collect();
        answer.answers = kept;
        answer.authorities.retain(is_authority);
        answer.additionals.clear();
        filtered
    }

    /// The answer's bytes for the guest: at most `longest`, with a mark where that was too
    /// little.
    pub(crate) fn write_answer(&self, answer: Message, longest: Option<usize>) -> Option<Vec<u8>> {
        let mut message = Message::response(self.id, OpCode::Query);
        message.metadata.response_code = answer.metadata.response_code;
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.recursion_available = true;
        message.add_query(self.query.clone());
        message.answers = answer.answers;
        message.authorities = answer.authorities;
        if self.has_edns {
            let mut edns = Edns::new();
            edns.set_max_payload(UPSTREAM_PAYLOAD);
            message.set_edns(edns);
        }
        let bytes = message.to_vec().ok()?;
        let longest = longest.map_or(usize::from(u16::MAX), |most| most.min(self.payload));
        if bytes.len() <= longest {
            return Some(bytes);
        }
        message.answers.clear();
        message.authorities.clear();
        message.metadata.truncation = true;
        message.to_vec().ok()
    }

    /// An answer without data.
    pub(crate) fn empty_answer(&self, code: ResponseCode) -> Option<Vec<u8>> {
        let mut answer = Message::response(self.id, OpCode::Query);
        answer.metadata.response_code = code;
        self.write_answer(answer, None)
    }
}

fn note(
    filtered: &mut Filtered,
    address: IpAddr,
    keeps_out: &mut impl FnMut(IpAddr) -> Option<String>,
) -> bool {
    match keeps_out(address) {
        Some(why) => {
            filtered.kept_out.push((address, why));
            false
        }
        None => {
            filtered.addresses.push(address);
            true
        }
    }
}

/// The record that says how long a name stays unknown.
fn is_authority(record: &Record) -> bool {
    record.record_type() == RecordType::SOA
}

//! A resolver of the host, for tests: it answers over UDP and TCP from a list.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// What a name has.
#[derive(Clone)]
pub(crate) enum Has {
    Address(IpAddr),
    Alias(&'static str),
    /// So many bytes of text, which do not fit into a datagram.
    Text(usize),
}

pub(crate) struct Resolver {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Resolver {
    pub(crate) fn start(zone: &[(&str, Has)]) -> Self {
        let udp = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(address).unwrap();
        let mut names: HashMap<String, Vec<Has>> = HashMap::new();
        for (name, has) in zone {
            names
                .entry((*name).to_owned())
                .or_default()
                .push(has.clone());
        }
        let names = Arc::new(names);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (over_udp, seen) = (Arc::clone(&names), Arc::clone(&asked));
        thread::spawn(move || {
            let mut query = [0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut query) {
                let mut answer = answer(&query[..length], &over_udp, &seen);
                if answer.to_vec().unwrap().len() > 1232 {
                    answer.answers.clear();
                    answer.metadata.truncation = true;
                }
                udp.send_to(&answer.to_vec().unwrap(), from).unwrap();
            }
        });
        let seen = Arc::clone(&asked);
        thread::spawn(move || {
            while let Ok((mut socket, _)) = tcp.accept() {
                let mut length = [0; 2];
                socket.read_exact(&mut length).unwrap();
                let mut query = vec![0; u16::from_be_bytes(length).into()];
                socket.read_exact(&mut query).unwrap();
                let answer = answer(&query, &names, &seen).to_vec().unwrap();
                let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                socket.write_all(&[&length[..], &answer].concat()).unwrap();
            }
        });
        Self { address, asked }
    }

    /// The names that it was asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(query: &[u8], names: &HashMap<String, Vec<Has>>, asked: &Mutex<Vec<String>>) -> Message {
    let query = Message::from_vec(query).unwrap();
    let question = query.queries[0].clone();
    let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    answer.metadata.recursion_available = true;
    answer.add_query(question.clone());
    let mut name = question
        .name()
        .to_ascii()
        .trim_end_matches('.')
        .to_lowercase();
    asked.lock().unwrap().push(name.clone());
    if !names.contains_key(&name) {
        answer.metadata.response_code = ResponseCode::NXDomain;
        return answer;
    }
    loop {
        let mut alias = None;
        for has in names.get(&name).into_iter().flatten() {
            let data = match has {
                Has::Address(IpAddr::V4(address)) if question.query_type() == RecordType::A => {
                    RData::A(A(*address))
                }
                Has::Address(IpAddr::V6(address)) if question.query_type() == RecordType::AAAA => {
                    RData::AAAA(AAAA(*address))
                }
                Has::Text(length) if question.query_type() == RecordType::TXT => {
                    RData::TXT(TXT::new(vec!["x".repeat(200); length / 200]))
                }
                Has::Alias(target) => {
                    alias = Some((*target).to_owned());
                    RData::CNAME(CNAME(Name::from_ascii(format!("{target}.")).unwrap()))
                }
                _ => continue,
            };
            let owner = Name::from_ascii(format!("{name}.")).unwrap();
            answer.add_answer(Record::from_rdata(owner, 100_000, data));
        }
        match alias {
            Some(target) => name = target,
            None => return answer,
        }
    }
}

//! Names, and rules that go by them.

mod guest;
mod resolver;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use guest::{LOCAL, Settings, World, policy};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use pando_net::{GATEWAY_ADDRESS, GATEWAY_ADDRESS_V6, GatewayLimits, Protocol};
use resolver::{Has, Resolver};
use smoltcp::iface::SocketHandle;

/// An address that is nobody's, for names alone.
const AWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

fn world(rules: &[&str], zone: &[(&str, Has)]) -> (World, Resolver) {
    let resolver = Resolver::start(zone);
    let mut settings = Settings::with(rules);
    settings.resolvers = vec![resolver.address];
    (World::start(settings), resolver)
}

fn query(name: &str, kind: RecordType, payload: Option<u16>) -> Vec<u8> {
    let mut message = Message::new(77, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

fn ask_at(world: &mut World, server: IpAddr, name: &str, kind: RecordType) -> Message {
    let socket = world.guest.udp();
    world
        .guest
        .send_to(socket, &query(name, kind, None), (server, 53));
    let (bytes, from) = world.guest.receive_from(socket);
    world.guest.sockets.remove(socket);
    assert_eq!(from, server);
    let answer = Message::from_vec(&bytes).unwrap();
    assert_eq!((answer.metadata.id, answer.queries.len()), (77, 1));
    answer
}

fn ask(world: &mut World, name: &str, kind: RecordType) -> Message {
    ask_at(world, GATEWAY_ADDRESS.into(), name, kind)
}

fn addresses(answer: &Message) -> Vec<IpAddr> {
    let address = |record: &hickory_proto::rr::Record| match &record.data {
        RData::A(address) => Some(IpAddr::from(address.0)),
        RData::AAAA(address) => Some(IpAddr::from(address.0)),
        _ => None,
    };
    answer.answers.iter().filter_map(address).collect()
}

fn code(answer: &Message) -> ResponseCode {
    answer.metadata.response_code
}

#[test]
fn names_are_resolved_over_both_addresses_and_transports() {
    let v6: IpAddr = "2001:db8::7".parse().unwrap();
    let (mut world, _resolver) = world(
        &[],
        &[
            ("www.example.org", Has::Alias("lb.example.net")),
            ("lb.example.net", Has::Address(AWAY)),
            ("lb.example.net", Has::Address(v6)),
            ("big.example.org", Has::Text(4000)),
        ],
    );
    let answer = ask(&mut world, "WWW.example.org.", RecordType::A);
    assert_eq!((addresses(&answer), answer.answers.len()), (vec![AWAY], 2));
    assert!(answer.answers.iter().all(|record| record.ttl == 3600));
    let answer = ask_at(
        &mut world,
        GATEWAY_ADDRESS_V6.into(),
        "www.example.org.",
        RecordType::AAAA,
    );
    assert_eq!(addresses(&answer), [v6]);
    let answer = ask(&mut world, "no.example.org.", RecordType::A);
    assert_eq!(code(&answer), ResponseCode::NXDomain);
    let answer = ask(&mut world, "www.example.org.", RecordType::HTTPS);
    assert_eq!(
        (code(&answer), answer.answers.len()),
        (ResponseCode::NoError, 0)
    );
    // It fits neither into the guest's datagram nor into the resolver's.
    let answer = ask(&mut world, "big.example.org.", RecordType::TXT);
    assert!(answer.metadata.truncation && answer.answers.is_empty());
    let guest = &mut world.guest;
    let connection = guest.connect((GATEWAY_ADDRESS, 53)).unwrap();
    for _ in 0..2 {
        let query = query("big.example.org.", RecordType::TXT, None);
        let length = u16::try_from(query.len()).unwrap().to_be_bytes();
        guest.send(connection, &[&length[..], &query].concat());
        let length = guest.receive(connection, 2);
        let length = u16::from_be_bytes([length[0], length[1]]);
        let answer = guest.receive(connection, length.into());
        assert_eq!(Message::from_vec(&answer).unwrap().answers.len(), 1);
    }
    guest.close(connection);
}

#[test]
fn a_name_that_is_not_allowed_is_not_even_asked_for() {
    let zone = [
        ("good.example.org", Has::Address(AWAY)),
        ("evil.example.net", Has::Address(AWAY)),
    ];
    for rules in [
        &["allow *.example.org:443/tcp", "default deny"][..],
        &["deny evil.example.net:22"][..],
        &["allow *.example.org", "deny 0.0.0.0/0"][..],
    ] {
        let (mut world, resolver) = world(rules, &zone);
        let answer = ask(&mut world, "evil.example.net.", RecordType::A);
        assert_eq!(code(&answer), ResponseCode::NXDomain);
        assert!(answer.answers.is_empty());
        let answer = ask(&mut world, "good.example.org.", RecordType::A);
        assert_eq!(addresses(&answer), [AWAY], "{rules:?}");
        assert_eq!(resolver.asked(), ["good.example.org"]);
        let refusals = world.handle.report().refusals;
        assert_eq!((refusals.len(), refusals[0].protocol), (1, Protocol::Dns));
        assert_eq!(refusals[0].name.as_deref(), Some("evil.example.net"));
    }
}

#[test]
fn protected_addresses_are_taken_out_of_answers() {
    let inside: IpAddr = [10, 1, 2, 3].into();
    let zone = [
        ("rebind.example.org", Has::Address(inside)),
        ("rebind.example.org", Has::Address(AWAY)),
        ("rebind.example.org", Has::Address(LOCAL.into())),
    ];
    let (mut world, _resolver) = world(&["allow 10.1.0.0/16:5432"], &zone);
    let answer = ask(&mut world, "rebind.example.org.", RecordType::A);
    assert_eq!(addresses(&answer), [inside, AWAY]);
    let refusals = world.handle.report().refusals;
    assert_eq!(refusals.len(), 1);
    assert_eq!(refusals[0].destination, IpAddr::from(LOCAL));
    assert_eq!(refusals[0].rule, "protected range 127.0.0.0/8");
}

#[test]
fn queries_are_limited_and_silent_resolvers_are_passed_over() {
    let silent = std::net::UdpSocket::bind((LOCAL, 0)).unwrap();
    let resolver = Resolver::start(&[("a.example.org", Has::Address(AWAY))]);
    let mut settings = Settings::with(&[]);
    settings.resolvers = vec![silent.local_addr().unwrap(), resolver.address];
    settings.limits = GatewayLimits {
        dns_per_second: 2,
        ..GatewayLimits::default()
    };
    let mut world = World::start(settings);
    let started = Instant::now();
    assert_eq!(
        addresses(&ask(&mut world, "a.example.org.", RecordType::A)),
        [AWAY]
    );
    assert!(started.elapsed() < Duration::from_secs(4));
    world.handle.set_resolvers(vec![resolver.address]);
    let started = Instant::now();
    let mut codes = Vec::new();
    for _ in 0..20 {
        codes.push(code(&ask(&mut world, "a.example.org.", RecordType::A)));
    }
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(codes.contains(&ResponseCode::NoError) && codes.contains(&ResponseCode::Refused));
    world.handle.set_resolvers(Vec::new());
    world.guest.until("another query's turn", |_| {
        (started.elapsed() > Duration::from_secs(1)).then_some(())
    });
    let answer = ask(&mut world, "a.example.org.", RecordType::A);
    assert_eq!(code(&answer), ResponseCode::ServFail);
}

/// A world whose guest may reach names below `good.org` on loopback, and a server there
/// that says what it received.
struct Named {
    world: World,
    _resolver: Resolver,
    server: SocketAddr,
    received: std::sync::mpsc::Receiver<Vec<u8>>,
}

impl Named {
    /// A server that says `greeting` and then `answer` to the first bytes.
    fn new(rules: &[&str], greeting: &'static [u8]) -> Self {
        let zone = [
            ("a.good.org", Has::Address(LOCAL.into())),
            ("evil.org", Has::Address(LOCAL.into())),
        ];
        let listener = TcpListener::bind((LOCAL, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let (sender, received) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (mut socket, sender) = (socket.unwrap(), sender.clone());
                thread::spawn(move || {
                    let _ = socket.write_all(greeting);
                    let mut all = Vec::new();
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = socket.read(&mut bytes) {
                        all.extend_from_slice(&bytes[..count]);
                    }
                    sender.send(all).unwrap();
                });
            }
        });
        let resolver = Resolver::start(&zone);
        let mut settings = Settings::with(rules);
        settings.resolvers = vec![resolver.address];
        Self {
            world: World::start(settings),
            _resolver: resolver,
            server,
            received,
        }
    }

    fn resolve(&mut self, name: &str) {
        let answer = ask(&mut self.world, name, RecordType::A);
        assert_eq!(addresses(&answer), [IpAddr::from(LOCAL)]);
    }

    fn connect(&mut self) -> SocketHandle {
        self.world.guest.connect(self.server).unwrap()
    }

    /// Sends bytes in pieces of `size` and closes; what the server received.
    fn say(&mut self, bytes: &[u8], size: usize) -> Vec<u8> {
        let connection = self.connect();
        for piece in bytes.chunks(size) {
            self.world.guest.send(connection, piece);
        }
        self.world.guest.tcp(connection).close();
        self.heard()
    }

    fn heard(&mut self) -> Vec<u8> {
        let received = &self.received;
        self.world
            .guest
            .until("the server's report", |_| received.try_recv().ok())
    }

    fn rules(&self) -> Vec<String> {
        let refusals = self.world.handle.report().refusals;
        refusals.into_iter().map(|refusal| refusal.rule).collect()
    }
}

/// By name alone: the second rule closes what the third opens of the protected range.
const BY_NAME: &[&str] = &[
    "allow *.good.org",
    "deny 127.0.0.1",
    "allow 127.0.0.1",
    "default deny",
];

/// All but one name.
const BUT_EVIL: &[&str] = &["deny evil.org", "allow 127.0.0.1"];

fn hello(name: Option<&str>) -> Vec<u8> {
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let length = u16::try_from(name.len()).unwrap();
        extensions.extend([0, 0]);
        extensions.extend((length + 5).to_be_bytes());
        extensions.extend((length + 3).to_be_bytes());
        extensions.push(0);
        extensions.extend(length.to_be_bytes());
        extensions.extend(name.as_bytes());
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    body.extend(&extensions);
    let mut message = vec![1, 0];
    message.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend(u16::try_from(message.len()).unwrap().to_be_bytes());
    record.extend(message);
    record
}

#[test]
fn a_name_opens_its_address_when_the_connection_names_it_too() {
    let mut named = Named::new(BY_NAME, b"");
    let server = named.server;
    assert!(
        named.world.guest.connect(server).is_none(),
        "before it was asked for"
    );
    named.resolve("a.good.org.");
    for size in [1, 3, 10_000] {
        let bytes = [
            &hello(Some("a.good.org"))[..],
            b"\x14\x03\x03\0\x01\x01\x17\x03\x03 rest",
        ]
        .concat();
        assert_eq!(named.say(&bytes, size), bytes, "in pieces of {size}");
        let bytes = b"GET / HTTP/1.1\r\nHost: b.good.org\r\n\r\n";
        assert_eq!(named.say(bytes, size), bytes);
    }
    let bytes = b"SSH-2.0-guest\r\n\0\0\0";
    assert_eq!(named.say(bytes, 100), bytes);
    assert_eq!(named.rules(), ["deny 127.0.0.1"]);
}

#[test]
fn a_lie_reaches_nobody() {
    for (bytes, rule) in [
        (hello(Some("evil.org")), "deny 127.0.0.1"),
        (hello(None), "no SNI"),
        (
            b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n".to_vec(),
            "deny 127.0.0.1",
        ),
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), "no Host"),
        (
            b"GET / HTTP/1.1\nHost: a.good.org\n\n".to_vec(),
            "unclear HTTP",
        ),
        (b"PRI * HTTP/2.0\r\n\r\n".to_vec(), "HTTP/2 without TLS"),
    ] {
        let mut named = Named::new(BY_NAME, b"");
        named.resolve("a.good.org.");
        let connection = named.connect();
        named.world.guest.send(connection, &bytes);
        named.world.guest.is_reset(connection);
        assert!(named.heard().is_empty(), "{rule}");
        assert_eq!(named.rules(), [rule]);
    }
}

#[test]
fn every_request_on_a_connection_is_checked() {
    let mut named = Named::new(BY_NAME, b"");
    named.resolve("a.good.org.");
    let first = b"POST / HTTP/1.1\r\nHost: a.good.org\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let second = b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n";
    let connection = named.connect();
    named
        .world
        .guest
        .send(connection, &[&first[..], second].concat());
    named.world.guest.is_reset(connection);
    let heard = named.heard();
    assert!(
        first.starts_with(&heard),
        "{}",
        String::from_utf8_lossy(&heard)
    );
    let refusals = named.world.handle.report().refusals;
    assert_eq!(refusals[0].name.as_deref(), Some("evil.org"));
}

#[test]
fn a_server_that_speaks_first_is_heard_at_once() {
    let mut named = Named::new(BY_NAME, b"220 mail\r\n");
    named.resolve("a.good.org.");
    let connection = named.connect();
    assert_eq!(named.world.guest.receive(connection, 10), b"220 mail\r\n");
    named.world.guest.send(connection, b"EHLO me\r\n");
    named.world.guest.tcp(connection).close();
    assert_eq!(named.heard(), b"EHLO me\r\n");
}

#[test]
fn a_denied_name_is_refused_on_any_address() {
    let mut named = Named::new(BUT_EVIL, b"");
    let bytes = hello(Some("a.good.org"));
    assert_eq!(named.say(&bytes, 1000), bytes);
    let connection = named.connect();
    named.world.guest.send(connection, &hello(Some("Evil.org")));
    named.world.guest.is_reset(connection);
    assert!(named.heard().is_empty());
    assert_eq!(named.rules(), ["deny evil.org"]);
}

#[test]
fn a_live_policy_judges_by_what_a_connection_named() {
    let mut named = Named::new(&["allow 127.0.0.1"], b"");
    let (good, evil, silent) = (named.connect(), named.connect(), named.connect());
    let guest = &mut named.world.guest;
    guest.send(good, &hello(Some("a.good.org")));
    guest.send(evil, &hello(Some("evil.org")));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let names: Vec<_> = named.world.handle.report().connections;
        if names.iter().filter(|live| live.name.is_some()).count() == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "{names:?}");
        guest.poll(Duration::from_millis(1));
    }
    named.world.handle.set_policy(policy(BUT_EVIL));
    let guest = &mut named.world.guest;
    guest.is_reset(evil);
    guest.send(silent, &hello(Some("evil.org")));
    guest.is_reset(silent);
    guest.tcp(good).close();
    let mut heard = [named.heard(), named.heard(), named.heard()];
    heard.sort_by_key(Vec::len);
    let [silent, evil, good] = heard;
    assert!(silent.is_empty());
    assert_eq!(
        (evil, good),
        (hello(Some("evil.org")), hello(Some("a.good.org")))
    );
}

#[test]
fn the_names_go_on_in_another_gateway() {
    let mut named = Named::new(BY_NAME, b"");
    named.resolve("a.good.org.");
    let mut settings = Settings::with(BY_NAME);
    settings.names = named.world.handle.names();
    let mut next = World::start(settings);
    assert!(next.guest.connect(named.server).is_some());
    let mut settings = Settings::with(BY_NAME);
    settings.names = b"PDNM\x01\xff\xffgarbage".to_vec();
    let mut other = World::start(settings);
    assert!(other.guest.connect(named.server).is_none());
}

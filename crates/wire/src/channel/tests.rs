//! Both ends against each other over socket pairs.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use buffa::Message;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::frame::{Header, Kind};
use super::*;
use crate::guest::{Frozen, Resume, Resumed};

const TIMEOUT: Duration = Duration::from_secs(5);

/// What the fake agent was asked to do, in order.
type Log = Arc<Mutex<Vec<String>>>;

struct FakeAgent {
    name: &'static str,
    log: Log,
    freeze_takes: Duration,
    /// The other port, unparked by THAW on this one.
    other: Option<PortControl>,
}

impl PortHandler for FakeAgent {
    async fn hello(&mut self, resume: Bytes) -> Vec<u8> {
        let resume = Resume::decode_from_slice(&resume).expect("resume");
        let entry = format!("{} hello {}", self.name, resume.hostname);
        self.log.lock().expect("log").push(entry);
        let resumed = Resumed {
            agent_version: "fake".into(),
            ..Default::default()
        };
        resumed.encode_to_vec()
    }

    async fn freeze(&mut self) -> Vec<u8> {
        tokio::time::sleep(self.freeze_takes).await;
        let entry = format!("{} freeze", self.name);
        self.log.lock().expect("log").push(entry);
        let frozen = Frozen {
            unfrozen_pids: vec![7],
            ..Default::default()
        };
        frozen.encode_to_vec()
    }

    async fn thaw(&mut self, sequence: u64, wall_clock_ns: u64) {
        assert_ne!(wall_clock_ns, 0);
        let entry = format!("{} thaw", self.name);
        self.log.lock().expect("log").push(entry);
        if let Some(other) = &self.other {
            other.thaw(sequence);
        }
    }
}

/// Answers `/big` with 4 MiB and everything else with the path.
struct Echo;

impl ServePort for Echo {
    fn serve(&self, stream: ByteStream) -> impl Future<Output = ()> + Send + 'static {
        let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
            let body = match request.uri().path() {
                "/big" => Bytes::from(vec![1; 4 << 20]),
                path => Bytes::from(path.to_owned()),
            };
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        });
        async move {
            let served = server_builder()
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(served);
        }
    }
}

fn start_agent(ctl: UnixStream, data: UnixStream) -> Log {
    let mut tasks = JoinSet::new();
    let log = start_agent_in(&mut tasks, Duration::ZERO, ctl, data);
    tasks.detach_all();
    log
}

fn start_agent_in(
    tasks: &mut JoinSet<()>,
    freeze_takes: Duration,
    ctl: UnixStream,
    data: UnixStream,
) -> Log {
    let log = Log::default();
    let port = |stream: UnixStream| {
        let (reader, writer) = stream.into_split();
        GuestPort::new(reader, writer)
    };
    let (ctl, data) = (port(ctl), port(data));
    let agent = |name, other| FakeAgent {
        name,
        log: Arc::clone(&log),
        freeze_takes,
        other,
    };
    let ctl_agent = agent("ctl", Some(data.control().clone()));
    let data_agent = agent("data", None);
    tasks.spawn(async { ctl.run(ctl_agent, Echo).await.expect("ctl") });
    tasks.spawn(async { data.run(data_agent, Echo).await.expect("data") });
    log
}

fn options(resync: bool) -> OpenOptions {
    OpenOptions {
        resume: Resume {
            hostname: "grove".into(),
            ..Default::default()
        },
        resync,
        timeout: TIMEOUT,
        warm: false,
    }
}

async fn open() -> (Channel, Log) {
    let (ctl, guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, guest_data) = UnixStream::pair().expect("socket pair");
    let log = start_agent(guest_ctl, guest_data);
    let (channel, resumed) = Channel::open(ctl, data, options(false))
        .await
        .expect("open");
    assert_eq!(resumed.agent_version, "fake");
    (channel, log)
}

async fn get(connection: &Connection, path: &str) -> hyper::Result<Bytes> {
    let request = Request::get(format!("http://guest{path}"))
        .body(Body::default())
        .expect("request");
    let response = connection.request(request).await?;
    Ok(response.into_body().collect().await?.to_bytes())
}

#[tokio::test]
async fn requests_are_answered_on_both_ports() {
    let (channel, log) = open().await;
    assert_eq!(get(channel.ctl(), "/a").await.expect("ctl"), "/a");
    assert_eq!(get(channel.data(), "/b").await.expect("data"), "/b");
    let log = log.lock().expect("log").clone();
    assert!(log.contains(&"ctl hello grove".to_owned()), "{log:?}");
}

#[tokio::test]
async fn a_warmed_up_guest_is_greeted_anew_on_the_same_ports() {
    let (ctl, guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, guest_data) = UnixStream::pair().expect("socket pair");
    let log = start_agent(guest_ctl, guest_data);
    let warm = OpenOptions {
        warm: true,
        ..options(false)
    };
    let (channel, _) = Channel::open(ctl, data, warm).await.expect("open");
    assert_eq!(get(channel.ctl(), "/warm").await.expect("ctl"), "/warm");
    // One HELLO on each: the second step is what lets the user's processes run.
    assert_eq!(log.lock().expect("log").len(), 2);
    let before = channel.ctl().clone();
    let (channel, _) = channel.again(options(false)).await.expect("again");
    assert!(get(&before, "/old").await.is_err(), "the old epoch is over");
    assert_eq!(get(channel.ctl(), "/new").await.expect("ctl"), "/new");
    assert_eq!(get(channel.data(), "/new").await.expect("data"), "/new");
    assert_eq!(log.lock().expect("log").len(), 5);
}

#[tokio::test]
async fn a_frozen_guest_goes_on_where_it_was() {
    let (channel, log) = open().await;
    for round in 0..3 {
        let frozen = channel.freeze(TIMEOUT).await.expect("freeze");
        assert_eq!(frozen.unfrozen_pids, [7]);
        let waiting = get(channel.data(), "/waits");
        let waited = tokio::time::timeout(Duration::from_millis(50), waiting).await;
        assert!(waited.is_err(), "answered while frozen, round {round}");
        channel.thaw(TIMEOUT).await.expect("thaw");
        assert_eq!(get(channel.data(), "/on").await.expect("data"), "/on");
        assert_eq!(get(channel.ctl(), "/on").await.expect("ctl"), "/on");
    }
    let log = log.lock().expect("log").clone();
    assert_eq!(log.iter().filter(|l| *l == "ctl thaw").count(), 3);
}

#[tokio::test]
async fn a_freeze_in_the_middle_of_downloads_loses_nothing() {
    let (channel, _log) = open().await;
    let downloads: Vec<_> = (0..8)
        .map(|_| {
            let connection = channel.data().clone();
            tokio::spawn(async move { get(&connection, "/big").await })
        })
        .collect();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        channel.freeze(TIMEOUT).await.expect("freeze");
        channel.thaw(TIMEOUT).await.expect("thaw");
    }
    for download in downloads {
        let bytes = download.await.expect("task").expect("download");
        assert_eq!(bytes.len(), 4 << 20);
        assert!(bytes.iter().all(|&b| b == 1));
    }
}

#[tokio::test]
async fn the_parents_bytes_do_not_reach_the_clone() {
    let (ctl, mut guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, mut guest_data) = UnixStream::pair().expect("socket pair");
    // What the parent had on its way to its host when the snapshot was taken: half
    // a frame, whole frames, and a header that claims more than will ever come.
    let stale = |kind, length| {
        Header {
            kind,
            epoch: 5,
            length,
        }
        .encode()
    };
    for stream in [&mut guest_ctl, &mut guest_data] {
        let mut bytes = vec![0xAA; 1000];
        bytes.extend(stale(Kind::Data, 4));
        bytes.extend(b"old!");
        bytes.extend(stale(Kind::HelloAck, 60_000));
        stream.write_all(&bytes).await.expect("write");
    }
    let log = start_agent(guest_ctl, guest_data);
    let (channel, _) = Channel::open(ctl, data, options(true)).await.expect("open");
    assert_eq!(get(channel.data(), "/new").await.expect("data"), "/new");
    // Ours, and no other: one on `data`, both steps on `ctl`.
    assert_eq!(log.lock().expect("log").len(), 3);
}

#[tokio::test]
async fn an_agent_stuck_in_an_old_frame_is_freed() {
    let (ctl, guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, guest_data) = UnixStream::pair().expect("socket pair");
    let mut sides = Vec::new();
    for (mut host, guest) in [(ctl, guest_ctl), (data, guest_data)] {
        // The parent's host had written only half of this frame.
        let half = Header {
            kind: Kind::Data,
            epoch: 5,
            length: 60_000,
        };
        host.write_all(&half.encode()).await.expect("write");
        host.write_all(&[1; 100]).await.expect("write");
        sides.push((host, guest));
    }
    let (data, guest_data) = sides.pop().expect("data");
    let (ctl, guest_ctl) = sides.pop().expect("ctl");
    start_agent(guest_ctl, guest_data);
    let (channel, _) = Channel::open(ctl, data, options(true)).await.expect("open");
    assert_eq!(get(channel.ctl(), "/new").await.expect("ctl"), "/new");
}

#[tokio::test]
async fn a_silent_guest_is_a_timeout_and_a_gone_one_is_noticed() {
    let (ctl, mut guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, _guest_data) = UnixStream::pair().expect("socket pair");
    let timeout = Duration::from_millis(50);
    let silent = Channel::open(
        ctl,
        data,
        OpenOptions {
            timeout,
            ..options(false)
        },
    )
    .await;
    assert!(matches!(silent.err(), Some(OpenError::Timeout(_))));
    let mut hello = [0; HEADER_BYTES];
    guest_ctl.read_exact(&mut hello).await.expect("hello");
    assert_eq!(Header::decode(&hello).map(|h| h.kind), Some(Kind::Hello));

    let (ctl, guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, _guest_data) = UnixStream::pair().expect("socket pair");
    drop(guest_ctl);
    let gone = Channel::open(ctl, data, options(false)).await;
    assert!(matches!(
        gone.err(),
        Some(OpenError::Closed | OpenError::Io(_))
    ));
}

#[tokio::test]
async fn a_freeze_that_fails_can_be_thawed() {
    let (ctl, guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, guest_data) = UnixStream::pair().expect("socket pair");
    let mut agent = JoinSet::new();
    start_agent_in(
        &mut agent,
        Duration::from_millis(100),
        guest_ctl,
        guest_data,
    );
    let (channel, _) = Channel::open(ctl, data, options(false))
        .await
        .expect("open");
    let failed = channel.freeze(Duration::from_millis(20)).await;
    assert!(matches!(failed.err(), Some(FreezeError::Timeout(_))));
    channel.thaw(TIMEOUT).await.expect("thaw");
    assert_eq!(get(channel.data(), "/on").await.expect("data"), "/on");
    channel.freeze(TIMEOUT).await.expect("freeze");
    channel.thaw(TIMEOUT).await.expect("thaw");
}

#[tokio::test]
async fn a_dead_vm_ends_the_channel() {
    let (ctl, guest_ctl) = UnixStream::pair().expect("socket pair");
    let (data, guest_data) = UnixStream::pair().expect("socket pair");
    let mut agent = JoinSet::new();
    start_agent_in(&mut agent, Duration::ZERO, guest_ctl, guest_data);
    let (channel, _) = Channel::open(ctl, data, options(false))
        .await
        .expect("open");
    let closed = channel.closed();
    let early = tokio::time::timeout(Duration::from_millis(50), channel.closed()).await;
    assert!(early.is_err(), "a live channel is not closed");
    agent.abort_all();
    tokio::time::timeout(TIMEOUT, closed).await.expect("closed");
}

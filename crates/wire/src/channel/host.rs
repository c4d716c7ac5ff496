//! The shim's end: both ports of one sandbox.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use buffa::Message;
use bytes::Bytes;
use rustix::rand::GetRandomFlags;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};

use super::frame::{Frame, Kind, MAX_CONTROL_BYTES, RESYNC_BYTES};
use super::guest::{NONCE_BYTES, SEQUENCE_BYTES, sequence_of};
use super::http2::Connection;
use super::port::{ByteStream, Port};
use crate::guest::resume::Step;
use crate::guest::{Frozen, Resume, Resumed};

/// How a channel is opened.
pub struct OpenOptions {
    /// What makes the clone itself. `wall_clock_ns` is filled in here, at the last
    /// moment before it is sent.
    pub resume: Resume,
    /// The snapshot was not taken at a clean freeze barrier: first end whatever
    /// frame the agent is in the middle of.
    pub resync: bool,
    /// Time for both ports to answer, mounts and resume hooks included.
    pub timeout: Duration,
    /// The VM is nobody's yet: the user's processes stay frozen and what is started now
    /// warms it up, until [`Channel::again`] without this.
    pub warm: bool,
}

/// Why a channel could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The environment in [`Resume`] is too large for a frame.
    #[error("the resume message has {bytes} bytes, over the limit of {MAX_CONTROL_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The agent is not there, or hangs.
    #[error("the agent did not answer within {0:?}")]
    Timeout(Duration),
    /// The VM is gone.
    #[error("the channel closed before the agent answered")]
    Closed,
    /// The socket failed.
    #[error("cannot write to the channel")]
    Io(#[from] io::Error),
    /// The agent's answer is not what it should be.
    #[error("the agent's answer can't be read")]
    Answer,
    /// The agent could not make the sandbox ready.
    #[error("the agent could not make the sandbox ready: {0}")]
    Agent(String),
    /// HTTP/2 did not start.
    #[error("cannot start HTTP/2 on the channel")]
    Http2(#[from] hyper::Error),
}

/// Why the guest is not at a clean barrier. A snapshot can still be taken; what
/// is spawned from it needs [`OpenOptions::resync`].
#[derive(Debug, Error)]
pub enum FreezeError {
    /// The agent hangs, or is hostile.
    #[error("the agent did not come to rest within {0:?}")]
    Timeout(Duration),
    /// The VM is gone.
    #[error("the channel closed while the guest was coming to rest")]
    Closed,
    /// The socket failed.
    #[error("cannot write to the channel")]
    Io(#[from] io::Error),
    /// The agent's answer is not what it should be.
    #[error("the agent's answer can't be read")]
    Answer,
}

/// Why the guest may not have gone on.
#[derive(Debug, Error)]
pub enum ThawError {
    /// The agent hangs, or is hostile.
    #[error("the agent did not go on within {0:?}")]
    Timeout(Duration),
    /// The VM is gone.
    #[error("the channel closed while the guest was going on")]
    Closed,
    /// The socket failed.
    #[error("cannot write to the channel")]
    Io(#[from] io::Error),
}

/// How far behind the guest's clock may be left.
const CLOCK_ERROR: Duration = Duration::from_millis(20);

/// Tries to get below it; a host that is this busy has worse troubles.
const CLOCK_TRIES: u32 = 4;

struct Ports {
    ctl: Port,
    data: Port,
}

struct Streams {
    ctl: ByteStream,
    data: ByteStream,
}

/// The shim's end of a sandbox's channel.
///
/// One epoch: a VM that is loaded anew gets new sockets and a new channel, one that was
/// only stopped a new epoch on the same ([`Channel::again`]).
pub struct Channel {
    ctl: Connection,
    data: Connection,
    epoch: u64,
    /// Of the freeze last asked for.
    sequence: AtomicU64,
    ports: Mutex<Ports>,
    closed: watch::Receiver<bool>,
}

impl Channel {
    /// Says HELLO on both ports and starts HTTP/2 on them. Call it once the vCPUs
    /// run, or shortly before.
    ///
    /// # Errors
    /// See [`OpenError`]; the sandbox must not be used then.
    pub async fn open(
        ctl: UnixStream,
        data: UnixStream,
        options: OpenOptions,
    ) -> Result<(Self, Resumed), OpenError> {
        let ports = Ports {
            ctl: port_of(ctl),
            data: port_of(data),
        };
        Self::begin(ports, options).await
    }

    /// Begins a new epoch on the same ports: the one before ends, whatever is under way in
    /// it. For a VM that was stopped in between and goes on; one that is loaded anew has
    /// new sockets.
    ///
    /// # Errors
    /// See [`OpenError`]; the sandbox must not be used then.
    pub async fn again(self, options: OpenOptions) -> Result<(Self, Resumed), OpenError> {
        Self::begin(self.ports.into_inner(), options).await
    }

    async fn begin(ports: Ports, options: OpenOptions) -> Result<(Self, Resumed), OpenError> {
        let epoch = u64::from_le_bytes(random()?) | 1;
        let timeout = options.timeout;
        let opened = tokio::time::timeout(timeout, greet(ports, epoch, options)).await;
        let (ports, streams, resumed) = opened.map_err(|_| OpenError::Timeout(timeout))??;
        let (closed_sender, closed) = watch::channel(false);
        let closed_sender = Arc::new(closed_sender);
        let start = |stream: ByteStream| Connection::start(stream, Arc::clone(&closed_sender));
        let channel = Self {
            ctl: start(streams.ctl).await?,
            data: start(streams.data).await?,
            epoch,
            sequence: AtomicU64::new(0),
            ports: Mutex::new(ports),
            closed,
        };
        Ok((channel, resumed))
    }

    /// The control port: the services `Guest`, `Process` and `Filesystem`.
    pub fn ctl(&self) -> &Connection {
        &self.ctl
    }

    /// The data port: what clients may reach.
    pub fn data(&self) -> &Connection {
        &self.data
    }

    /// Resolves when either port's connection has ended, for whatever reason:
    /// the sandbox can't be used any more.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.closed.clone();
        async move {
            // The sender lives as long as a connection; its end means the same.
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// Brings both directions to rest at a frame boundary, user processes frozen.
    /// Requests made meanwhile wait. Follow it with [`Self::thaw`] if the VM is to
    /// run on, also after an error.
    ///
    /// # Errors
    /// See [`FreezeError`].
    pub async fn freeze(&self, timeout: Duration) -> Result<Frozen, FreezeError> {
        let deadline = Instant::now() + timeout;
        let freeze = async {
            let mut ports = self.ports.lock().await;
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
            let Ports { ctl, data } = &mut *ports;
            tokio::try_join!(ctl.control().park(), data.control().park())?;
            let (_, answer) = tokio::try_join!(
                self.ask(data, Kind::Freeze, Kind::Frozen, sequence),
                self.ask(ctl, Kind::Freeze, Kind::Frozen, sequence),
            )?;
            Ok::<_, AskError>(answer)
        };
        match timeout_at(deadline, freeze).await {
            Ok(Ok(answer)) => Frozen::decode_from_slice(&answer).map_err(|_| FreezeError::Answer),
            Ok(Err(AskError::Io(error))) => Err(error.into()),
            Ok(Err(AskError::Closed)) => Err(FreezeError::Closed),
            Err(_) => Err(FreezeError::Timeout(timeout)),
        }
    }

    /// Lets a frozen guest, or one that did not freeze in time, go on, with the host's
    /// wall clock: the guest's stood still while the VM did. Requests flow again whatever
    /// this returns.
    ///
    /// # Errors
    /// See [`ThawError`].
    pub async fn thaw(&self, timeout: Duration) -> Result<(), ThawError> {
        let mut ports = self.ports.lock().await;
        let sequence = self.sequence.load(Ordering::Relaxed);
        let ask = async {
            ports.ctl.control().park().await?;
            let clock = wall_clock_ns().to_le_bytes();
            self.ask_with(&mut ports.ctl, (Kind::Thaw, Kind::Thawed), sequence, &clock)
                .await
        };
        let thawed = tokio::time::timeout(timeout, ask).await;
        ports.ctl.control().unpark();
        ports.data.control().unpark();
        match thawed {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(AskError::Io(error))) => Err(error.into()),
            Ok(Err(AskError::Closed)) => Err(ThawError::Closed),
            Err(_) => Err(ThawError::Timeout(timeout)),
        }
    }

    /// Sends a control frame and waits for the answer to it.
    async fn ask(
        &self,
        port: &mut Port,
        kind: Kind,
        answer: Kind,
        sequence: u64,
    ) -> Result<Bytes, AskError> {
        self.ask_with(port, (kind, answer), sequence, &[]).await
    }

    /// As [`Self::ask`], with something after the sequence.
    async fn ask_with(
        &self,
        port: &mut Port,
        (kind, answer): (Kind, Kind),
        sequence: u64,
        rest: &[u8],
    ) -> Result<Bytes, AskError> {
        port.drop_events();
        let payload = [&sequence.to_le_bytes()[..], rest];
        port.control().send(kind, self.epoch, &payload).await?;
        loop {
            let frame = port.next_event().await.ok_or(AskError::Closed)?;
            let expected = frame.kind == answer && frame.epoch == self.epoch;
            if expected && sequence_of(&frame) == Some(sequence) {
                return Ok(frame.payload.slice(SEQUENCE_BYTES..));
            }
        }
    }
}

#[derive(Debug, Error)]
enum AskError {
    #[error("the channel closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn port_of(stream: UnixStream) -> Port {
    let (reader, writer) = stream.into_split();
    Port::new(reader, writer)
}

/// Says HELLO on both ports and waits for both answers.
///
/// `data` goes first: by the time user processes run, nothing of the old epoch is
/// left on either port.
async fn greet(
    mut ports: Ports,
    epoch: u64,
    options: OpenOptions,
) -> Result<(Ports, Streams, Resumed), OpenError> {
    let OpenOptions {
        mut resume,
        resync,
        warm,
        ..
    } = options;
    let (data_nonce, ctl_nonce) = (random()?, random()?);
    let data = say_hello(&ports.data, epoch, data_nonce, &[], resync).await?;
    resume.wall_clock_ns = wall_clock_ns();
    let step = if warm {
        Step::STEP_WARM
    } else {
        Step::STEP_PREPARE
    };
    resume.step = step.into();
    let payload = resume.encode_to_vec();
    let ctl = say_hello(&ports.ctl, epoch, ctl_nonce, &payload, resync).await?;
    hello_answer(&mut ports.data, data_nonce).await?;
    let answer = hello_answer(&mut ports.ctl, ctl_nonce).await?;
    let mut resumed = Resumed::decode_from_slice(&answer).map_err(|_| OpenError::Answer)?;
    if !resumed.error.is_empty() {
        return Err(OpenError::Agent(resumed.error));
    }
    if warm {
        return Ok((ports, Streams { ctl, data }, resumed));
    }
    drop(ctl);
    let (ctl, settled) = settle(&mut ports, epoch).await?;
    resumed.warnings.extend(settled.warnings);
    Ok((ports, Streams { ctl, data }, resumed))
}

/// Sets the guest's clock and lets its processes run. The time is stamped here and
/// applied there: an answer that took long leaves the clock behind by as much, and the
/// step is taken again.
async fn settle(ports: &mut Ports, epoch: u64) -> Result<(ByteStream, Resumed), OpenError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let nonce = random()?;
        let begun = Instant::now();
        let resume = Resume {
            wall_clock_ns: wall_clock_ns(),
            step: Step::STEP_SETTLE.into(),
            ..Resume::default()
        };
        let stream = say_hello(&ports.ctl, epoch, nonce, &resume.encode_to_vec(), false).await?;
        let answer = hello_answer(&mut ports.ctl, nonce).await?;
        if begun.elapsed() <= CLOCK_ERROR || tries == CLOCK_TRIES {
            let resumed = Resumed::decode_from_slice(&answer).map_err(|_| OpenError::Answer)?;
            return Ok((stream, resumed));
        }
    }
}

async fn say_hello(
    port: &Port,
    epoch: u64,
    nonce: [u8; NONCE_BYTES],
    payload: &[u8],
    resync: bool,
) -> Result<ByteStream, OpenError> {
    let bytes = NONCE_BYTES + payload.len();
    if bytes > MAX_CONTROL_BYTES {
        return Err(OpenError::TooLarge { bytes });
    }
    let control = port.control();
    // Before HELLO is out: what follows its answer must find the stream.
    let stream = control.adopt(epoch);
    control.await_only(Kind::HelloAck, epoch);
    if resync {
        control.send_raw(&vec![0; RESYNC_BYTES]).await?;
    }
    control.send(Kind::Hello, epoch, &[&nonce, payload]).await?;
    Ok(stream)
}

async fn hello_answer(port: &mut Port, nonce: [u8; NONCE_BYTES]) -> Result<Bytes, OpenError> {
    loop {
        let Frame { payload, .. } = port.next_event().await.ok_or(OpenError::Closed)?;
        if payload.first_chunk() == Some(&nonce) {
            return Ok(payload.slice(NONCE_BYTES..));
        }
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

fn wall_clock_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |time| time.as_nanos() as u64)
}

//! Asking the host's resolvers.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::message::Question;

/// How long one resolver is waited for, before the next is asked.
const UDP_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection takes some round trips more.
const TCP_TIMEOUT: Duration = Duration::from_secs(4);

/// How often each resolver is asked; the guest's own resolver asks again, too.
const ROUNDS: usize = 2;

/// Until the guest's own resolver gives up.
const WHOLE_TIMEOUT: Duration = Duration::from_millis(4900);

/// Resolvers of a host that are asked; more never help in time.
const RESOLVERS: usize = 3;

/// Queries under way, each with a descriptor.
const CONCURRENT: usize = 64;

/// Longest datagram that is read; more than was asked for is cut off.
const ANSWER_BYTES: usize = 4096;

/// The host's resolvers.
#[derive(Debug)]
pub(crate) struct Upstream {
    resolvers: RwLock<Vec<SocketAddr>>,
    running: Semaphore,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Too many are under way.
    Busy,
    /// No resolver had one.
    Failed,
}

impl Upstream {
    pub(crate) fn new(resolvers: Vec<SocketAddr>) -> Self {
        Self {
            resolvers: RwLock::new(resolvers),
            running: Semaphore::new(CONCURRENT),
        }
    }

    pub(crate) fn set_resolvers(&self, resolvers: Vec<SocketAddr>) {
        *self
            .resolvers
            .write()
            .unwrap_or_else(PoisonError::into_inner) = resolvers;
    }

    /// Asks until somebody answers.
    ///
    /// # Errors
    /// Nobody did.
    pub(crate) async fn ask(&self, question: &Question) -> Result<Message, NoAnswer> {
        let _permit = self.running.try_acquire().map_err(|_| NoAnswer::Busy)?;
        let resolvers = self
            .resolvers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let asked = async {
            let mut last = Err(NoAnswer::Failed);
            for _ in 0..ROUNDS {
                for resolver in resolvers.iter().take(RESOLVERS) {
                    match ask_one(*resolver, question).await {
                        Ok(answer) if is_final(&answer) => return Ok(answer),
                        // Another may know better.
                        Ok(answer) => last = Ok(answer),
                        Err(_) => {}
                    }
                }
                if last.is_ok() {
                    break;
                }
            }
            last
        };
        tokio::time::timeout(WHOLE_TIMEOUT, asked)
            .await
            .unwrap_or(Err(NoAnswer::Failed))
    }
}

fn is_final(answer: &Message) -> bool {
    matches!(
        answer.metadata.response_code,
        ResponseCode::NoError | ResponseCode::NXDomain
    )
}

async fn ask_one(resolver: SocketAddr, question: &Question) -> io::Result<Message> {
    let answer = timed(UDP_TIMEOUT, ask_over_udp(resolver, question)).await?;
    if answer.metadata.truncation {
        return timed(TCP_TIMEOUT, ask_over_tcp(resolver, question)).await;
    }
    Ok(answer)
}

async fn timed<T>(time: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(time, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Each query has its own port and id, both random, and the answer must repeat the
/// question: whoever wants to forge one has to guess 32 bits within the round trip.
async fn ask_over_udp(resolver: SocketAddr, question: &Question) -> io::Result<Message> {
    let any: SocketAddr = match resolver {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    let id = rand::random();
    let query = question.to_upstream(id).ok_or(io::ErrorKind::InvalidData)?;
    socket.send(&query).await?;
    let mut answer = [0; ANSWER_BYTES];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Some(message) = question.read_answer(id, &answer[..length]) {
            return Ok(message);
        }
    }
}

async fn ask_over_tcp(resolver: SocketAddr, question: &Question) -> io::Result<Message> {
    let mut socket = TcpStream::connect(resolver).await?;
    let id = rand::random();
    let query = question.to_upstream(id).ok_or(io::ErrorKind::InvalidData)?;
    write_message(&mut socket, &query).await?;
    let answer = read_message(&mut socket).await?;
    question
        .read_answer(id, &answer)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Writes a message behind its length (RFC 1035, 4.2.2).
pub(super) async fn write_message(
    socket: &mut (impl AsyncWriteExt + Unpin),
    message: &[u8],
) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    socket.write_all(&bytes).await
}

/// Reads a message behind its length.
pub(super) async fn read_message(socket: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let length = socket.read_u16().await?;
    let mut message = vec![0; length.into()];
    socket.read_exact(&mut message).await?;
    Ok(message)
}

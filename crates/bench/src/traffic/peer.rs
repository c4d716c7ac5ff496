//! What a guest connects to: a server in this process, and the connection over which the
//! guest's program is told what to do.

use crate::BenchError;
use crate::stats::milliseconds_since;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Python starts in a second without KVM, on a busy machine in several; ten thousand
/// connections take a minute.
const JOB_LIMIT: Duration = Duration::from_secs(300);

/// Bytes of one read or write.
const PIECE_BYTES: usize = 1 << 20;

/// Connections that wait to be taken; a guest opens them one by one.
const CONTROLS: usize = 1;

/// What a guest's program is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Fetch so many bytes.
    Download(usize),
    /// Send so many bytes.
    Upload(usize),
    /// Make so many connections, one after the other; each carries a byte to and fro.
    Connect(usize),
    /// Make so many and keep them.
    Hold(usize),
    /// Close those that were kept.
    Drop,
}

impl Job {
    fn line(self) -> String {
        let (word, count) = match self {
            Self::Download(bytes) => ("download", bytes),
            Self::Upload(bytes) => ("upload", bytes),
            Self::Connect(count) => ("connect", count),
            Self::Hold(count) => ("hold", count),
            Self::Drop => ("drop", 0),
        };
        format!("{word} {count}\n")
    }
}

/// A server that no guest has connected to yet.
pub(crate) struct Listening {
    address: SocketAddr,
    controls: mpsc::Receiver<TcpStream>,
    serving: Serving,
}

/// A guest that waits for something to do.
pub(crate) struct Peer {
    control: BufReader<TcpStream>,
    _serving: Serving,
}

/// Ends with whoever needs it.
struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listening {
    /// On a free port of this address.
    pub(crate) async fn start(address: IpAddr) -> Result<Self, BenchError> {
        let listener = TcpListener::bind((address, 0)).await;
        let listener = listener.map_err(BenchError::Traffic)?;
        let address = listener.local_addr().map_err(BenchError::Traffic)?;
        let (sender, controls) = mpsc::channel(CONTROLS);
        Ok(Self {
            address,
            controls,
            serving: Serving(tokio::spawn(serve(listener, sender))),
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The guest's program, when it has begun.
    pub(crate) async fn peer(mut self) -> Result<Peer, BenchError> {
        let control = limited(async { Ok(self.controls.recv().await) }).await?;
        let control = control.ok_or_else(|| odd("the server ended"))?;
        Ok(Peer {
            control: BufReader::new(control),
            _serving: self.serving,
        })
    }
}

impl Peer {
    /// Has it done: milliseconds until it is.
    pub(crate) async fn does(&mut self, job: Job) -> Result<f64, BenchError> {
        let began = Instant::now();
        let doing = async {
            let mut answer = String::new();
            let line = job.line();
            self.control.get_mut().write_all(line.as_bytes()).await?;
            self.control.read_line(&mut answer).await?;
            Ok(answer)
        };
        let answer = limited(doing).await?;
        let time = milliseconds_since(began);
        match &*answer {
            "done\n" => Ok(time),
            _ => Err(odd("a guest's program ended early")),
        }
    }
}

async fn limited<T>(work: impl Future<Output = io::Result<T>>) -> Result<T, BenchError> {
    match tokio::time::timeout(JOB_LIMIT, work).await {
        Ok(done) => done.map_err(BenchError::Traffic),
        Err(_) => Err(BenchError::TooSlow {
            what: "a guest's traffic",
            limit: JOB_LIMIT,
        }),
    }
}

fn odd(what: &'static str) -> BenchError {
    BenchError::Traffic(io::Error::other(what))
}

async fn serve(listener: TcpListener, controls: mpsc::Sender<TcpStream>) {
    while let Ok((stream, _)) = listener.accept().await {
        // A connection that breaks off is noticed by the guest's program, which then ends.
        tokio::spawn(serve_one(stream, controls.clone()));
    }
}

async fn serve_one(mut stream: TcpStream, controls: mpsc::Sender<TcpStream>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match stream.read_u8().await? {
        b'C' => controls.send(stream).await.map_err(io::Error::other),
        b'D' => {
            let bytes = stream.read_u64().await?;
            write_many(&mut stream, bytes).await
        }
        b'U' => {
            let bytes = stream.read_u64().await?;
            read_many(&mut stream, bytes).await?;
            stream.write_all(b"U").await
        }
        _ => {
            stream.write_all(b"E").await?;
            // Until the guest closes it.
            stream.read_u8().await.map(drop)
        }
    }
}

async fn write_many(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let piece = vec![0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(PIECE_BYTES as u64);
        stream.write_all(&piece[..length as usize]).await?;
        left -= length;
    }
    Ok(())
}

async fn read_many(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        match stream.read(&mut piece).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => left = left.saturating_sub(length as u64),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::process::Stdio;

    #[tokio::test]
    async fn the_guests_program_does_what_it_is_told() {
        let listening = Listening::start(Ipv4Addr::LOCALHOST.into()).await.unwrap();
        let mut program = tokio::process::Command::new("python3")
            .args(["-c", crate::traffic::CLIENT, "127.0.0.1"])
            .arg(listening.port().to_string())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut peer = listening.peer().await.unwrap();
        for job in [
            Job::Download(3_000_001),
            Job::Upload(3_000_001),
            Job::Connect(3),
            Job::Hold(3),
            Job::Drop,
        ] {
            assert!(peer.does(job).await.unwrap() > 0.0, "{job:?}");
        }
        program.kill().await.unwrap();
        assert!(peer.does(Job::Drop).await.is_err());
    }
}

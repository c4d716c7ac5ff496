//! Servers that send back what they get, by TCP, UDP and WebSocket.

use super::machine::Machine;
use super::{ECHO_ADDRESSES, ECHO_PORT, OTHER_ECHO_PORT, socket};
use futures::{SinkExt as _, StreamExt as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_tungstenite::accept_async;

/// Where the WebSocket echo is, behind the web server.
pub(super) const WEBSOCKET: &str = "127.0.0.1:9001";

/// Bytes that are sent back at once; also the longest datagram.
const PIECE_BYTES: usize = 1 << 16;

/// What is kept of a datagram's text.
const NOTED_CHARS: usize = 80;

/// How long a connection may take to be gone once it was cut.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);

/// Counts what reached the echo servers.
#[derive(Clone, Default)]
pub struct Echo {
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    datagrams: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    pub(super) fn start(machine: &Machine) -> Self {
        let echo = Self::default();
        for address in ECHO_ADDRESSES {
            for port in [ECHO_PORT, OTHER_ECHO_PORT] {
                let at = socket(address, port);
                let (tcp, udp) = machine.run(async move {
                    let tcp = TcpListener::bind(at).await.expect("it is free");
                    (tcp, UdpSocket::bind(at).await.expect("it is free"))
                });
                machine.spawn(echo.clone().serve_tcp(tcp));
                machine.spawn(echo.clone().serve_udp(udp, at));
            }
        }
        let listener =
            machine.run(async { TcpListener::bind(WEBSOCKET).await.expect("it is free") });
        machine.spawn(serve_websockets(listener));
        echo
    }

    /// TCP connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// TCP connections that neither side ended yet.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits until no more than so many TCP connections are open.
    pub fn await_open(&self, count: usize) {
        let deadline = Instant::now() + GONE_TIMEOUT;
        while self.open() != count {
            let open = self.open();
            assert!(Instant::now() < deadline, "{open} are open, not {count}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The texts of the datagrams so far, as `ADDRESS:PORT TEXT`.
    pub fn datagrams(&self) -> Vec<String> {
        self.datagrams.lock().expect("nobody panics").clone()
    }

    async fn serve_tcp(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            self.accepted.fetch_add(1, Ordering::SeqCst);
            self.open.fetch_add(1, Ordering::SeqCst);
            let open = Arc::clone(&self.open);
            drop(tokio::spawn(async move {
                // A reset is an end like another.
                drop(send_back(stream).await);
                open.fetch_sub(1, Ordering::SeqCst);
            }));
        }
    }

    fn note(&self, datagram: String) {
        let mut datagrams = self.datagrams.lock().expect("nobody panics");
        datagrams.push(datagram);
    }

    async fn serve_udp(self, udp: UdpSocket, at: SocketAddr) {
        let mut datagram = vec![0; PIECE_BYTES];
        loop {
            // Errors are of peers that are gone.
            let Ok((length, from)) = udp.recv_from(&mut datagram).await else {
                continue;
            };
            let text = String::from_utf8_lossy(&datagram[..length]);
            let noted: String = text.chars().take(NOTED_CHARS).collect();
            self.note(format!("{at} {noted}"));
            drop(udp.send_to(&datagram[..length], from).await);
        }
    }
}

async fn send_back(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&piece[..length]).await?;
    }
}

async fn serve_websockets(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        drop(tokio::spawn(async move {
            let Ok(mut socket) = accept_async(stream).await else {
                return;
            };
            while let Some(Ok(message)) = socket.next().await {
                if message.is_text() || message.is_binary() {
                    drop(socket.send(message).await);
                }
            }
        }));
    }
}

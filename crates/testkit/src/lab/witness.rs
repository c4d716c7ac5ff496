//! Servers that nobody is to reach: on the host itself and on `watched`.

use super::machine::Machine;
use super::{FORBIDDEN, FORBIDDEN_PORTS, HOST, socket};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, UdpSocket};

/// How long a connection may take to be accepted.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client that gets through would see.
const SECRET: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nsecret\n";

type Contacts = Arc<Mutex<Vec<(SocketAddr, String)>>>;

/// Who reached the host's servers.
pub(super) struct Witness {
    contacts: Contacts,
}

impl Witness {
    /// The servers of `watched` answer too, so that a test sees what is not refused; who
    /// comes there is seen by its packets.
    pub(super) fn start(host: &Machine, watched: &Machine) -> Self {
        let contacts = Contacts::default();
        for port in FORBIDDEN_PORTS {
            // IPv4 comes to a socket for IPv6 too.
            listen(host, socket("::", port), &contacts);
            for (address, _) in FORBIDDEN {
                let mut at = socket(address, port);
                if let (SocketAddr::V6(v6), true) = (&mut at, address.starts_with("fe80")) {
                    v6.set_scope_id(watched.interface("door"));
                }
                listen(watched, at, &Contacts::default());
            }
        }
        Self { contacts }
    }

    /// The calling thread is on the host.
    pub(super) fn contacts(&self) -> Vec<String> {
        for port in FORBIDDEN_PORTS {
            self.await_caught_up(port);
        }
        let contacts = self.contacts.lock().expect("nobody panics");
        contacts.iter().map(|(_, text)| text.clone()).collect()
    }

    pub(super) fn forget(&self) {
        self.contacts.lock().expect("nobody panics").clear();
    }

    /// Connections are accepted in the order in which they came: ours is the last.
    fn await_caught_up(&self, port: u16) {
        let stream = StdTcpStream::connect((HOST[1], port)).expect("the witness listens");
        let ours = stream.local_addr().expect("it has one");
        let deadline = Instant::now() + ACCEPT_TIMEOUT;
        loop {
            let mut contacts = self.contacts.lock().expect("nobody panics");
            let before = contacts.len();
            contacts.retain(|(from, _)| *from != ours);
            if contacts.len() < before {
                return;
            }
            drop(contacts);
            assert!(Instant::now() < deadline, "the witness sleeps");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn listen(machine: &Machine, at: SocketAddr, contacts: &Contacts) {
    let (tcp, udp) = machine.run(async move {
        let tcp = TcpListener::bind(at).await.expect("it is free");
        (tcp, UdpSocket::bind(at).await.expect("it is free"))
    });
    let seen = Arc::clone(contacts);
    machine.spawn(async move {
        while let Ok((mut stream, from)) = tcp.accept().await {
            let text = format!("a connection from {from} to {at}");
            seen.lock().expect("nobody panics").push((from, text));
            drop(stream.write_all(SECRET).await);
        }
    });
    let seen = Arc::clone(contacts);
    machine.spawn(async move {
        let mut datagram = [0; 2048];
        loop {
            if let Ok((length, from)) = udp.recv_from(&mut datagram).await {
                let text = format!("a datagram from {from} to {at}");
                seen.lock().expect("nobody panics").push((from, text));
                drop(udp.send_to(&datagram[..length], from).await);
            }
        }
    });
}

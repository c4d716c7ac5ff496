//! Whose a TCP connection within this host is.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where the kernel lists its TCP sockets (proc_pid_net(5)).
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// The tables are read in pieces while sockets come and go: one that is there may be missed,
/// hardly so often in a row.
const READS: usize = 3;

/// The account of the process that made the client's socket of a connection within this
/// host. `None` if no process has it open any more: the kernel then says nothing of its
/// account, or that it is root's.
///
/// # Errors
/// The kernel's tables cannot be read.
pub fn owner_of(client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
    for _ in 0..READS {
        for table in TABLES {
            let text = match fs::read_to_string(table) {
                // A kernel without IPv6 has no such table.
                Err(error) if error.kind() == io::ErrorKind::NotFound && table == TABLES[1] => {
                    continue;
                }
                read => read?,
            };
            if let Some(owner) = owner_in(&text, client, server) {
                return Ok(Some(owner));
            }
        }
    }
    Ok(None)
}

/// ```text
///   sl  local_address rem_address   st tx:rx tr:when retrnsmt   uid  timeout inode …
/// ```
fn owner_in(table: &str, client: SocketAddr, server: SocketAddr) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let local = address(fields.nth(1)?)?;
        let remote = address(fields.next()?)?;
        if (local, remote) != (canonical(client), canonical(server)) {
            return None;
        }
        let uid = fields.nth(4)?.parse().ok()?;
        let inode: u64 = fields.nth(1)?.parse().ok()?;
        (inode != 0).then_some(uid)
    })
}

/// An IPv6 socket that speaks IPv4 is listed by its mapped addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// `0100007F:1F90`: words of 32 bits in the order of this machine, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| -> Option<[u8; 4]> {
        let word = words.get(8 * at..8 * at + 8)?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    };
    let ip = match words.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn own_uid() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn a_connection_is_its_makers_until_it_is_closed() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                // Hosts without IPv6.
                assert_eq!(host, "[::1]:0");
                continue;
            };
            let server = listener.local_addr().unwrap();
            let client = TcpStream::connect(server).unwrap();
            let address = client.local_addr().unwrap();
            assert_eq!(owner_of(address, server).unwrap(), Some(own_uid()));
            // Half closed it is still somebody's.
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(owner_of(address, server).unwrap(), Some(own_uid()));
            drop(client);
            assert_eq!(owner_of(address, server).unwrap(), None);
        }
    }

    #[test]
    fn an_ipv6_socket_that_speaks_ipv4_is_found() {
        let line = "header\n  1: 0000000000000000FFFF00000100007F:9C40 \
                    0000000000000000FFFF00000100007F:1B58 01 00000000:00000000 00:00000000 \
                    00000000  1879048199        0 77 1 0\n";
        let of = |client: &str| {
            owner_in(
                line,
                client.parse().unwrap(),
                "127.0.0.1:7000".parse().unwrap(),
            )
        };
        if cfg!(target_endian = "little") {
            assert_eq!(of("127.0.0.1:40000"), Some(1_879_048_199));
            assert_eq!(of("[::ffff:127.0.0.1]:40000"), Some(1_879_048_199));
        }
        assert_eq!(of("127.0.0.1:40001"), None);
    }

    #[test]
    fn what_nobody_has_open_is_nobodys() {
        let line = "header\n  1: 0100007F:9C40 0100007F:1B58 04 00000000:00000000 00:00000000 \
                    00000000     0        0 0 1 0\n";
        let (client, server) = ("127.0.0.1:40000", "127.0.0.1:7000");
        assert_eq!(
            owner_in(line, client.parse().unwrap(), server.parse().unwrap()),
            None
        );
        for garbage in [
            "",
            "x",
            "a\nb",
            "a\n1: 0100007F 0100007F:1B58",
            "a\n1: ééé:1 é:2 3",
        ] {
            assert_eq!(
                owner_in(garbage, client.parse().unwrap(), server.parse().unwrap()),
                None
            );
        }
    }
}

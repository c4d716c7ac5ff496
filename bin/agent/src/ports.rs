//! What listens on TCP ports inside, by the kernel's tables.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pando_wire::guest::ListeningPort;

/// Ports in one answer. An honest guest has a handful.
const MAX_PORTS: usize = 1024;

/// Descriptors looked at for the owners of sockets: what a few hundred busy processes have.
/// Beyond it ports go without a name; a guest full of descriptors must not keep the agent busy.
const MAX_DESCRIPTORS: usize = 65_536;

/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Ports that listen, by number and address. Reads `/proc`, which takes a while.
pub(crate) fn listening() -> Vec<ListeningPort> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let mut sockets = BTreeMap::new();
    for line in tables.iter().flatten().flat_map(|table| table.lines()) {
        if let Some((port, address, inode)) = parse(line) {
            sockets.entry((port, address)).or_insert(inode);
        }
        if sockets.len() == MAX_PORTS {
            break;
        }
    }
    let owners = owners(sockets.values().copied());
    let describe = |((port, address), inode): ((u16, IpAddr), u64)| {
        let pid = owners.get(&inode).copied().unwrap_or(0);
        ListeningPort {
            port: port.into(),
            address: address.to_string(),
            pid,
            process: name_of(pid),
            ..Default::default()
        }
    };
    sockets.into_iter().map(describe).collect()
}

/// Port, address and inode of a table's line, if it is of a socket that listens.
fn parse(line: &str) -> Option<(u16, IpAddr, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if fields.nth(1)? != LISTEN {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = fields.nth(5)?.parse().ok()?;
    Some((port, parse_address(address)?, inode))
}

/// An address as the kernel prints it: words of 32 bits in the machine's byte order.
fn parse_address(hex: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = hex.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// A process for each of these sockets, where one is found; of several the first.
fn owners(inodes: impl Iterator<Item = u64>) -> HashMap<u64, u32> {
    let wanted: HashMap<String, u64> = inodes
        .map(|inode| (format!("socket:[{inode}]"), inode))
        .collect();
    let mut owners = HashMap::new();
    let mut looked_at = 0;
    for pid in process_ids() {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            looked_at += 1;
            if owners.len() == wanted.len() || looked_at > MAX_DESCRIPTORS {
                return owners;
            }
            let target = fs::read_link(descriptor.path()).ok();
            let inode = target.and_then(|target| wanted.get(target.to_str()?).copied());
            if let Some(inode) = inode {
                owners.entry(inode).or_insert(pid);
            }
        }
    }
    owners
}

/// The processes there are, in order: a parent mostly comes before its children.
fn process_ids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

fn name_of(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100";
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(parse(line), Some((8080, loopback, 4711)));
        let six = "   1: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 12 1";
        assert_eq!(parse(six), Some((80, Ipv6Addr::LOCALHOST.into(), 12)));
        assert_eq!(parse(&line.replace(" 0A ", " 01 ")), None);
        for bad in [
            "",
            "sl local_address rem_address st",
            "a b:c d 0A e f g h i",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn our_own_listener_is_found_with_our_name() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let found = listening();
        let ours = found
            .iter()
            .find(|found| found.port == u32::from(port))
            .unwrap();
        assert_eq!(
            (ours.address.as_str(), ours.pid),
            ("127.0.0.1", std::process::id())
        );
        assert_eq!(ours.process, name_of(std::process::id()));
        drop(listener);
        assert!(
            !listening()
                .iter()
                .any(|found| found.port == u32::from(port))
        );
    }
}

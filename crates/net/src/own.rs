//! Which addresses are the host's own.
//!
//! They change: a VPN comes up, DHCP gives another. So they are asked for at every dial,
//! in two ways. The kernel's choice of a source, at no cost, shows the address of every
//! local route that is its own source, at once. The list of interfaces shows the rest,
//! and costs a dump of all interfaces, so that it is at most a quarter of a second old.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const LIST_AGE: Duration = Duration::from_millis(250);

/// What the host's routes say about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is the host's own.
    Own,
    /// There is a route.
    Away,
    /// There is none.
    Nowhere,
}

/// The host's own addresses.
#[derive(Debug, Default)]
pub(crate) struct OwnAddresses {
    list: Mutex<Option<(Instant, HashSet<IpAddr>)>>,
}

impl OwnAddresses {
    pub(crate) fn reach(&self, address: IpAddr) -> Reach {
        // Loopback has its own protected range; a rule opens its addresses together.
        if address.is_loopback() {
            return Reach::Away;
        }
        let route = source_for(address);
        if route == Ok(address) || self.lists(address) {
            return Reach::Own;
        }
        match route {
            Ok(_) => Reach::Away,
            Err(NoRoute) => Reach::Nowhere,
        }
    }

    fn lists(&self, address: IpAddr) -> bool {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = matches!(&*list, Some((read, _)) if read.elapsed() < LIST_AGE);
        if !fresh {
            // Where it cannot be read the last one counts, and the routes.
            if let Ok(interfaces) = if_addrs::get_if_addrs() {
                let addresses = interfaces.iter().map(if_addrs::Interface::ip).collect();
                *list = Some((Instant::now(), addresses));
            }
        }
        matches!(&*list, Some((_, addresses)) if addresses.contains(&address))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoRoute;

/// The source that a packet to `address` would have. No packet is sent.
fn source_for(address: IpAddr) -> Result<IpAddr, NoRoute> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Any port but 0 will do.
    let probe = || {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.connect(SocketAddr::new(address, 9))?;
        socket.local_addr()
    };
    probe().map(|local| local.ip()).map_err(|_| NoRoute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_addresses_are_its_own_and_others_are_not() {
        let own = OwnAddresses::default();
        let all = if_addrs::get_if_addrs().unwrap();
        let real = all.iter().map(if_addrs::Interface::ip).filter(|address| {
            let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
            !address.is_loopback() && !link_local
        });
        for address in real {
            assert_eq!(own.reach(address), Reach::Own, "{address}");
        }
        assert_ne!(own.reach([198, 51, 100, 77].into()), Reach::Own);
        assert_eq!(own.reach([127, 0, 0, 1].into()), Reach::Away);
    }
}

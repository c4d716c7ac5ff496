//! The inside addresses, the same in every sandbox, and the size of what passes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The guest's address, in a network of 24 bits.
pub const GUEST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// The address of the gateway and its name server.
pub const GATEWAY_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The guest's IPv6 address, in a network of 64 bits: `fd70:616e:646f::15`.
pub const GUEST_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd70, 0x616e, 0x646f, 0, 0, 0, 0, 0x15);

/// The IPv6 address of the gateway and its name server: `fd70:616e:646f::2`.
pub const GATEWAY_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd70, 0x616e, 0x646f, 0, 0, 0, 0, 2);

/// The gateway's hardware address, locally administered.
pub const GATEWAY_MAC: [u8; 6] = [0x52, 0x55, 0x0a, 0x00, 0x02, 0x02];

/// Longest IP packet, either way, in bytes. The guest's card may be told less; TCP goes
/// by what the guest announces, so that this is an upper bound and no agreement.
pub const MTU: usize = 65535;

pub(crate) const ETHERNET_BYTES: usize = 14;

/// Longest frame: a packet behind an Ethernet header.
pub const FRAME_BYTES: usize = MTU + ETHERNET_BYTES;

pub(crate) const DNS_PORT: u16 = 53;

/// Whether it is the guest's own.
pub(crate) fn is_guest(address: IpAddr) -> bool {
    address == IpAddr::V4(GUEST_ADDRESS) || address == IpAddr::V6(GUEST_ADDRESS_V6)
}

/// Whether it is the gateway's own.
pub(crate) fn is_gateway(address: IpAddr) -> bool {
    address == IpAddr::V4(GATEWAY_ADDRESS) || address == IpAddr::V6(GATEWAY_ADDRESS_V6)
}

/// The gateway's address of the same kind as `address`.
pub(crate) fn gateway_beside(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => GATEWAY_ADDRESS.into(),
        IpAddr::V6(_) => GATEWAY_ADDRESS_V6.into(),
    }
}

/// Whether a packet to it is for one host. Nobody answers what is sent to many
/// (RFC 1122, 3.2.2; RFC 4443, 2.4).
pub(crate) fn is_one_host(address: IpAddr) -> bool {
    /// The inside network's own broadcast address.
    const NETWORK_BROADCAST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 255);
    match address {
        IpAddr::V4(address) => {
            !(address.is_multicast()
                || address.is_broadcast()
                || address.is_unspecified()
                || address == NETWORK_BROADCAST)
        }
        IpAddr::V6(address) => !(address.is_multicast() || address.is_unspecified()),
    }
}

//! Bringing up interfaces with the classic ioctls: three calls instead of a
//! netlink client.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sets an interface up.
///
/// # Errors
/// There is no such interface, or the caller is not privileged.
pub fn set_up(interface: &str) -> io::Result<()> {
    let socket = socket()?;
    let mut request = request_for(interface)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    interface_ioctl(&socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut request)
}

/// Sets an interface's address and netmask.
///
/// # Errors
/// There is no such interface, or the caller is not privileged.
pub fn set_address(interface: &str, address: Ipv4Addr, netmask: Ipv4Addr) -> io::Result<()> {
    let socket = socket()?;
    let mut request = request_for(interface)?;
    request.ifr_ifru.ifru_addr = socket_address(address);
    interface_ioctl(&socket, libc::SIOCSIFADDR as libc::Ioctl, &mut request)?;
    request.ifr_ifru.ifru_netmask = socket_address(netmask);
    interface_ioctl(&socket, libc::SIOCSIFNETMASK as libc::Ioctl, &mut request)
}

/// Adds the default route.
///
/// # Errors
/// The gateway is not on a connected network, or the caller is not privileged.
pub fn add_default_route(gateway: Ipv4Addr) -> io::Result<()> {
    let socket = socket()?;
    // SAFETY: all fields of `rtentry` are numbers or pointers; zero is valid for each.
    let mut route: libc::rtentry = unsafe { mem::zeroed() };
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = socket_address(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    let request = libc::SIOCADDRT as libc::Ioctl;
    // SAFETY: `route` is a whole `rtentry` that the kernel only reads during the call.
    let added = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw const route) };
    if added < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the longest packet, in bytes, that the interface takes.
///
/// # Errors
/// There is no such interface, it cannot do that, or the caller is not privileged.
pub fn set_mtu(interface: &str, bytes: u16) -> io::Result<()> {
    let socket = socket()?;
    let mut request = request_for(interface)?;
    request.ifr_ifru.ifru_mtu = i32::from(bytes);
    interface_ioctl(&socket, libc::SIOCSIFMTU as libc::Ioctl, &mut request)
}

/// Adds an IPv6 address to an interface.
///
/// # Errors
/// There is no such interface, the kernel has no IPv6, or the caller is not privileged.
pub fn add_address_v6(interface: &str, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
    let request = libc::in6_ifreq {
        ifr6_addr: in6_addr(address),
        ifr6_prefixlen: u32::from(prefix),
        ifr6_ifindex: index_of(interface)?,
    };
    let socket = socket_of(libc::AF_INET6)?;
    let code = libc::SIOCSIFADDR as libc::Ioctl;
    // SAFETY: on an IPv6 socket the kernel reads a whole `in6_ifreq`, which `request` is.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), code, &raw const request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Adds the default route of IPv6.
///
/// # Errors
/// The gateway is not on a connected network, or the caller is not privileged.
pub fn add_default_route_v6(interface: &str, gateway: Ipv6Addr) -> io::Result<()> {
    // To everywhere, from everywhere: no bits of either are given.
    let route = RouteV6 {
        destination: in6_addr(Ipv6Addr::UNSPECIFIED),
        source: in6_addr(Ipv6Addr::UNSPECIFIED),
        gateway: in6_addr(gateway),
        kind: 0,
        destination_bits: 0,
        source_bits: 0,
        metric: 1,
        info: 0,
        flags: u32::from(libc::RTF_UP | libc::RTF_GATEWAY),
        interface: index_of(interface)?,
    };
    let socket = socket_of(libc::AF_INET6)?;
    let code = libc::SIOCADDRT as libc::Ioctl;
    // SAFETY: on an IPv6 socket the kernel reads a whole `in6_rtmsg`, whose fields
    // `route` has.
    let added = unsafe { libc::ioctl(socket.as_raw_fd(), code, &raw const route) };
    if added < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `struct in6_rtmsg` of `linux/ipv6_route.h`; libc's has no fields that can be set.
#[repr(C)]
struct RouteV6 {
    destination: libc::in6_addr,
    source: libc::in6_addr,
    gateway: libc::in6_addr,
    kind: u32,
    destination_bits: u16,
    source_bits: u16,
    metric: u32,
    info: libc::c_ulong,
    flags: u32,
    interface: libc::c_int,
}

fn in6_addr(address: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr {
        s6_addr: address.octets(),
    }
}

fn index_of(interface: &str) -> io::Result<i32> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: `name` is a string with a zero at its end that lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => i32::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into()),
    }
}

fn socket() -> io::Result<OwnedFd> {
    socket_of(libc::AF_INET)
}

fn socket_of(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn request_for(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is a name and a union of plain data; zero is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (target, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *target = byte as libc::c_char;
    }
    Ok(request)
}

fn interface_ioctl(
    socket: &OwnedFd,
    code: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: `request` is a whole `ifreq` that lives through the call, which is
    // all that these requests read or write.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), code, std::ptr::from_mut(request)) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: `sockaddr` is plain data; zero is valid.
    let mut generic: libc::sockaddr = unsafe { mem::zeroed() };
    generic.sa_family = libc::AF_INET as libc::sa_family_t;
    // `sockaddr_in`: the port takes the first two bytes, then the address.
    for (target, byte) in generic.sa_data[2..6].iter_mut().zip(address.octets()) {
        *target = byte as libc::c_char;
    }
    generic
}

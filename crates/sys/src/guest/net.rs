//! Bringing up interfaces with the classic ioctls: three calls instead of a
//! netlink client.

use std::io;
use std::mem;
use std::net::Ipv4Addr;
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

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
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

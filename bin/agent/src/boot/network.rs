//! The network: the same addresses in every sandbox, given by its gateway.

use std::net::{Ipv4Addr, Ipv6Addr};

use pando_sys::guest::net;

use crate::log::log;

const INTERFACE: &str = "eth0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

/// Gateway and name server.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The longest packet. The gateway is no wire: a long packet costs it hardly more than a
/// short one.
const MTU_BYTES: u16 = u16::MAX;

const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd70, 0x616e, 0x646f, 0, 0, 0, 0, 0x15);
const PREFIX_V6: u8 = 64;
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd70, 0x616e, 0x646f, 0, 0, 0, 0, 2);

/// What the kernel is not to do by itself: nobody else has the address, and no router tells
/// of others.
const SETTINGS_V6: [(&str, &str); 3] = [
    ("accept_dad", "0"),
    ("accept_ra", "0"),
    ("addr_gen_mode", "1"),
];

/// Brings up the loopback and the one interface. A sandbox without a network is
/// still one: failures are logged.
pub(super) fn bring_up() {
    if let Err(error) = net::set_up("lo") {
        log!("cannot bring up lo: {error}");
    }
    let present = || {
        std::path::Path::new("/sys/class/net/eth0")
            .exists()
            .then_some(())
    };
    let brought_up = super::wait_for(INTERFACE, present).and_then(|()| {
        settle_v6();
        net::set_address(INTERFACE, ADDRESS, NETMASK)?;
        net::set_mtu(INTERFACE, MTU_BYTES)?;
        net::set_up(INTERFACE)?;
        net::add_default_route(GATEWAY)?;
        Ok(())
    });
    if let Err(error) = brought_up {
        log!("cannot bring up {INTERFACE}: {error:#}");
    }
    if let Err(error) = bring_up_v6() {
        log!("cannot bring up IPv6 on {INTERFACE}: {error}");
    }
}

fn bring_up_v6() -> std::io::Result<()> {
    net::add_address_v6(INTERFACE, ADDRESS_V6, PREFIX_V6)?;
    net::add_default_route_v6(INTERFACE, GATEWAY_V6)
}

/// Before the interface comes up.
fn settle_v6() {
    for (name, value) in SETTINGS_V6 {
        let path = format!("/proc/sys/net/ipv6/conf/{INTERFACE}/{name}");
        if let Err(error) = std::fs::write(&path, value) {
            log!("cannot set {path}: {error}");
        }
    }
}

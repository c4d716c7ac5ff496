//! The network: the same addresses in every sandbox, given by its gateway.

use std::net::Ipv4Addr;

use pando_sys::guest::net;

use crate::log::log;

const INTERFACE: &str = "eth0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

/// Gateway and name server.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

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
        net::set_address(INTERFACE, ADDRESS, NETMASK)?;
        net::set_up(INTERFACE)?;
        net::add_default_route(GATEWAY)?;
        Ok(())
    });
    if let Err(error) = brought_up {
        log!("cannot bring up {INTERFACE}: {error:#}");
    }
}

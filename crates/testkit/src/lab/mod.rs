//! An internet for tests: three machines, no route off them.
//!
//! ```text
//!                      ┌── world ─── up ───► internet: real servers at documentation's addresses,
//!  host: the test,     │  198.51.100.2       198.51.100.0/24, 203.0.113.0/24, 2001:db8::/64
//!  its daemon, shims   ┤  2001:db8::2
//!  (and witnesses)     │  10.9.0.2
//!                      └── office ── door ─► watched: what a guest must not reach, 10.9.1.1,
//!                                            192.168.77.1, 169.254.169.254, fd00:8::1, …,
//!                                            and a site that policies forbid
//! ```
//!
//! Each machine is a network namespace. [`Lab::new`] moves the calling thread into `host`:
//! what it starts afterwards (a [`World`](crate::World), `pando`, threads) is there too, and
//! needs to know nothing of it. All servers answer to everybody who can send them a packet;
//! what a guest must not reach differs from what it may reach in the address alone. Every
//! packet that arrives at `watched` is seen, and so is every connection to `host` that
//! is not the daemon's.
//!
//! Needs root, iproute2 and util-linux, and the servers' Debian packages. Namespaces have no
//! names, so labs do not meet and none can be left behind; servers die with the lab, also
//! when the test is killed.

mod echo;
mod machine;
mod names;
mod packages;
mod process;
mod tls;
mod tools;
mod watch;
mod web;
mod witness;

pub use echo::Echo;
pub use names::{BIG, MANY, Names};
pub use tools::Bundle;
pub use watch::Packet;
pub use web::{Request, Web};

use machine::{Machine, enter, namespace_of_this_thread};
use process::Server;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tls::Authority;
use watch::Watch;
use witness::Witness;

/// The host's own addresses on the internet.
pub const HOST: [&str; 2] = ["198.51.100.2", "2001:db8::2"];

/// Whom the daemon is to ask for names: the value of `PANDO_DNS`.
pub const RESOLVER: &str = "198.51.100.53";

/// Ports on which what must not be reached would answer: TCP and UDP each.
pub const FORBIDDEN_PORTS: [u16; 6] = [22, 53, 80, 443, 5000, 8080];

/// Addresses of `watched`, one of each protected range, and what the range is. The host
/// reaches them all.
pub const FORBIDDEN: [(&str, &str); 10] = [
    ("10.9.1.1", "private, 10.0.0.0/8"),
    ("172.16.5.1", "private, 172.16.0.0/12"),
    ("192.168.77.1", "private, 192.168.0.0/16"),
    ("100.64.1.1", "shared by a provider's customers"),
    ("169.254.169.254", "link-local, and a cloud's metadata"),
    ("fd00:8::1", "unique local"),
    ("fd00:ec2::254", "a cloud's metadata"),
    ("64:ff9b::a09:101", "10.9.1.1 by NAT64"),
    ("2002:a09:101::1", "10.9.1.1 by 6to4"),
    ("fe80::9", "link-local"),
];

/// More that leads to the host itself, or to nobody in particular.
pub const FORBIDDEN_ALIASES: [&str; 12] = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "198.51.100.2",
    "10.9.0.2",
    "239.1.2.3",
    "255.255.255.255",
    "::1",
    "::",
    "2001:db8::2",
    "::ffff:10.9.1.1",
    "::ffff:127.0.0.1",
];

/// Where echo servers listen, TCP and UDP, on [`ECHO_PORT`] and [`OTHER_ECHO_PORT`]. The
/// first two are 203.0.113.5 and 203.0.113.77, which no name leads to.
pub const ECHO_ADDRESSES: [&str; 4] = [
    "203.0.113.5",
    "203.0.113.77",
    "198.51.100.30",
    "2001:db8::30",
];

/// A port of the echo servers.
pub const ECHO_PORT: u16 = 7;

/// Another.
pub const OTHER_ECHO_PORT: u16 = 7007;

/// An address that nobody has: the host's kernel says so at once.
pub const UNREACHABLE: &str = "192.0.2.1";

/// See the module.
pub struct Lab {
    /// Requests that the web servers were sent.
    pub web: Web,
    /// The name server's zone and log.
    pub names: Names,
    /// The echo servers.
    pub echo: Echo,
    watch: Watch,
    witness: Witness,
    authority: Authority,
    // Servers end before what they serve is removed.
    servers: Vec<Server>,
    internet: Machine,
    watched: Machine,
    host: Machine,
    before: OwnedFd,
    dir: TempDir,
}

impl Lab {
    /// Builds it and moves the calling thread into its host until it is dropped.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("pando-lab-")
            .tempdir()
            .expect("a temporary directory");
        let (host, internet, watched) = (Machine::new(), Machine::new(), Machine::new());
        wire(&host, &internet, &watched);
        let authority = Authority::new(&dir.path().join("tls"), web::names());
        packages::publish(&dir.path().join("www"));
        let mut lab = Self {
            web: Web::new(dir.path()),
            names: Names::new(dir.path()),
            echo: Echo::start(&internet),
            watch: Watch::start(&watched),
            witness: Witness::start(&host, &watched),
            authority,
            servers: Vec::new(),
            before: namespace_of_this_thread(),
            internet,
            watched,
            host,
            dir,
        };
        lab.serve();
        // That its servers answer was seen by asking them.
        lab.forget_trespasses();
        enter(lab.host.namespace());
        lab
    }

    /// The certificate of the authority that the web servers' certificates are from.
    pub fn authority(&self) -> PathBuf {
        self.authority.certificate()
    }

    /// A private key that the SSH server lets in as root; a login says `welcome`.
    pub fn ssh_key(&self) -> PathBuf {
        self.dir.path().join("ssh/client")
    }

    /// The host forbids unprivileged pings, as kernels do when nothing else is said.
    pub fn forbid_ping(&self) {
        self.host.set("net/ipv4/ping_group_range", "1 0");
    }

    /// The packets that reached a forbidden address of `watched`; everything sent before the
    /// call is in it.
    pub fn packets_to(&self, address: IpAddr) -> Vec<Packet> {
        self.watch.packets_to(address)
    }

    /// Everything that was not to be reached and was: packets to `watched` and connections to
    /// the host. Everything sent before the call is in it.
    pub fn trespasses(&self) -> Vec<String> {
        let mut found: Vec<String> = self
            .watch
            .packets()
            .iter()
            .filter(|packet| !is_site(packet.to))
            .map(|packet| format!("a packet: {packet:?}"))
            .collect();
        found.extend(self.witness.contacts());
        found
    }

    /// Counts from zero: what a test did on purpose is no trespass.
    pub fn forget_trespasses(&self) {
        self.trespasses();
        self.watch.forget();
        self.witness.forget();
    }

    fn serve(&mut self) {
        let dir = self.dir.path();
        let (web, authority) = (&self.web, &self.authority);
        self.servers = vec![
            self.names.serve(&self.internet),
            web.serve(&self.internet, "sites", &web::SITES, authority),
            web.serve(
                &self.watched,
                "watched-sites",
                &web::WATCHED_SITES,
                authority,
            ),
            tools::ssh(&self.internet, &dir.join("ssh")),
            tools::git(&self.internet, &dir.join("www/git")),
            tools::iperf3(&self.internet, dir),
        ];
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.servers.iter().for_each(Server::print_log);
            self.web.print_log();
        }
        enter(&self.before);
        self.servers.clear();
    }
}

/// Whether it is a site that only some policies forbid.
fn is_site(address: IpAddr) -> bool {
    let sites = web::addresses(&web::WATCHED_SITES);
    sites.contains(&address.to_string().as_str())
}

/// An address and a port.
fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

fn write(path: &Path, text: &str) {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).expect("a directory");
    }
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Joins the machines and gives them their addresses.
fn wire(host: &Machine, internet: &Machine, watched: &Machine) {
    for machine in [host, internet, watched] {
        // Nothing but what a test causes is to be on a wire.
        machine.set("net/ipv6/conf/default/accept_dad", "0");
        machine.set("net/ipv6/conf/default/router_solicitations", "0");
        machine.ip("link set lo up");
    }
    host.set("net/ipv4/ping_group_range", "0 2147483647");
    host.join("world", internet, "up");
    host.join("office", watched, "door");
    let addresses = web::addresses(&web::SITES)
        .into_iter()
        .chain(names::ADDRESSES)
        .chain(ECHO_ADDRESSES)
        .chain(tools::ADDRESSES)
        .chain(["198.51.100.1/24", "2001:db8::1/64"]);
    internet.ip(&addresses_of("up", addresses));
    let addresses = web::addresses(&web::WATCHED_SITES)
        .into_iter()
        .chain(FORBIDDEN.map(|(address, _)| address))
        .chain([watch::FENCE, "10.9.0.1/24", "fd00:9::1/64"]);
    watched.ip(&addresses_of("door", addresses));
    host.ip("addr add 198.51.100.2/24 dev world
         addr add 2001:db8::2/64 dev world nodad
         addr add 10.9.0.2/24 dev office
         addr add fd00:9::2/64 dev office nodad
         route add default via 198.51.100.1
         route add default via 2001:db8::1
         route add unreachable 192.0.2.0/24
         route add 10.0.0.0/8 via 10.9.0.1
         route add 172.16.0.0/12 via 10.9.0.1
         route add 192.168.0.0/16 via 10.9.0.1
         route add 100.64.0.0/10 via 10.9.0.1
         route add 169.254.0.0/16 via 10.9.0.1
         route add 198.51.100.66 via 10.9.0.1
         route add 198.51.100.67 via 10.9.0.1
         route add 2001:db8:66::/64 via fd00:9::1
         route add 239.0.0.0/8 dev office
         route add fc00::/7 via fd00:9::1
         route add 64:ff9b::/96 via fd00:9::1
         route add 2002::/16 via fd00:9::1");
}

/// Not the loopback device's, whose IPv6 addresses neighbours are not told of.
fn addresses_of<'a>(device: &str, addresses: impl Iterator<Item = &'a str>) -> String {
    addresses
        .map(|address| format!("addr add {address} dev {device}\n"))
        .collect()
}

//! A name server: dnsmasq.

use super::machine::Machine;
use super::process::Server;
use super::web::{SITES, WATCHED_SITES};
use super::{RESOLVER, socket, write};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// The name server's addresses.
pub(super) const ADDRESSES: [&str; 2] = [RESOLVER, "2001:db8::53"];

/// How many addresses `many.test.example` has: more than 512 bytes hold, so that a resolver
/// without extensions asks again by TCP.
pub const MANY: usize = 60;

/// How many texts of 196 bytes `big.test.example` has.
pub const BIG: usize = 25;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What only the lab itself asks for.
const FENCE: &str = "fence.example";

/// Names with one address or more of each kind, beside the sites'.
const HOSTS: [(&str, &[&str]); 12] = [
    ("ssh.test.example", &["198.51.100.27"]),
    ("iperf.test.example", &["198.51.100.26"]),
    ("echo.test.example", &["198.51.100.30", "2001:db8::30"]),
    ("other-echo.test.example", &["198.51.100.30"]),
    // Names that lead where nobody may go.
    ("rebind.test.example", &["10.9.1.1"]),
    ("rebind6.test.example", &["fd00:8::1"]),
    ("metadata.test.example", &["169.254.169.254"]),
    ("loopback.test.example", &["127.0.0.1", "::1"]),
    ("host.test.example", &["198.51.100.2", "2001:db8::2"]),
    ("mapped.test.example", &["::ffff:10.9.1.1"]),
    // And one that leads there and elsewhere.
    ("mixed.test.example", &["198.51.100.10", "10.9.1.1"]),
    ("six.test.example", &["2001:db8::10"]),
];

/// What `_service` records and the like are made of; the rest has dnsmasq's own words.
const RECORDS: &str = "\
# A chain: only its first name is in the zone of tests.
cname=alias.test.example,alias2.test.example
cname=alias2.test.example,real.elsewhere.example
# Names of strangers below one zone, and names that carry data out.
address=/wild.example/198.51.100.13
address=/tunnel.bad.example/198.51.100.66
txt-record=text.test.example,\"some text\"
# A service record with a key to hide names in TLS' hello: it is to be kept from guests.
dns-rr=allowed.test.example,65,0001000001000602683202683300050004DEADBEEF
";

/// The zone's server and its log.
pub struct Names {
    dir: PathBuf,
    fences: AtomicU16,
}

impl Names {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.join("names"),
            fences: AtomicU16::new(0),
        }
    }

    pub(super) fn serve(&self, machine: &Machine) -> Server {
        let (config, hosts) = (self.dir.join("conf"), self.dir.join("hosts"));
        let listen = ADDRESSES.map(|address| format!("listen-address={address}\n"));
        write(
            &config,
            &format!(
                "keep-in-foreground\nuser=root\ngroup=root\npid-file=\nbind-interfaces\n{}\
                 no-resolv\nno-hosts\nlocal=/example/\ncache-size=0\nlog-queries\n\
                 log-facility={}\naddn-hosts={}\n{RECORDS}{}",
                listen.concat(),
                self.log().display(),
                hosts.display(),
                big_text(),
            ),
        );
        write(&hosts, &hosts_file());
        let option = format!("--conf-file={}", config.display());
        let log = self.dir.join("said");
        Server::start(machine, &log, "dnsmasq", [option], socket(RESOLVER, 53))
    }

    /// The queries so far, as `TYPE NAME`; everything asked before the call is among them.
    pub fn queries(&self) -> Vec<String> {
        self.fence();
        let log = std::fs::read_to_string(self.log()).expect("a log");
        let queries = log.lines().filter_map(|line| {
            let (kind, rest) = line.split_once("query[")?.1.split_once("] ")?;
            Some(format!("{kind} {}", rest.split(' ').next()?))
        });
        queries.filter(|query| !query.ends_with(FENCE)).collect()
    }

    /// The queries so far for names that end in this.
    pub fn queries_below(&self, zone: &str) -> Vec<String> {
        let mut queries = self.queries();
        queries.retain(|query| query.to_lowercase().ends_with(zone));
        queries
    }

    fn log(&self) -> PathBuf {
        self.dir.join("queries")
    }

    /// The server writes down a query before it answers it, and takes them one by one.
    fn fence(&self) {
        let id = self.fences.fetch_add(1, Ordering::Relaxed);
        let mut query = id.to_be_bytes().to_vec();
        query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in FENCE.split('.') {
            query.push(u8::try_from(label.len()).expect("it is short"));
            query.extend(label.as_bytes());
        }
        query.extend([0, 0, 1, 0, 1]);
        let udp = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        udp.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("a limit");
        udp.send_to(&query, (RESOLVER, 53))
            .expect("there is a route");
        let mut answer = [0; 512];
        udp.recv(&mut answer).expect("the name server answers");
    }
}

/// 5 KiB of text in many records: more than any datagram that resolvers agree on.
fn big_text() -> String {
    let piece = "0123456789abcdef".repeat(12);
    (0..BIG)
        .map(|at| format!("txt-record=big.test.example,\"{at:03} {piece}\"\n"))
        .collect()
}

fn hosts_file() -> String {
    let sites = SITES.iter().chain(&WATCHED_SITES);
    let sites = sites.map(|(names, addresses)| (names[0], *addresses));
    let mut lines = String::new();
    for (name, addresses) in sites.chain(HOSTS) {
        for address in addresses {
            lines += &format!("{address} {name}\n");
        }
    }
    for at in 0..MANY {
        lines += &format!("198.51.100.{} many.test.example\n", 100 + at);
    }
    lines
}

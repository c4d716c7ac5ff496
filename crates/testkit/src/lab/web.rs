//! Web sites: nginx, with and without TLS.

use super::echo::WEBSOCKET;
use super::machine::Machine;
use super::process::Server;
use super::tls::Authority;
use super::tools::run;
use super::{socket, write};
use crate::world::tail;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a request may take to be in the log.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

/// Paths that only the lab itself asks for.
const FENCE: &str = "/fence-";

/// Sites on the internet: names, addresses. Each says `hello from NAME` at `/`; there is a
/// file of 8 MiB at `/bulk`; `/echo` is a WebSocket that echoes.
pub(super) const SITES: [(&[&str], &[&str]); 9] = [
    (
        &["allowed.test.example"],
        &["198.51.100.10", "2001:db8::10"],
    ),
    (&["other.test.example"], &["198.51.100.11", "2001:db8::11"]),
    (&["real.elsewhere.example"], &["198.51.100.12"]),
    (&["wild.example", "*.wild.example"], &["198.51.100.13"]),
    // Two that share an address, as customers of one provider do.
    (&["good.cdn.example"], &["198.51.100.20"]),
    (&["bad.cdn.example"], &["198.51.100.20"]),
    (&["git.test.example"], &["198.51.100.21"]),
    (&["pypi.test.example"], &["198.51.100.22"]),
    (&["apt.test.example"], &["198.51.100.23"]),
];

/// Sites whose every packet is seen.
pub(super) const WATCHED_SITES: [(&[&str], &[&str]); 2] = [
    (&["evil.bad.example"], &["198.51.100.66", "2001:db8:66::66"]),
    // Where the lab itself asks, to know that the log is complete.
    (&["fence.bad.example"], &["198.51.100.67"]),
];

/// A request that a site answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The `Host` header.
    pub host: String,
    /// The name asked for in TLS' hello; `None` without TLS, `Some("")` without a name.
    pub sni: Option<String>,
    /// The path.
    pub path: String,
    /// The server's address.
    pub address: String,
    /// `HTTP/1.1` and so on.
    pub version: String,
}

/// The sites' log.
pub struct Web {
    dir: PathBuf,
    fences: AtomicUsize,
}

impl Web {
    pub(super) fn new(dir: &Path) -> Self {
        write(&dir.join("access.log"), "");
        let bulk: Vec<u8> = (0..8_u32 << 20).map(|at| (at % 251) as u8).collect();
        std::fs::create_dir_all(dir.join("www")).expect("a directory");
        std::fs::write(dir.join("www/bulk"), bulk).expect("a file");
        Self {
            dir: dir.to_owned(),
            fences: AtomicUsize::new(0),
        }
    }

    /// The requests so far, all that were answered before the call among them.
    pub fn requests(&self) -> Vec<Request> {
        for address in ["198.51.100.10", "198.51.100.67"] {
            self.await_logged(address);
        }
        let log = std::fs::read_to_string(self.dir.join("access.log")).expect("a log");
        let requests = log.lines().map(parse);
        requests
            .filter(|request| !request.path.starts_with(FENCE))
            .collect()
    }

    /// Those for this host, by header or by TLS' hello.
    pub fn requests_for(&self, host: &str) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| request.host == host || request.sni.as_deref() == Some(host));
        requests
    }

    /// SHA-256 of the file at `/bulk`, in hexadecimal.
    pub fn bulk_sha256(&self) -> String {
        let said = run(Command::new("sha256sum").arg(self.dir.join("www/bulk")));
        said.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Each nginx has one process, which logs in the order in which it answers.
    fn await_logged(&self, address: &str) {
        let count = self.fences.fetch_add(1, Ordering::Relaxed);
        let path = format!("{FENCE}{count}");
        let mut stream = TcpStream::connect((address, 80)).expect("the site is up");
        let request = format!("GET {path} HTTP/1.0\r\nhost: fence\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        drop(stream.read_to_end(&mut Vec::new()));
        let deadline = Instant::now() + LOG_TIMEOUT;
        let path = format!("\t{path}\t");
        while !std::fs::read_to_string(self.dir.join("access.log"))
            .is_ok_and(|log| log.contains(&path))
        {
            assert!(Instant::now() < deadline, "nginx does not log");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn serve(
        &self,
        machine: &Machine,
        name: &str,
        sites: &[(&[&str], &[&str])],
        authority: &Authority,
    ) -> Server {
        let config = self.dir.join(format!("{name}.conf"));
        write(&config, &self.config(name, sites, authority));
        let log = self.dir.join(format!("{name}.log"));
        let arguments = [
            "-c".as_ref(),
            config.as_os_str(),
            "-e".as_ref(),
            log.as_os_str(),
            "-p".as_ref(),
            self.dir.as_os_str(),
        ];
        let listens = socket(sites[0].1[0], 443);
        Server::start(machine, &log, "nginx", arguments, listens)
    }

    pub(super) fn print_log(&self) {
        let log = self.dir.join("access.log");
        eprintln!("--- {}\n{}", log.display(), tail(&log));
    }

    fn config(&self, name: &str, sites: &[(&[&str], &[&str])], authority: &Authority) -> String {
        let dir = self.dir.display();
        let servers: String = sites
            .iter()
            .map(|(names, addresses)| self.server(names, addresses))
            .collect();
        // One process, which no signal of its master's is needed to end.
        format!(
            "daemon off; master_process off; user root; pid {dir}/{name}.pid;
             error_log stderr info;
             events {{ worker_connections 2048; }}
             http {{
               log_format told '$http_host\\t$https\\t$ssl_server_name\\t$uri\\t$server_addr\\t$server_protocol';
               access_log {dir}/access.log told;
               client_body_temp_path {dir}/{name}-body; proxy_temp_path {dir}/{name}-proxy;
               fastcgi_temp_path {dir}/{name}-fastcgi; uwsgi_temp_path {dir}/{name}-uwsgi;
               scgi_temp_path {dir}/{name}-scgi;
               server_names_hash_bucket_size 128;
               default_type application/octet-stream;
               types {{ text/html html; application/json json; }}
               ssl_certificate {site}; ssl_certificate_key {key};
               {servers}
             }}
            ",
            site = authority.site().display(),
            key = authority.site_key().display(),
        )
    }

    fn server(&self, names: &[&str], addresses: &[&str]) -> String {
        let listen: String = addresses
            .iter()
            .map(|address| match address.contains(':') {
                true => format!("listen [{address}]:80; listen [{address}]:443 ssl http2; "),
                false => format!("listen {address}:80; listen {address}:443 ssl http2; "),
            })
            .collect();
        let root = names[0].split('.').next().unwrap_or_default();
        format!(
            "server {{ {listen} server_name {names};
               root {dir}/www/{root};
               location = / {{ return 200 \"hello from {first}\\n\"; }}
               location = /bulk {{ root {dir}/www; }}
               location {FENCE} {{ return 204; }}
               location = /echo {{
                 proxy_pass http://{WEBSOCKET}; proxy_http_version 1.1;
                 proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
               }}
             }}
             ",
            names = names.join(" "),
            first = names[0],
            dir = self.dir.display(),
        )
    }
}

fn parse(line: &str) -> Request {
    let mut fields = line.split('\t').map(|field| match field {
        "-" => String::new(),
        field => field.to_owned(),
    });
    let mut next = || fields.next().unwrap_or_default();
    let (host, https, name) = (next(), next(), next());
    Request {
        host,
        sni: (https == "on").then_some(name),
        path: next(),
        address: next(),
        version: next(),
    }
}

/// The addresses of sites, once each.
pub(super) fn addresses(sites: &'static [(&[&str], &[&str])]) -> Vec<&'static str> {
    let mut addresses: Vec<&str> = sites
        .iter()
        .flat_map(|site| site.1.iter().copied())
        .collect();
    addresses.dedup();
    addresses
}

/// All names of sites.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let sites = SITES.iter().chain(&WATCHED_SITES);
    sites.flat_map(|site| site.0.iter().copied())
}

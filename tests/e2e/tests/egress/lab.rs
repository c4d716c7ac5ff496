//! The lab of the egress tests, without a guest: what they say about guests means nothing
//! unless everything answers a client of the host's.

use pando_testkit::Lab;
use pando_testkit::lab::{
    ECHO_ADDRESSES, ECHO_PORT, FORBIDDEN, FORBIDDEN_ALIASES, FORBIDDEN_PORTS, HOST,
    OTHER_ECHO_PORT, UNREACHABLE,
};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Runs a shell line on the host and gives its stdout.
fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{line}`: {said}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

fn echoes(at: SocketAddr) {
    let mut tcp = TcpStream::connect_timeout(&at, TIMEOUT).unwrap();
    tcp.write_all(b"tcp").unwrap();
    let mut answer = [0; 3];
    tcp.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"tcp");
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let udp = UdpSocket::bind(any).unwrap();
    udp.set_read_timeout(Some(TIMEOUT)).unwrap();
    udp.send_to(b"udp", at).unwrap();
    assert_eq!(udp.recv(&mut answer).unwrap(), 3);
}

#[test]
fn everything_answers_a_client_of_the_hosts_and_nothing_is_seen_that_was_not_done() {
    let lab = Lab::new();
    assert_eq!(lab.trespasses(), Vec::<String>::new());
    for address in ECHO_ADDRESSES {
        echoes(socket(address, ECHO_PORT));
        echoes(socket(address, OTHER_ECHO_PORT));
    }
    assert_eq!(lab.echo.accepted(), 2 * ECHO_ADDRESSES.len());
    lab.echo.await_open(0);
    assert_eq!(lab.echo.datagrams().len(), 2 * ECHO_ADDRESSES.len());
    let refused = TcpStream::connect(socket(ECHO_ADDRESSES[0], 9)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let unreachable = TcpStream::connect(socket(UNREACHABLE, 9)).unwrap_err();
    assert_eq!(unreachable.kind(), ErrorKind::HostUnreachable);
    sites_answer(&lab);
    names_answer(&lab);
    tools_answer(&lab);
    assert_eq!(lab.trespasses(), Vec::<String>::new());
}

fn sites_answer(lab: &Lab) {
    let authority = lab.authority();
    let curl = format!("curl -sS --max-time 20 --cacert {}", authority.display());
    let fetch = |url: &str, address: &str| {
        let host = url.split('/').nth(2).unwrap();
        sh(&format!(
            "{curl} --resolve '{host}:80:{address}' --resolve '{host}:443:{address}' {url}"
        ))
    };
    let hello = "hello from allowed.test.example";
    for url in [
        "http://allowed.test.example/",
        "https://allowed.test.example/",
    ] {
        assert_eq!(fetch(url, "198.51.100.10"), hello);
        assert_eq!(fetch(url, "[2001:db8::10]"), hello);
    }
    for (host, address) in [
        ("good.cdn.example", "198.51.100.20"),
        ("bad.cdn.example", "198.51.100.20"),
        ("evil.bad.example", "198.51.100.66"),
    ] {
        let url = format!("https://{host}/");
        assert_eq!(fetch(&url, address), format!("hello from {host}"));
        assert_eq!(lab.web.requests_for(host).len(), 1, "{host}");
    }
    let requests = lab.web.requests_for("allowed.test.example");
    let told: Vec<_> = requests
        .iter()
        .map(|request| (request.sni.as_deref(), request.address.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (None, "198.51.100.10"),
            (None, "2001:db8::10"),
            (Some("allowed.test.example"), "198.51.100.10"),
            (Some("allowed.test.example"), "2001:db8::10"),
        ]
    );
    assert!(!lab.packets_to("198.51.100.66".parse().unwrap()).is_empty());
}

fn names_answer(lab: &Lab) {
    // The lab's own question is not counted, and is answered.
    assert_eq!(lab.names.queries(), Vec::<String>::new());
}

fn tools_answer(lab: &Lab) {
    let at = tempfile::tempdir().unwrap();
    let at = at.path().display();
    sh(&format!(
        "git clone -q git://198.51.100.21/hello.git {at}/a"
    ));
    assert_eq!(sh(&format!("cat {at}/a/greeting")), "hello from git");
    let authority = lab.authority();
    sh(&format!(
        "GIT_SSL_CAINFO={} git -c http.curloptResolve=git.test.example:443:198.51.100.21 \
         clone -q https://git.test.example/hello.git {at}/b",
        authority.display()
    ));
    assert_eq!(sh(&format!("cat {at}/b/greeting")), "hello from git");
    let key = lab.ssh_key();
    assert_eq!(
        sh(&format!(
            "ssh -F none -i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             root@198.51.100.27 2>/dev/null",
            key.display()
        )),
        "welcome"
    );
    let measured = sh("iperf3 --client 198.51.100.26 --bytes 1M");
    assert!(measured.contains("receiver"), "{measured}");
    for (url, address) in [
        ("http://pypi.test.example/simple/hello/", "198.51.100.22"),
        (
            "http://pypi.test.example/files/hello-1-py3-none-any.whl",
            "198.51.100.22",
        ),
        ("http://apt.test.example/Packages", "198.51.100.23"),
        ("http://apt.test.example/hello-pando.deb", "198.51.100.23"),
    ] {
        let host = url.split('/').nth(2).unwrap();
        sh(&format!(
            "curl -sSf --max-time 20 --resolve {host}:80:{address} -o /dev/null {url}"
        ));
    }
}

#[test]
fn whoever_reaches_a_forbidden_address_is_seen() {
    let lab = Lab::new();
    for (address, range) in FORBIDDEN {
        for port in FORBIDDEN_PORTS {
            let reached = TcpStream::connect_timeout(&reachable(address, port), TIMEOUT);
            assert!(reached.is_ok(), "{range}, {address}:{port}: {reached:?}");
        }
        let packets = lab.packets_to(address.parse().unwrap());
        for port in FORBIDDEN_PORTS {
            assert!(
                packets
                    .iter()
                    .any(|packet| packet.protocol == 6 && packet.port == port),
                "{range}, {address}:{port}: {packets:?}"
            );
        }
    }
    let seen = lab.trespasses();
    assert!(seen.len() >= FORBIDDEN.len() * FORBIDDEN_PORTS.len());
    lab.forget_trespasses();
    assert_eq!(lab.trespasses(), Vec::<String>::new());

    for address in HOST.into_iter().chain(["127.0.0.1", "::1"]) {
        TcpStream::connect_timeout(&socket(address, 8080), TIMEOUT).unwrap();
        let seen = lab.trespasses();
        assert_eq!(seen.len(), 1, "{address}: {seen:?}");
        lab.forget_trespasses();
    }
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    udp.send_to(b"hello", ("239.1.2.3", 5000)).unwrap();
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    assert!(FORBIDDEN_ALIASES.contains(&"239.1.2.3"));
    assert_eq!(lab.packets_to(group).len(), 1);
}

/// As the host reaches it: a link-local address needs the link.
fn reachable(address: &str, port: u16) -> SocketAddr {
    use std::net::ToSocketAddrs as _;
    let text = match address.starts_with("fe80") {
        true => format!("{address}%office"),
        false => address.to_owned(),
    };
    (text, port).to_socket_addrs().unwrap().next().unwrap()
}

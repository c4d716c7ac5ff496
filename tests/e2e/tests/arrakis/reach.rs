//! Who reaches whom: guests, their neighbours, the host, and the API that made them.

use super::{keyless, limited, owner, run, start};
use pando_testkit::{Api, Footprint, World};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Serves the guest's name on the port, and waits until it does.
const SERVE: &str = "mkdir -p /srv/www && hostname > /srv/www/index.html; \
    (cd /srv/www && exec python3 -m http.server 5736) >/dev/null 2>&1 & \
    until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 5736))' 2>/dev/null; \
    do sleep 0.05; done";

/// Says of each address whether it can be connected to; all are tried at once.
const TRY: &str = r#"
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def attempt(target):
    host, port = target.split(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except Exception as error:
        return f"{target} {type(error).__name__}"
    return f"{target} answered"
with ThreadPoolExecutor(16) as pool:
    print(*pool.map(attempt, sys.argv[1:]), sep="\n")
"#;

/// The port of the host that leads to this one of a VM.
fn host_port(vm: &Value, guest_port: &str) -> u16 {
    let forwards = vm["portForwards"].as_array().unwrap();
    let one = forwards.iter().find(|one| one["guestPort"] == guest_port);
    let one = one.unwrap_or_else(|| panic!("no {guest_port}: {vm}"));
    one["hostPort"].as_str().unwrap().parse().unwrap()
}

/// What is served there.
fn page(port: u16) -> String {
    let page = Api::new(format!("http://127.0.0.1:{port}"), None).get("/");
    assert_eq!(page.status, 200, "{}", page.text);
    page.text.trim().to_owned()
}

/// An address of this host on a network, where it has one. Nothing is sent.
fn own_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then(|| address.to_string())
}

#[test]
fn each_port_leads_into_its_vm_and_no_guest_to_the_api_or_its_neighbours() {
    let world = World::start();
    let vms = ["one", "two"].map(|name| start(&world, name));
    for (vm, name) in vms.iter().zip(["one", "two"]) {
        run(&world, name, SERVE);
        let served = page(host_port(vm, "5736"));
        assert_eq!(served, run(&world, name, "hostname"), "{name}");
    }
    // From the host all of this answers; from a guest none of it.
    let api: SocketAddr = world.url().replace("http://", "").parse().unwrap();
    let neighbour = host_port(&vms[1], "5736");
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let open = everywhere.local_addr().unwrap().port();
    for port in [api.port(), neighbour, open] {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok(), "{port}");
    }
    let mut hosts = vec!["10.0.2.2".to_owned(), "127.0.0.1".to_owned()];
    hosts.extend(own_address());
    let mut targets: Vec<String> = hosts
        .iter()
        .flat_map(|host| [api.port(), neighbour, open].map(|port| format!("{host}:{port}")))
        .collect();
    targets.extend(["169.254.169.254:80", "10.20.1.1:7000", "10.0.2.16:5736"].map(str::to_owned));
    let said = run(
        &world,
        "one",
        &format!("python3 -c '{TRY}' {}", targets.join(" ")),
    );
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said.len(), targets.len(), "{said:?}");
    for (target, said) in targets.iter().zip(said) {
        assert!(said.starts_with(target) && said.contains("Error"), "{said}");
    }
}

#[test]
fn a_vm_is_jailed_and_the_host_is_left_as_it_was() {
    let interfaces = || {
        let entries = std::fs::read_dir("/sys/class/net").unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let routes = std::fs::read_to_string("/proc/net/route").unwrap();
        (names, routes)
    };
    let before = interfaces();
    let world = World::start();
    start(&world, "one");
    assert_eq!(interfaces(), before);
    let id = run(&world, "one", "hostname");
    // What was made without a key is as isolated as what was made with one.
    let owner = owner(&world);
    let theirs = owner.get(&format!("/v1/sandboxes/{id}")).json();
    let ours = world.inspect(&world.create());
    let layers = |sandbox: &Value| -> Vec<Value> {
        let layers = sandbox["isolation"]["layers"].as_array().unwrap().iter();
        // The account is each sandbox's own.
        let account = |layer: &&Value| layer.as_str().unwrap().starts_with("account ");
        layers.filter(|layer| !account(layer)).cloned().collect()
    };
    assert_eq!(layers(&theirs), layers(&ours));
    assert!(layers(&theirs).contains(&json!("seccomp")), "{theirs}");
    let vmm = world.vmm_pid(&id);
    let status = std::fs::read_to_string(format!("/proc/{vmm}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_ne!(field("Uid:"), "0", "{status}");
    assert_eq!(field("Seccomp:"), "2", "{status}");
    assert_eq!(field("NoNewPrivs:"), "1", "{status}");
}

#[test]
fn one_too_many_is_refused_and_nothing_is_left_of_it() {
    let world = limited("PANDO_MAX_SANDBOXES", "1");
    start(&world, "one");
    let before = Footprint::of(&world);
    let refused = keyless(&world).post("/v1/vms", &json!({ "vmName": "two" }));
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(Footprint::of(&world), before);
    assert_eq!(run(&world, "one", "echo lives"), "lives");
    // The limit is of the door's tenant: others have their own.
    world.create();
}

#[test]
fn a_port_that_another_program_has_is_left_to_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let range = format!("{port}-{}", port.saturating_add(40));
    let world = limited("PANDO_PORT_RANGE", &range);
    let vm = start(&world, "one");
    let forwards = vm["portForwards"].as_array().unwrap();
    assert_eq!(forwards.len(), 5, "{vm}");
    let theirs = json!(port.to_string());
    assert!(forwards.iter().all(|one| one["hostPort"] != theirs), "{vm}");
    // Who connects there finds the program that has it.
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"x").unwrap();
    let (mut server, _) = taken.accept().unwrap();
    let mut byte = [0];
    server.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
}

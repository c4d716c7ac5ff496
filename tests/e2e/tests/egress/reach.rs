//! Without a policy everything of the world is reached, by the clients that people use.

use crate::stage::{Outcome, Stage};
use pando_testkit::lab::UNREACHABLE;
use serde_json::{Value, json};

/// Fetches, and WebSockets.
const WEB: &str = include_str!("../../guest/web.js");

#[test]
fn curl_git_ssh_datagrams_and_pings_work_unchanged() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    for url in [
        "http://allowed.test.example/",
        "https://allowed.test.example/",
    ] {
        guest.greeted_by("allowed.test.example", &format!("-4 {url}"));
        guest.greeted_by("allowed.test.example", &format!("-6 {url}"));
    }
    let bulk = "https://other.test.example/bulk";
    guest.sh(&format!("curl -sS --max-time 60 -o /tmp/bulk {bulk}"));
    assert_eq!(
        guest.sh("sha256sum < /tmp/bulk | cut -d ' ' -f 1"),
        stage.lab.web.bulk_sha256()
    );
    guest.sh("git clone -q git://git.test.example/hello.git /tmp/a");
    guest.sh("git clone -q https://git.test.example/hello.git /tmp/b");
    assert_eq!(
        guest.sh("cat /tmp/a/greeting /tmp/b/greeting"),
        "hello from git\nhello from git"
    );
    guest.put("/tmp/key", &std::fs::read(stage.lab.ssh_key()).unwrap());
    let ssh = "ssh -i /tmp/key -o StrictHostKeyChecking=accept-new root@ssh.test.example";
    assert_eq!(guest.sh(&format!("chmod 600 /tmp/key && {ssh}")), "welcome");

    for address in ["203.0.113.5", "2001:db8::30"] {
        let outcomes = guest.tries(&json!([
            ["say", address, 7, "by TCP"],
            ["udp", address, 7, "by UDP"],
            ["ping", address],
        ]));
        outcomes[0].said("by TCP");
        outcomes[1].said("by UDP");
        let reply = if address.contains(':') {
            "type 129, pando"
        } else {
            "type 0, pando"
        };
        outcomes[2].said(reply);
    }
    let seen = stage.lab.names.queries();
    assert!(
        seen.contains(&"A allowed.test.example".to_owned()),
        "{seen:?}"
    );
    errors_of_the_world_come_through(&guest.tries(&json!([
        ["tcp", "203.0.113.5", 9],
        ["tcp", "2001:db8::30", 9],
        ["udp", "203.0.113.5", 9],
        ["tcp", UNREACHABLE, 80],
    ])));
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

/// Programs try the next address, or wait for a server, by what they are told.
fn errors_of_the_world_come_through(outcomes: &[Outcome]) {
    for closed in &outcomes[..3] {
        assert_eq!(closed.error(), "ECONNREFUSED", "{closed:?}");
        assert!(closed.ms() < 2000.0, "{closed:?}");
    }
    let unreachable = &outcomes[3];
    assert!(
        !unreachable.is_good() && unreachable.ms() < 2000.0,
        "{unreachable:?}"
    );
}

#[test]
fn a_transfer_is_as_fast_as_a_sandbox_may_be() {
    let stage = Stage::with(&[("PANDO_NET_MIB_S", "2")]);
    let guest = stage.guest(&Value::Null);
    // 8 MiB: four seconds at 2 MiB a second, less what may come at once.
    let took = guest.sh(
        "curl -sS --max-time 60 -o /dev/null -w '%{time_total}' http://other.test.example/bulk",
    );
    let took: f64 = took.parse().unwrap();
    assert!((3.5..8.0).contains(&took), "{took} s");
}

#[test]
fn pip_and_apt_install_from_their_archives() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    guest.sh("pip install -q --index-url https://pypi.test.example/simple/ hello");
    assert_eq!(
        guest.sh("python3 -c 'import hello; hello.main()'"),
        "hello from the index"
    );
    guest.sh("sudo rm -f /etc/apt/sources.list.d/* && \
         echo 'deb [trusted=yes] http://apt.test.example/ ./' | \
         sudo tee /etc/apt/sources.list.d/test.list && \
         sudo apt-get -q update && sudo apt-get -q install -y hello-pando");
    assert_eq!(guest.sh("cat /usr/share/hello-pando"), "hello from apt");
    assert_eq!(stage.lab.trespasses(), Vec::<String>::new());
}

#[test]
fn node_fetches_and_speaks_websocket_and_iperf3_measures_both_ways() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    guest.put("/tmp/web.js", WEB.as_bytes());
    let node = guest.take("node");
    assert_eq!(
        guest.sh(&format!(
            "NODE_EXTRA_CA_CERTS=/tmp/authority.crt {node} /tmp/web.js"
        )),
        "hello from allowed.test.example\nhello from allowed.test.example\na word\na word"
    );
    let iperf3 = guest.take("iperf3");
    for way in ["", "--reverse"] {
        let said = guest.sh(&format!(
            "{iperf3} --client iperf.test.example --bytes 48M {way} --json"
        ));
        let measured: Value = serde_json::from_str(&said).unwrap();
        let received = measured["end"]["sum_received"]["bytes"].as_u64().unwrap();
        // The last of it may be on its way when the clock is stopped: some MiB fit into the
        // buffers between.
        assert!(received >= 32 << 20, "{said}");
    }
}

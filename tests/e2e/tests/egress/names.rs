//! Names are resolved by the gateway, of every kind that clients ask for.

use crate::stage::Stage;
use pando_testkit::lab::{BIG, MANY};
use serde_json::{Value, json};

/// The name server in the sandbox.
const GATEWAY: &str = "10.0.2.2";

/// Types of records.
const A: u16 = 1;
const TXT: u16 = 16;
const AAAA: u16 = 28;

/// Longest datagram for a client without extensions.
const DATAGRAM_BYTES: u64 = 512;

#[test]
fn addresses_chains_and_long_answers_are_resolved() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    let outcomes = guest.tries(&json!([
        ["name", "allowed.test.example", 4],
        ["name", "allowed.test.example", 6],
        ["name", "six.test.example", 0],
        ["name", "alias.test.example", 4],
        ["name", "any.depth.wild.example", 4],
        ["name", "many.test.example", 4],
    ]));
    let addresses = |at: usize| outcomes[at].found["addresses"].as_array().unwrap().clone();
    assert_eq!(addresses(0), ["198.51.100.10"]);
    assert_eq!(addresses(1), ["2001:db8::10"]);
    assert_eq!(addresses(2), ["2001:db8::10"]);
    assert_eq!(addresses(3), ["198.51.100.12"]);
    assert_eq!(addresses(4), ["198.51.100.13"]);
    // More than a datagram holds: the resolver had to ask again by TCP.
    assert_eq!(addresses(5).len(), MANY);
    let canonical = guest.sh("getent ahostsv4 alias.test.example | head -n 1");
    assert!(canonical.ends_with("real.elsewhere.example"), "{canonical}");
}

#[test]
fn truncated_answers_are_whole_by_tcp_and_what_is_not_there_is_said_to_be_not_there() {
    let stage = Stage::new();
    let guest = stage.guest(&Value::Null);
    let outcomes = guest.tries(&json!([
        ["dns", GATEWAY, "udp", "big.test.example", TXT],
        ["dns", GATEWAY, "tcp", "big.test.example", TXT],
        ["dns", "fd70:616e:646f::2", "udp", "text.test.example", TXT],
        ["dns", GATEWAY, "udp", "ssh.test.example", AAAA],
        ["dns", GATEWAY, "udp", "nothing.example", A],
        ["name", "nothing.example"],
    ]));
    let [cut, whole, text, empty, nothing, unknown] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(cut.found["truncated"], true, "{cut:?}");
    assert!(
        cut.found["bytes"].as_u64().unwrap() <= DATAGRAM_BYTES,
        "{cut:?}"
    );
    assert_eq!(whole.found["answers"], BIG, "{whole:?}");
    assert_eq!(whole.found["truncated"], false, "{whole:?}");
    assert_eq!(text.found["answers"], 1, "{text:?}");
    assert_eq!(empty.found["answers"], 0, "{empty:?}");
    assert_eq!(empty.found["rcode"], 0, "{empty:?}");
    assert_eq!(nothing.found["rcode"], 3, "{nothing:?}");
    assert_eq!(unknown.error(), "EAI_NONAME", "{unknown:?}");
    for outcome in &outcomes {
        assert!(outcome.ms() < 2000.0, "{outcome:?}");
    }
}

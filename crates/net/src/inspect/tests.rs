use super::tls::tests::{hello, message, records};
use super::*;

/// Pushes the text in pieces; what went out, and how it ended.
fn through(port: u16, pieces: &[&[u8]]) -> (Vec<u8>, Vec<String>, Result<(), String>) {
    let mut inspector = Inspector::new(port);
    let (mut out, mut claims) = (Vec::new(), Vec::new());
    let mut check = |claim: Claim<'_>| {
        claims.push(format!("{claim:?}"));
        match claim {
            Claim::Named("evil.org") | Claim::Nameless(_) => Err("default deny".to_owned()),
            _ => Ok(()),
        }
    };
    for piece in pieces {
        let mut piece = *piece;
        while !piece.is_empty() {
            let count = piece.len().min(inspector.room());
            inspector.push(&piece[..count]);
            piece = &piece[count..];
            if let Err(why) = inspector.advance(&mut check) {
                return (out, claims, Err(why));
            }
            out.extend(inspector.ready());
            let ready = inspector.ready().len();
            inspector.sent(ready);
            assert!(count > 0 || ready > 0, "it takes nothing more");
        }
    }
    (out, claims, Ok(()))
}

fn bytewise(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.chunks(1).collect()
}

#[test]
fn a_hello_goes_out_whole_after_its_name_was_checked() {
    let bytes = [
        &hello(Some("good.org"))[..],
        b"\x14\x03\x03\0\x01\x01\x17\x03\x03\0\x02xy",
        &[0x17; 100],
    ]
    .concat();
    for pieces in [bytewise(&bytes), vec![&bytes[..]]] {
        let (out, claims, end) = through(443, &pieces);
        assert_eq!((out, end), (bytes.clone(), Ok(())));
        assert_eq!(claims, ["Named(\"good.org\")"]);
    }
}

#[test]
fn nothing_of_a_refused_hello_goes_out() {
    for bytes in [hello(Some("evil.org")), hello(None)] {
        let (out, _, end) = through(443, &bytewise(&bytes));
        assert_eq!((out.len(), end.is_err()), (0, true));
    }
}

#[test]
fn a_second_hello_is_checked_too() {
    let good = hello(Some("good.org"));
    let bytes = [
        &good[..],
        b"\x14\x03\x03\0\x01\x01",
        &hello(Some("evil.org")),
    ]
    .concat();
    let (out, _, end) = through(443, &bytewise(&bytes));
    assert_eq!((out.len(), end.is_err()), (good.len() + 6, true));
    let early = records(&message(Some("good.org"), &[0, 42, 0, 0]), 1000);
    let data = b"\x17\x03\x03\0\x03abc";
    let bytes = [&early[..], data, &hello(Some("evil.org"))].concat();
    let (out, _, end) = through(443, &[&bytes]);
    assert_eq!((out.len(), end.is_err()), (0, true));
    let (out, _, end) = through(443, &bytewise(&bytes));
    assert_eq!((out.len(), end.is_err()), (early.len() + data.len(), true));
}

#[test]
fn every_request_is_checked_and_bodies_are_followed() {
    let good = b"POST /1 HTTP/1.1\r\nHost: good.org\r\nContent-Length: 30\r\n\r\nGET / HTTP/1.1\r\nHost: evil.org\
        POST /2 HTTP/1.1\r\nHost: good.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\nA: b\r\n\r\n\
        GET /3 HTTP/1.1\r\nHost: good.org\r\n\r\n";
    let evil = b"GET /4 HTTP/1.1\r\nHost: evil.org\r\n\r\n";
    let bytes = [&good[..], evil].concat();
    for port in [80, 8080] {
        let (out, claims, end) = through(port, &bytewise(&bytes));
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(good));
        assert_eq!((claims.len(), end), (4, Err("default deny".into())));
    }
}

#[test]
fn a_long_body_passes_in_pieces() {
    let mut bytes = b"PUT / HTTP/1.1\r\nHost: good.org\r\nContent-Length: 1000000\r\n\r\n".to_vec();
    bytes.resize(bytes.len() + 1_000_000, b'x');
    bytes.extend(b"GET / HTTP/1.1\r\nHost: good.org\r\n\r\n");
    let (out, claims, end) = through(80, &[&bytes]);
    assert_eq!((out.len(), claims.len(), end), (bytes.len(), 2, Ok(())));
}

#[test]
fn tunnels_are_refused_and_websockets_wait_for_the_server() {
    for text in [
        "CONNECT good.org:443 HTTP/1.1\r\nHost: good.org:443\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.org\r\n\r\nGET / HTTP/1.1\r\nHost: good.org\r\nUpgrade: websocket\r\n\r\n",
    ] {
        assert!(through(8080, &[text.as_bytes()]).2.is_err(), "{text}");
    }
    let ask = |upgrade: &str, answer: &[u8]| {
        let mut inspector = Inspector::new(80);
        let head = format!("GET / HTTP/1.1\r\nHost: good.org\r\nUpgrade: {upgrade}\r\n\r\n");
        inspector.push(head.as_bytes());
        inspector.push(b"more");
        inspector.advance(&mut |_| Ok(())).unwrap();
        assert_eq!(inspector.ready(), head.as_bytes());
        inspector.sent(head.len());
        assert!(inspector.observes());
        for byte in answer.chunks(1) {
            inspector.observe(byte)?;
        }
        inspector.advance(&mut |_| Ok(()))?;
        Ok::<_, String>(inspector.ready().to_vec())
    };
    let switching = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching\r\n\r\n";
    assert_eq!(ask("websocket", switching), Ok(b"more".to_vec()));
    assert!(ask("h2c", switching).is_err());
    assert_eq!(ask("h2c", b"HTTP/1.1 200 OK\r\n\r\n"), Ok(Vec::new()));
}

#[test]
fn other_protocols_are_refused_where_a_name_is_expected() {
    assert_eq!(
        through(443, &[b"SSH-2.0-x\r\n"]).2,
        Err("default deny".into())
    );
    assert_eq!(through(80, &[b"\0\0"]).2, Err("default deny".into()));
    let (out, claims, end) = through(22, &[b"SSH-2.0-", b"x\r\n", b"\0\0"]);
    assert_eq!((out.len(), end), (13, Ok(())));
    assert_eq!(claims, ["Opaque"]);
    assert!(through(22, &[&hello(None)]).2.is_err());
}

#[test]
fn what_never_ends_is_refused() {
    let long = [&b"GET /"[..], &[b'x'; 100_000]].concat();
    assert!(through(8080, &[&long]).2.is_err());
}

#[test]
fn what_no_method_begins_with_goes_out_at_once_where_most_is_allowed() {
    let mut inspector = Inspector::new(7).lenient();
    inspector.push(b"hello");
    let mut claims = Vec::new();
    inspector
        .advance(&mut |claim| {
            claims.push(format!("{claim:?}"));
            Ok(())
        })
        .unwrap();
    assert_eq!(
        (inspector.ready(), &claims[..]),
        (&b"hello"[..], &["Opaque".to_owned()][..])
    );
    let mut strict = Inspector::new(7);
    strict.push(b"hello");
    strict.advance(&mut |_| Ok(())).unwrap();
    assert_eq!(strict.ready(), b"");
}

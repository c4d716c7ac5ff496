//! Servers in sandboxes, reached by HTTP and by TCP from outside.

mod guest;
mod http;
mod tcp;

use bytes::Bytes;
use guest::{Guest, get, host};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pando_testkit::World;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::{self, Message};

/// What the server sends as `/bytes?COUNT`.
fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|index| index as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    format!(
        "{} {}",
        bytes.len(),
        digest
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    )
}

#[test]
fn a_server_on_the_guests_loopback_hears_its_client_and_none_of_our_keys() {
    let guest = Guest::start();
    let key = guest.world.key();
    let heard = guest.heard(&format!(
        "X-API-Key: {key}\r\nAuthorization: Bearer {key}\r\nCookie: a={key}\r\nX-Pando-Host: evil\r\nX-Mine: 1\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
    ));
    let host = guest.host(8080);
    let of = |name: &str| {
        let headers = heard["headers"].as_array().unwrap();
        let found = headers
            .iter()
            .find(|header| header[0].as_str().unwrap().eq_ignore_ascii_case(name));
        found.map(|header| header[1].as_str().unwrap().to_owned())
    };
    assert_eq!(heard["line"], "GET / HTTP/1.1");
    assert_eq!(of("host"), Some(host.clone()));
    assert_eq!(of("x-forwarded-host"), Some(host));
    assert_eq!(of("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(of("x-forwarded-proto").as_deref(), Some("http"));
    assert_eq!(of("x-mine").as_deref(), Some("1"));
    assert!(!heard.to_string().contains(&key), "{heard}");
    assert_eq!((of("x-hop"), of("x-pando-host")), (None, None));

    events_come_as_they_are_sent(&guest);
    bodies_arrive_whole(&guest);
    a_web_socket_goes_both_ways(&guest);
    an_answer_that_breaks_off_is_no_whole_one(&guest);
    trailers_and_grpc_pass(&guest);
    an_answer_that_is_none_is_said_to_be(&guest);
    what_listens_is_listed(&guest);
    closed_paused_and_gone_say_so(guest);
}

/// The first event is here while the server still waits for us.
fn events_come_as_they_are_sent(guest: &Guest) {
    let mut events = guest.connect();
    events.send(format!(
        "GET /events HTTP/1.1\r\nHost: {}\r\n\r\n",
        guest.host(8080)
    ));
    assert_eq!(
        events.head().header("content-type"),
        Some("text/event-stream")
    );
    assert_eq!(events.chunk(), b"data: one\n\n");
    let mut go = guest.connect();
    go.send(format!(
        "POST /go HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
        guest.host(8080)
    ));
    assert_eq!(go.answer().0.status, 200);
    assert_eq!(events.chunk(), b"data: two\n\n");
    assert_eq!(events.chunk(), b"");
}

fn bodies_arrive_whole(guest: &Guest) {
    const BYTES: usize = 64 << 20;
    let body = pattern(BYTES);
    let host = guest.host(8080);
    let mut connection = guest.connect();
    connection.send(format!(
        "GET /bytes?{BYTES} HTTP/1.1\r\nHost: {host}\r\n\r\n"
    ));
    let head = connection.head();
    assert_eq!(head.header("content-length"), Some(&*BYTES.to_string()));
    assert!(connection.read_exact(BYTES) == body, "the download differs");
    // On the same connection: it is kept.
    connection.send(format!(
        "POST /hash HTTP/1.1\r\nHost: {host}\r\nContent-Length: {BYTES}\r\n\r\n"
    ));
    connection.send(&body);
    assert_eq!(connection.answer().1, sha256(&body));
    connection.send(format!("POST /hash HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
    assert_eq!(connection.answer().1, sha256(b"hello"));
}

fn a_web_socket_goes_both_ways(guest: &Guest) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        use futures::{SinkExt as _, StreamExt as _};
        let stream = tokio::net::TcpStream::connect(guest.address())
            .await
            .unwrap();
        let url = format!("ws://{}/socket", guest.host(8080));
        let (mut socket, answer) = tokio_tungstenite::client_async(url, stream).await.unwrap();
        assert_eq!(answer.status(), 101);
        for message in [Message::text("hello"), Message::binary(vec![7; 60_000])] {
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
        assert!(matches!(socket.next().await, Some(Ok(Message::Close(_)))));
        let end = socket.next().await;
        assert!(
            matches!(end, None | Some(Err(tungstenite::Error::ConnectionClosed))),
            "{end:?}"
        );
    });
}

fn an_answer_that_breaks_off_is_no_whole_one(guest: &Guest) {
    let mut connection = guest.connect();
    connection.send(format!(
        "GET /reset HTTP/1.1\r\nHost: {}\r\n\r\n",
        guest.host(8080)
    ));
    let mut answered = Vec::new();
    // However it ends, it ends short of the 1000 bytes or says that nothing came.
    let read = connection.stream.read_to_end(&mut answered);
    let text = String::from_utf8_lossy(&answered);
    let body = text.split("\r\n\r\n").nth(1).unwrap_or_default();
    assert!(
        text.starts_with("HTTP/1.1 502") || body.len() < 1000,
        "{read:?}: {text}"
    );
}

fn trailers_and_grpc_pass(guest: &Guest) {
    let mut connection = guest.connect();
    connection.send(format!(
        "GET /trailers HTTP/1.1\r\nHost: {}\r\nTE: trailers\r\n\r\n",
        guest.host(8080)
    ));
    assert_eq!(connection.head().header("trailer"), Some("X-Sum"));
    assert_eq!(connection.chunk(), b"ok");
    assert_eq!(connection.line(), "0");
    assert_eq!(connection.line().to_ascii_lowercase(), "x-sum: 7");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(guest.address())
            .await
            .unwrap();
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let body = Bytes::from_static(b"\0\0\0\0\x05hello");
        // Twice, since the second goes over the connection that is kept.
        for _ in 0..2 {
            let call = hyper::Request::post(format!("http://{}/a.B/C", guest.host(50051)))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(body.clone()))
                .unwrap();
            let answer = sender.send_request(call).await.unwrap();
            assert_eq!(answer.status(), 200);
            let whole = answer.into_body().collect().await.unwrap();
            assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
            assert_eq!(whole.to_bytes(), body);
        }
        // Another kind of request goes to a server that speaks HTTP/1.1 only.
        let plain = hyper::Request::get(format!("http://{}/", guest.host(8080)))
            .body(Full::new(Bytes::new()))
            .unwrap();
        let answer = sender.send_request(plain).await.unwrap();
        let heard = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(
            String::from_utf8_lossy(&heard).contains(&guest.host(8080)),
            "{heard:?}"
        );
    });
}

fn an_answer_that_is_none_is_said_to_be(guest: &Guest) {
    for path in ["/garbage", "/endless"] {
        let (head, body) = guest.get(8080, path, "");
        let body: Value = serde_json::from_str(&body).unwrap();
        let message = "What listens on the port did not answer in HTTP";
        assert_eq!(
            (head.status, &body["message"]),
            (502, &json!(message)),
            "{path}"
        );
    }
    assert_eq!(guest.heard("")["line"], "GET / HTTP/1.1");
}

fn what_listens_is_listed(guest: &Guest) {
    guest.world.sh(&guest.id, "python3 -m http.server 9000 >/dev/null 2>&1 & until grep -q :2328 /proc/net/tcp; do sleep 0.05; done");
    let list = guest.ports();
    let of = |port: u16| {
        let ports = list["ports"].as_array().unwrap();
        ports
            .iter()
            .find(|found| found["port"] == port)
            .cloned()
            .unwrap_or_default()
    };
    let id = &guest.id;
    let daemon = guest.address();
    let daemon_port = daemon.rsplit(':').next().unwrap();
    let expected = json!({
        "port": 8080, "open": true, "addresses": ["127.0.0.1"], "pid": of(8080)["pid"], "process": "python3",
        "url": format!("http://8080-{id}.localhost:{daemon_port}/"), "raw": null, "access": "public",
    });
    assert_eq!(of(8080), expected);
    let pid = of(8080)["pid"].as_u64().unwrap();
    assert_eq!(
        guest
            .world
            .sh(id, &format!("tr '\\0' ' ' < /proc/{pid}/cmdline")),
        "python3 server.py "
    );
    assert_eq!(of(9000)["addresses"], json!(["0.0.0.0"]));
    assert_eq!(
        list["url_template"],
        format!("http://{{port}}-{id}.localhost:{daemon_port}/")
    );
    assert_eq!(
        guest.world.inspect(id)["url_template"],
        list["url_template"]
    );
    let quiet = guest.world.ok(["port", "-q", id]);
    assert_eq!(
        quiet.lines().collect::<Vec<_>>(),
        ["5901", "8080", "9000", "50051"]
    );
    let table = guest.world.ok(["port", id]);
    let row: Vec<_> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(
        (row[0], row[1], row[3]),
        ("8080", "python3", "127.0.0.1"),
        "{table}"
    );
    let json: Value = serde_json::from_str(&guest.world.ok(["port", "--json", id])).unwrap();
    assert_eq!(json, list);
}

fn closed_paused_and_gone_say_so(guest: Guest) {
    let Guest { world, id } = guest;
    let answer = |port: u16| {
        let (head, body) = get(&world, &host(&id, port), "/", "");
        (head.status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let page = |port: u16| get(&world, &host(&id, port), "/", "Accept: text/html,*/*\r\n");
    let closed = json!({ "sandboxId": id, "message": "The sandbox is running but port is not open", "port": 81, "code": 502, "state": "running" });
    assert_eq!(answer(81), (502, closed));
    let (head, text) = page(81);
    assert_eq!(
        head.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(
        head.status == 502 && text.contains(&id) && text.contains("http.server 81"),
        "{text}"
    );

    let not_found = |state: &str| json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502, "state": state });
    world.ok(["pause", &id]);
    assert_eq!(answer(8080), (502, not_found("paused")));
    assert!(page(8080).1.contains(&format!("pando resume {id}")));
    world.ok(["resume", &id]);
    let (head, _) = get(&world, &host(&id, 8080), "/", "");
    assert_eq!(head.status, 200, "the address is the same after a resume");
    world.ok(["stop", &id]);
    assert_eq!(answer(8080), (502, not_found("stopped")));
    world.ok(["rm", &id]);
    assert_eq!(answer(8080), (502, not_found("unknown")));
}

#[test]
fn a_port_with_a_token_lets_in_who_has_it() {
    let guest = Guest::start();
    let (url, id) = (
        guest
            .world
            .ok(["port", &guest.id, "8080", "--access", "token"]),
        &guest.id,
    );
    assert!(
        url.starts_with(&format!("http://8080-{id}.localhost:")),
        "{url}"
    );
    let token = guest.world.ok(["port", "--token", id]);
    let status = |headers: &str| guest.get(8080, "/", headers).0.status;
    let (head, body) = guest.get(8080, "/", "");
    assert_eq!(head.status, 403);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["sandboxId"], &body["code"]),
        (&json!(id), &json!(403))
    );
    let (_, page) = guest.get(8080, "/", "Accept: text/html\r\n");
    assert!(page.contains("pando_token"), "{page}");
    assert_eq!(status("E2b-Traffic-Access-Token: 0000\r\n"), 403);
    assert_eq!(
        status(&format!("E2b-Traffic-Access-Token: {token}\r\n")),
        200
    );
    assert_eq!(
        status(&format!("X-API-Key: {}\r\n", guest.world.key())),
        200
    );
    assert_eq!(
        status("X-API-Key: pando_0000000000000000000000000000000000000000\r\n"),
        403
    );

    // As a browser does it.
    let (head, _) = guest.get(8080, &format!("/a?b=1&pando_token={token}"), "");
    assert_eq!(
        (head.status, head.header("location")),
        (303, Some("/a?b=1"))
    );
    let cookie = head.header("set-cookie").unwrap();
    assert!(cookie.contains("; HttpOnly"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let heard = guest.heard(&format!(
        "Cookie: mine=1; {cookie}\r\nX-Pando-Port-Token: {token}\r\n"
    ));
    assert!(
        !heard.to_string().contains(&token) && heard.to_string().contains("mine=1"),
        "{heard}"
    );
    let (head, _) = guest.get(8080, "/?pando_token=0000", "");
    assert_eq!(head.status, 403);

    // Of this sandbox and this port alone.
    let other = guest.world.create();
    guest.world.ok(["port", &other, "81", "--access", "token"]);
    let (head, _) = get(
        &guest.world,
        &host(&other, 81),
        "/",
        &format!("X-Pando-Port-Token: {token}\r\n"),
    );
    assert_eq!(head.status, 403);
    assert_eq!(guest.get(81, "/", "").0.status, 502);
    guest.world.ok(["port", "--rm", id, "8080"]);
    assert_eq!(status(""), 200);
}

#[test]
fn no_request_gets_into_a_sandbox_that_its_host_does_not_name() {
    let guest = Guest::start();
    let (ours, secret) = (guest.host(8080), guest.id.clone());
    let other = guest.world.create();
    let target = host(&other, 8080);
    let fine = format!("GET /smuggled HTTP/1.1\r\nHost: {ours}\r\n\r\n");
    let length = fine.len();
    let attempts = [
        format!(
            "POST / HTTP/1.1\r\nHost: {target}\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        format!(
            "POST / HTTP/1.1\r\nHost: {target}\r\nContent-Length: 0\r\nContent-Length: {length}\r\n\r\n{fine}"
        ),
        format!(
            "POST / HTTP/1.1\r\nHost: {target}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{fine}"
        ),
        format!("GET / HTTP/1.1\r\nHost: {target}\r\nHost: {ours}\r\n\r\n"),
        format!("GET http://{ours}/ HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {target}\r\nX-A: b\rHost: {ours}\r\n\r\n"),
        format!(
            "GET / HTTP/1.1\r\nHost: {target}\r\nX-Pando-Host: {ours}\r\nE2b-Sandbox-Id: {secret}\r\nE2b-Sandbox-Port: 8080\r\n\r\n"
        ),
        format!("GET /port/8080/ HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        format!("GET /../../tcp/8080 HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        format!("CONNECT {ours} HTTP/1.1\r\nHost: {ours}\r\n\r\n"),
    ];
    let before = served(&guest);
    for attempt in &attempts {
        let mut connection = guest.connect();
        connection.send(attempt);
        connection
            .stream
            .shutdown(std::net::Shutdown::Write)
            .unwrap();
        let answer = connection.rest().unwrap_or_default();
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("HTTP/1.1 200"), "{attempt}\n{answer}");
    }
    assert_eq!(
        served(&guest),
        before,
        "no attempt got to the other sandbox"
    );
    // The server itself sees one request for what is one.
    let heard = guest.heard("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n");
    assert!(!heard.to_string().contains("ontent-Length"), "{heard}");
}

/// The requests that the server in the guest has heard so far.
fn served(guest: &Guest) -> String {
    guest.get(8080, "/served", "").1
}

#[test]
fn a_bulk_transfer_delays_no_exec_and_a_reader_that_stops_fills_no_memory() {
    let guest = Guest::start();
    let calm = exec_time(&guest);
    let mut bulk = guest.connect();
    bulk.send(format!(
        "GET /bytes?{} HTTP/1.1\r\nHost: {}\r\n\r\n",
        4u64 << 30,
        guest.host(8080)
    ));
    let mut bulk = bulk.stream;
    let moved = Arc::new(AtomicUsize::new(0));
    let (under_way, is_under_way) = std::sync::mpsc::channel();
    let reader = std::thread::spawn({
        let (mut stream, moved) = (bulk.try_clone().unwrap(), Arc::clone(&moved));
        move || {
            let mut buffer = vec![0; 1 << 20];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let before = moved.fetch_add(count, Ordering::Relaxed);
                if before < 8 << 20 && before + count >= 8 << 20 {
                    under_way.send(()).unwrap();
                }
            }
        }
    });
    is_under_way.recv().unwrap();
    let before = moved.load(Ordering::Relaxed);
    let busy = exec_time(&guest);
    let meanwhile = moved.load(Ordering::Relaxed) - before;
    bulk.shutdown(std::net::Shutdown::Both).unwrap();
    reader.join().unwrap();
    assert!(meanwhile > 1 << 20, "{meanwhile} bytes moved meanwhile");
    assert!(
        busy < calm + Duration::from_millis(50),
        "{calm:?} without, {busy:?} with"
    );
    bulk.flush().unwrap();

    let (daemon, shim) = (guest.world.daemon_pid(), guest.world.shim_pid(&guest.id));
    let before = (resident_kib(daemon), resident_kib(shim));
    let stopped: Vec<_> = (0..4)
        .map(|_| {
            let mut connection = guest.connect();
            connection.send(format!(
                "GET /bytes?{} HTTP/1.1\r\nHost: {}\r\n\r\n",
                1u64 << 30,
                guest.host(8080)
            ));
            assert_eq!(connection.head().status, 200);
            connection
        })
        .collect();
    // Until nothing moves any more: all that can be on its way is.
    guest.world.sh(&guest.id, "while a=$(awk '{s+=$2} END {print s}' /proc/$(pgrep -f server.py | head -1)/io); sleep 0.3; b=$(awk '{s+=$2} END {print s}' /proc/$(pgrep -f server.py | head -1)/io); [ $a != $b ]; do :; done");
    let after = (resident_kib(daemon), resident_kib(shim));
    assert!(
        after.0 < before.0 + (8 << 10),
        "the daemon: {before:?} KiB, {after:?} KiB"
    );
    assert!(
        after.1 < before.1 + (8 << 10),
        "the shim: {before:?} KiB, {after:?} KiB"
    );
    assert_eq!(
        guest.heard("")["line"],
        "GET / HTTP/1.1",
        "others are served"
    );
    drop(stopped);
}

/// The median of an exec's time.
fn exec_time(guest: &Guest) -> Duration {
    let mut times: Vec<_> = (0..9)
        .map(|_| {
            let begun = Instant::now();
            guest.world.sh(&guest.id, "true");
            begun.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_public_address_is_in_every_url_and_its_hosts_are_ours() {
    let guest = Guest::with(&[("PANDO_PUBLIC_URL", "https://*.sandboxes.example.com")]);
    let (world, id): (&World, _) = (&guest.world, &guest.id);
    let list = guest.ports();
    assert_eq!(
        list["url_template"],
        format!("https://{{port}}-{id}.sandboxes.example.com/")
    );
    let named = format!("8080-{id}.sandboxes.example.com");
    assert_eq!(
        get(world, &named, "/", "").0.status,
        403,
        "a token is asked for when others can come"
    );
    let token = format!(
        "X-Pando-Port-Token: {}\r\n",
        list["token"].as_str().unwrap()
    );
    let (head, heard) = get(world, &named, "/", &token);
    assert_eq!(head.status, 200);
    assert!(
        heard.contains("\"https\"") && heard.contains(&named),
        "{heard}"
    );
    assert_eq!(
        get(world, "sandboxes.example.com", "/healthz", "").0.status,
        200
    );
    assert_eq!(get(world, "evil.example.com", "/healthz", "").0.status, 421);
}

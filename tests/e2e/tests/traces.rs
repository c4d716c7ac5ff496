//! Traces, told to a collector of the test's own that speaks OTLP over HTTP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use pando_testkit::{Answer, Options, World};
use prost::Message as _;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long spans may be on their way: they are sent ten times a second.
const ON_THE_WAY: Duration = Duration::from_secs(20);

/// A caller's trace and its span.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Takes traces and keeps them.
struct Collector {
    address: SocketAddr,
    kept: Arc<Kept>,
}

#[derive(Default)]
struct Kept {
    spans: Mutex<Vec<Span>>,
    more: Condvar,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::new(Kept::default());
        let keeps = Arc::clone(&kept);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let keeps = Arc::clone(&keeps);
                std::thread::spawn(move || serve(stream, &keeps));
            }
        });
        Self { address, kept }
    }

    /// A daemon that sends its traces here.
    fn world(&self) -> World {
        World::with(Options {
            env: traced(&format!("http://{}", self.address)),
            ..Options::default()
        })
    }

    /// The spans of a trace, once all of these names are among them.
    fn await_spans(&self, trace: &str, names: &[&str]) -> Spans {
        let deadline = Instant::now() + ON_THE_WAY;
        let mut spans = self.kept.spans.lock().unwrap();
        loop {
            let found = Spans::of_trace(&spans, trace);
            let missing = names.iter().find(|name| found.named(name).is_empty());
            let Some(missing) = missing else {
                return found;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no `{missing}` in {:#?}", found.shown());
            spans = self.kept.more.wait_timeout(spans, left).unwrap().0;
        }
    }
}

fn traced(endpoint: &str) -> Vec<(String, String)> {
    let env = [
        ("PANDO_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    env.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// One connection of an exporter.
fn serve(stream: TcpStream, kept: &Kept) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(1..) if !line.trim().is_empty() => head.push(line.to_ascii_lowercase()),
                Ok(1..) => break,
                _ => return,
            }
        }
        assert!(head[0].starts_with("post /v1/traces "), "{head:?}");
        let length = head.iter().find_map(|line| {
            let value = line.strip_prefix("content-length:")?;
            value.trim().parse().ok()
        });
        let mut body = vec![0; length.expect("a length")];
        reader.read_exact(&mut body).expect("a whole body");
        let request = ExportTraceServiceRequest::decode(&*body).expect("OTLP");
        let mut spans = kept.spans.lock().unwrap();
        for resource in request.resource_spans {
            let named = resource.resource.expect("a resource").attributes;
            let service = named.iter().find(|it| it.key == "service.name");
            assert!(format!("{service:?}").contains("pando"), "{named:?}");
            spans.extend(resource.scope_spans.into_iter().flat_map(|it| it.spans));
        }
        drop(spans);
        kept.more.notify_all();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(answer).expect("an answer");
    }
}

/// The spans of one trace.
struct Spans(Vec<Span>);

impl Spans {
    fn of_trace(all: &[Span], trace: &str) -> Self {
        let of_it = all.iter().filter(|span| hex(&span.trace_id) == trace);
        Self(of_it.cloned().collect())
    }

    fn named(&self, name: &str) -> Vec<&Span> {
        self.0.iter().filter(|span| span.name == name).collect()
    }

    /// The one with a name within another one.
    fn child(&self, parent: &Span, name: &str) -> &Span {
        let mut children = self
            .0
            .iter()
            .filter(|span| span.parent_span_id == parent.span_id && span.name == name);
        let (Some(child), None) = (children.next(), children.next()) else {
            panic!("not one `{name}` in `{}`: {:#?}", parent.name, self.shown());
        };
        assert!(
            parent.start_time_unix_nano <= child.start_time_unix_nano
                && child.end_time_unix_nano <= parent.end_time_unix_nano
                && child.start_time_unix_nano <= child.end_time_unix_nano,
            "`{name}` is not within `{}`: {:#?}",
            parent.name,
            self.shown()
        );
        child
    }

    fn shown(&self) -> Vec<String> {
        let shown = self.0.iter().map(|span| {
            let (id, parent) = (hex(&span.span_id), hex(&span.parent_span_id));
            let took = span.end_time_unix_nano - span.start_time_unix_nano;
            format!("{id} in {parent}: {} {} us", span.name, took / 1000)
        });
        shown.collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|it| it.key == key);
    let value = found.and_then(|it| it.value.clone()?.value);
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("`{key}` of `{}` is {other:?}", span.name),
    }
}

/// A POST as part of the caller's trace.
fn post(world: &World, path: &str, body: &serde_json::Value) -> Answer {
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [
        ("content-type", "application/json"),
        ("traceparent", parent.as_str()),
    ];
    let answer = world
        .api()
        .send("POST", path, &headers, body.to_string().as_bytes());
    assert!(answer.status < 300, "{}", answer.text);
    answer
}

#[test]
fn a_callers_trace_goes_through_daemon_shim_and_agent() {
    let collector = Collector::start();
    let world = collector.world();
    let made = post(&world, "/v1/sandboxes", &json!({}));
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let argv = json!({ "argv": ["sh", "-c", "echo $TRACEPARENT"] });
    let ran = post(&world, &format!("/v1/sandboxes/{id}/exec"), &argv);
    let exec_route = "POST /v1/sandboxes/{id}/exec";
    let names = ["POST /v1/sandboxes", exec_route];
    let spans = collector.await_spans(TRACE, &names);

    let request = spans.named("POST /v1/sandboxes")[0];
    assert_eq!(hex(&request.parent_span_id), CALLER);
    assert_eq!(text(request, "http.response.status_code"), "201");
    let request_id = made.header("x-request-id").unwrap();
    assert_eq!(text(request, "pando.request_id"), request_id);
    let create = spans.child(request, "create");
    assert_eq!(text(create, "pando.sandbox.id"), id);
    assert_eq!(text(create, "pando.outcome"), "ok");
    let spawn = spans.child(create, "spawn");
    let shim = spans.child(spawn, "shim");
    assert_eq!(text(shim, "pando.component"), "shim");
    spans.child(shim, "launched");
    spans.child(shim, "loaded");
    let answered = spans.child(shim, "answered");
    let agent = spans.child(answered, "agent");
    assert_eq!(text(agent, "pando.component"), "agent");
    spans.child(agent, "reseeded");
    spans.child(agent, "renamed");
    spans.child(agent, "hooks ran");

    let request = spans.named(exec_route)[0];
    assert_eq!(hex(&request.parent_span_id), CALLER);
    let shim = spans.child(spans.child(request, "exec"), "shim");
    spans.child(shim, "started");
    spans.child(shim, "ended");
    let agent = spans.child(shim, "agent");
    spans.child(agent, "started");
    spans.child(agent, "ended");
    // The program can go on with it.
    let told = ran.json()["stdout"].as_str().unwrap().trim().to_owned();
    let within = hex(&request.span_id);
    assert_eq!(told, format!("00-{TRACE}-{within}-01"));
}

#[test]
fn a_clone_that_waited_is_traced_too() {
    let collector = Collector::start();
    let mut env = traced(&format!("http://{}", collector.address));
    env.push(("PANDO_WARM".to_owned(), "1".to_owned()));
    let world = World::with(Options {
        env,
        ..Options::default()
    });
    world.await_full_pool();
    post(&world, "/v1/sandboxes", &json!({}));
    let spans = collector.await_spans(TRACE, &["POST /v1/sandboxes"]);
    let create = spans.child(spans.named("POST /v1/sandboxes")[0], "create");
    assert_eq!(text(create, "pando.made_from"), "warm");
    let shim = spans.child(spans.child(create, "claim"), "shim");
    spans.child(spans.child(shim, "answered"), "agent");
}

#[test]
fn a_fork_is_one_trace_with_all_its_children() {
    let collector = Collector::start();
    let world = collector.world();
    let id = world.create();
    post(
        &world,
        &format!("/v1/sandboxes/{id}/fork"),
        &json!({ "count": 2 }),
    );
    let route = "POST /v1/sandboxes/{id}/fork";
    let spans = collector.await_spans(TRACE, &[route]);
    let fork = spans.child(spans.named(route)[0], "fork");
    assert_eq!(text(fork, "pando.sandbox.id"), id);
    let spawns = spans.named("spawn");
    assert_eq!(spawns.len(), 2, "{:#?}", spans.shown());
    for spawn in spawns {
        assert_eq!(spawn.parent_span_id, fork.span_id);
        spans.child(spans.child(spawn, "shim"), "answered");
    }
    // The snapshot that it takes.
    let shim = spans.child(fork, "shim");
    for step in ["frozen", "thawed", "written"] {
        spans.child(shim, step);
    }
}

#[test]
fn a_program_that_names_its_trace_itself_keeps_it() {
    let collector = Collector::start();
    let world = collector.world();
    let id = world.create();
    let exec = format!("/v1/sandboxes/{id}/exec");
    let own = json!({ "argv": ["printenv", "TRACEPARENT"], "env": { "TRACEPARENT": "mine" } });
    assert_eq!(post(&world, &exec, &own).json()["stdout"], "mine\n");
    // Who asks for the same program once more does so in another trace.
    let once = json!({ "argv": ["printenv", "TRACEPARENT"], "request_id": "once" });
    let first = post(&world, &exec, &once).json()["stdout"].clone();
    let again = world.api().post(&exec, &once);
    assert_eq!(again.json()["stdout"], first, "{}", again.text);
}

#[test]
fn a_request_that_names_no_trace_begins_one() {
    let collector = Collector::start();
    let world = collector.world();
    for (number, nonsense) in [
        "",
        "00",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-\u{fffd}",
    ]
    .iter()
    .enumerate()
    {
        let path = format!("/v1/sandboxes/none{number}");
        let answer = world
            .api()
            .send("GET", &path, &[("traceparent", nonsense)], b"");
        assert_eq!(answer.status, 404, "{nonsense}: {}", answer.text);
        let request_id = answer.header("x-request-id").unwrap().to_owned();
        let mut spans = collector.kept.spans.lock().unwrap();
        let deadline = Instant::now() + ON_THE_WAY;
        let span = loop {
            let found = spans
                .iter()
                .find(|span| text(span, "pando.request_id") == request_id);
            if let Some(span) = found {
                break span.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no span of `{nonsense}`");
            spans = collector.kept.more.wait_timeout(spans, left).unwrap().0;
        };
        drop(spans);
        assert_ne!(hex(&span.trace_id), TRACE, "{nonsense}");
        assert_eq!(span.parent_span_id, Vec::<u8>::new(), "{nonsense}");
        assert_eq!(span.name, "GET /v1/sandboxes/{id}");
        assert_eq!(text(&span, "http.response.status_code"), "404");
    }
}

#[test]
fn nothing_is_traced_unless_it_is_wished() {
    let world = World::start();
    let id = world.create();
    let told = world.exec(&id, &json!({ "argv": ["sh", "-c", "echo [$TRACEPARENT]"] }));
    assert_eq!(told["stdout"], "[]\n");
}

#[test]
fn a_collector_that_does_not_answer_costs_traces_alone() {
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut world = World::with(Options {
        env: traced(&endpoint),
        ..Options::default()
    });
    let id = world.create();
    assert_eq!(world.sh(&id, "echo fine"), "fine");
    let begun = Instant::now();
    world.end_daemon();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "its end took {took:?}");
    drop(silent);
    // Nobody listens there any more.
    world.start_daemon();
    for _ in 0..50 {
        assert_eq!(world.sh(&id, "echo fine"), "fine");
    }
    world.end_daemon();
    let said = world.log().matches("traces are not taken").count();
    assert!((1..=2).contains(&said), "{said} times:\n{}", world.log());
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    let world = World::start();
    for wrong in [
        "collector:4318",
        "ftp://collector",
        "http://me:secret@collector",
    ] {
        let mut serve = world.command(["serve", "--listen", "127.0.0.1:0"]);
        serve.env("PANDO_OTLP_ENDPOINT", wrong);
        let output = serve.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("give the http or https URL"), "{said}");
    }
}

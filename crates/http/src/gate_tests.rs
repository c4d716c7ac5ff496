use super::*;
use crate::json::{JsonBody, Params};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use pando_types::limits::JSON_BODY_BYTES;
use serde_json::{Value, json};
use std::net::IpAddr;

const KEY: &str = "pando_0123456789012345678901234567890123456789";
/// The port from which sandboxes' processes come.
const OF_A_SANDBOX: u16 = 41_000;
const ID: &str = "s0123456789abcdefghi";

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    #[serde(default)]
    number: u32,
}

/// A gate before a few routes that need no engine.
pub(crate) fn gate() -> Gate {
    gate_with(Keyless::Allowed)
}

fn gate_with(keyless: Keyless) -> Gate {
    let native = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route(
            "/v1/echo",
            post(|JsonBody(sample): JsonBody<Sample>| async move { sample.number.to_string() }),
        )
        .route(
            "/v1/query",
            get(|Params(sample): Params<Sample>| async move { sample.number.to_string() }),
        )
        .route(
            "/v1/pairs",
            get(|Params(pairs): Params<Vec<(String, String)>>| async move { format!("{pairs:?}") }),
        )
        .route(
            "/v1/panic",
            get(|| async {
                if true {
                    panic!("on purpose")
                }
            }),
        )
        .route(
            "/v1/who",
            get(|axum::Extension(caller): axum::Extension<Caller>| async move { caller.tenant }),
        )
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    let key_check: KeyCheck = Arc::new(|key| {
        Box::pin(async move {
            (key == KEY).then(|| Caller {
                tenant: "default".to_owned(),
            })
        })
    });
    let guest: GuestDoor = Arc::new(|target, caller, _| {
        let text = format!("guest {} {}", target.port, caller.is_some());
        Box::pin(async move { text.into_response() })
    });
    let rules = HostRules::new("127.0.0.1".parse().unwrap(), Vec::new());
    let arrakis = Router::new()
        .route(
            "/v1/vms",
            get(|axum::Extension(caller): axum::Extension<Caller>| async move { caller.tenant })
                .post(
                    |JsonBody(sample): JsonBody<Sample>| async move { sample.number.to_string() },
                ),
        )
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    let doors = Doors {
        native,
        arrakis,
        keyless,
        of_a_sandbox: |connection| connection.client.port() == OF_A_SANDBOX,
        guest,
    };
    Gate::new(rules, key_check, doors, Arc::default())
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    fn code(&self) -> String {
        let id = self.headers[REQUEST_ID_HEADER].to_str().unwrap();
        assert_eq!(self.json()["error"]["request_id"], id);
        assert!(
            self.json()["error"]["hint"]
                .as_str()
                .unwrap()
                .contains("docs/errors.md#")
        );
        self.json()["error"]["code"].as_str().unwrap().to_owned()
    }
}

async fn send(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
    send_to(gate(), method, path, headers, body).await
}

/// Sends a request of a program of this machine.
async fn send_to(
    gate: Gate,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost:7000");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(body.into()).unwrap();
    // A header that only these tests know says where a request comes from.
    let port = request.headers_mut().remove("test-port");
    let port = port.map_or(40_000, |port| port.to_str().unwrap().parse().unwrap());
    let here: IpAddr = "127.0.0.1".parse().unwrap();
    let extensions = request.extensions_mut();
    extensions.insert(proxy::Peer(here));
    extensions.insert(Connection {
        client: (here, port).into(),
        server: (here, 7000).into(),
    });
    let response = gate.serve(request).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

const AUTHORIZED: (&str, &str) = ("x-api-key", KEY);
const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn a_parameter_may_be_repeated_where_a_handler_takes_pairs() {
    let pairs = send(
        "GET",
        "/v1/pairs?label=a%3D1&label=b%3Dx%3Dy",
        &[AUTHORIZED],
        "",
    )
    .await;
    assert_eq!(pairs.text, r#"[("label", "a=1"), ("label", "b=x=y")]"#);
    assert_eq!(send("GET", "/v1/pairs", &[AUTHORIZED], "").await.text, "[]");
}

#[tokio::test]
async fn a_key_is_needed_everywhere_but_for_health() {
    assert_eq!(send("GET", "/healthz", &[], "").await.status, 200);
    let refused = send("GET", "/v1/who", &[], "").await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (401, "unauthorized")
    );
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
    let unknown = send("GET", "/v1/none", &[], "").await;
    assert_eq!(
        unknown.status, 401,
        "without a key nobody learns which routes exist"
    );
    for route in pando_api::route::ROUTES {
        let answer = send(route.method.as_str(), route.path, &[], "").await;
        assert_eq!(answer.status == 401, route.needs_key(), "{route:?}");
    }
    for headers in [[AUTHORIZED], [("authorization", &*format!("Bearer {KEY}"))]] {
        assert_eq!(send("GET", "/v1/who", &headers, "").await.text, "default");
    }
    for key in ["", "x", &KEY[..KEY.len() - 1]] {
        assert_eq!(
            send("GET", "/v1/who", &[("x-api-key", key)], "")
                .await
                .status,
            401,
            "{key}"
        );
    }
    let two = [AUTHORIZED, ("authorization", "Bearer other")];
    assert_eq!(send("GET", "/v1/who", &two, "").await.status, 401);
}

#[tokio::test]
async fn a_foreign_host_gets_421_before_anything_else() {
    let answer = send(
        "GET",
        "/healthz",
        &[("host", "evil.example"), AUTHORIZED],
        "",
    )
    .await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (421, "foreign_host")
    );
}

#[tokio::test]
async fn pages_of_other_origins_change_nothing_and_open_no_websocket() {
    let guest = format!("http://3000-{ID}.localhost:7000");
    for origin in ["http://evil.example", "null", &guest] {
        let answer = send(
            "POST",
            "/v1/echo",
            &[AUTHORIZED, JSON, ("origin", origin)],
            "{}",
        )
        .await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (403, "foreign_origin"),
            "{origin}"
        );
        let upgrade = [AUTHORIZED, ("upgrade", "websocket"), ("origin", origin)];
        assert_eq!(
            send("GET", "/v1/who", &upgrade, "").await.status,
            403,
            "{origin}"
        );
        let door = send("DELETE", "/v1/vms", &[("origin", origin)], "").await;
        assert_eq!(door.status, 403, "{origin}");
    }
    let own = [AUTHORIZED, JSON, ("origin", "http://localhost:7000")];
    assert_eq!(send("POST", "/v1/echo", &own, "{}").await.status, 200);
}

#[tokio::test]
async fn malformed_bodies_are_refused_in_our_words() {
    let post = |headers: Vec<(&'static str, &'static str)>, body: &'static str| async move {
        let answer = send("POST", "/v1/echo", &headers, body).await;
        let message = if answer.status == 200 {
            String::new()
        } else {
            answer.json()["error"]["message"].to_string()
        };
        (answer.status, message)
    };
    assert_eq!(post(vec![AUTHORIZED, JSON], r#"{"number":7}"#).await.0, 200);
    assert_eq!(
        post(vec![AUTHORIZED], "").await.0,
        200,
        "an empty body is {{}}"
    );
    let (status, message) = post(vec![AUTHORIZED, JSON], r#"{"nubmer":7}"#).await;
    assert_eq!(status, 400);
    assert!(
        message.contains("unknown field `nubmer`") && message.contains("POST /v1/echo"),
        "{message}"
    );
    let (status, message) = post(vec![AUTHORIZED, JSON], r#"{"number":"#).await;
    assert!(status == 400 && message.contains("line 1"), "{message}");
    assert_eq!(post(vec![AUTHORIZED], "{}").await.0, 415);
    assert_eq!(
        post(vec![AUTHORIZED, ("content-type", "text/plain")], "{}")
            .await
            .0,
        415
    );
}

#[tokio::test]
async fn an_oversized_body_is_413() {
    let body = vec![b' '; JSON_BODY_BYTES + 1];
    let answer = send("POST", "/v1/echo", &[AUTHORIZED, JSON], body).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "body_too_large")
    );
}

#[tokio::test]
async fn unknown_paths_methods_and_queries_are_refused_in_our_shape() {
    let answer = send("GET", "/v1/none", &[AUTHORIZED], "").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (404, "route_not_found")
    );
    let answer = send("DELETE", "/v1/echo", &[AUTHORIZED], "").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (405, "method_not_allowed")
    );
    assert_eq!(answer.headers["allow"], "POST");
    let answer = send("GET", "/v1/query?nope=1", &[AUTHORIZED], "").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "invalid_request")
    );
    assert!(answer.text.contains("nope"), "{}", answer.text);
}

#[tokio::test]
async fn a_panic_in_a_handler_is_an_answer() {
    let answer = send("GET", "/v1/panic", &[AUTHORIZED], "").await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "internal"));
}

#[tokio::test]
async fn reserved_doors_answer_in_their_dialect() {
    let e2b = send("POST", "/v2/sandboxes", &[], "{}").await;
    assert_eq!(e2b.status, 404);
    assert_eq!(e2b.json()["code"], json!(404));
    assert!(e2b.json()["message"].is_string());
    let pages = send("GET", "/ui/", &[], "").await;
    assert_eq!(
        (pages.status, pages.code().as_str()),
        (404, "route_not_found")
    );
}

#[tokio::test]
async fn sandbox_traffic_reaches_the_guest_door_with_or_without_a_key() {
    let host = format!("8080-{ID}.localhost:7000");
    assert_eq!(
        send("POST", "/v1/echo", &[("host", &host)], "").await.text,
        "guest 8080 false"
    );
    assert_eq!(
        send("POST", "/v1/echo", &[("host", &host), AUTHORIZED], "")
            .await
            .text,
        "guest 8080 true"
    );
}

/// The refusal of the Arrakis door: its status, in its own shape and no other.
async fn refused(method: &str, path: &str, headers: &[(&str, &str)], body: &'static str) -> u16 {
    let answer = send(method, path, headers, body).await;
    let json = answer.json();
    let error = json["error"].as_object().unwrap();
    assert!(error["message"].is_string() && error.len() == 1, "{json}");
    assert!(answer.text.ends_with("}\n"), "{json}");
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.status
}

#[tokio::test]
async fn the_arrakis_door_needs_no_key_from_here_and_takes_one() {
    let who = |headers: Vec<(&'static str, &'static str)>| async move {
        let answer = send("GET", "/v1/vms", &headers, "").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.text
    };
    assert_eq!(who(vec![]).await, "arrakis");
    assert_eq!(who(vec![AUTHORIZED]).await, "default");
    // `pando:KEY`
    let basic = "Basic cGFuZG86cGFuZG9fMDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OQ==";
    assert_eq!(who(vec![("authorization", basic)]).await, "default");
    // With a key nothing else is asked.
    for trace in [
        ("origin", "http://evil.example"),
        ("x-forwarded-for", "1"),
        ("via", "1"),
    ] {
        assert_eq!(who(vec![AUTHORIZED, trace]).await, "default");
    }
    let made = send("POST", "/v1/vms", &[JSON], r#"{"number":7}"#).await;
    assert_eq!((made.status, made.text.as_str()), (200, "7"));
}

#[tokio::test]
async fn whoever_names_himself_wrongly_is_not_let_in_as_nobody() {
    for headers in [
        vec![("x-api-key", "")],
        vec![("x-api-key", "x")],
        vec![("authorization", "Bearer x")],
        vec![("authorization", "Bearer")],
        vec![("authorization", "Basic !")],
        vec![("authorization", "Basic cGFuZG86eA==")],
        vec![("authorization", "Digest x")],
        vec![AUTHORIZED, ("authorization", "Bearer other")],
    ] {
        assert_eq!(
            refused("GET", "/v1/vms", &headers, "").await,
            401,
            "{headers:?}"
        );
    }
}

#[tokio::test]
async fn the_arrakis_door_without_a_key_is_closed_to_pages_proxies_and_other_names() {
    let page = ("origin", "http://evil.example");
    for (method, headers, body, status) in [
        // `fetch` and forms, which say their origin.
        ("POST", vec![page, JSON], r#"{"number":7}"#, 403),
        (
            "POST",
            vec![page, ("content-type", "text/plain")],
            "{}",
            403,
        ),
        ("DELETE", vec![page], "", 403),
        ("GET", vec![page], "", 401),
        (
            "POST",
            vec![("origin", "http://localhost:7000"), JSON],
            "{}",
            401,
        ),
        // What says no origin: images, links, frames.
        ("GET", vec![("sec-fetch-site", "cross-site")], "", 401),
        ("GET", vec![("sec-fetch-site", "same-site")], "", 401),
        // A browser that says neither can send only this.
        ("POST", vec![("content-type", "text/plain")], "{}", 415),
        (
            "POST",
            vec![("content-type", "application/x-www-form-urlencoded")],
            "",
            415,
        ),
        ("POST", vec![], "{}", 415),
        ("POST", vec![], "", 415),
        // Proxies.
        ("GET", vec![("x-forwarded-for", "203.0.113.7")], "", 401),
        ("GET", vec![("x-forwarded-for", "127.0.0.1")], "", 401),
        ("GET", vec![("forwarded", "for=127.0.0.1")], "", 401),
        ("GET", vec![("via", "1.1 a")], "", 401),
        ("GET", vec![("x-real-ip", "127.0.0.1")], "", 401),
    ] {
        let answered = refused(method, "/v1/vms", &headers, body).await;
        assert_eq!(answered, status, "{method} {headers:?} {body}");
    }
    // What took over a sandbox's shim.
    let taken_over = ("test-port", "41000");
    assert_eq!(refused("GET", "/v1/vms", &[taken_over], "").await, 401);
    let keyed = send("GET", "/v1/vms", &[taken_over, AUTHORIZED], "").await;
    assert_eq!(keyed.text, "default");
    // A name that was pointed here, and one of ours that a proxy may have.
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1"] {
        let answer = send("GET", "/v1/vms", &[("host", host)], "").await;
        assert_eq!(answer.status, 421, "{host}");
    }
    // Nobody learns of routes.
    assert_eq!(refused("GET", "/v1/vms/a/b/c", &[page], "").await, 401);
    assert_eq!(refused("OPTIONS", "/v1/vms", &[page], "").await, 401);
}

#[tokio::test]
async fn where_a_key_is_demanded_nobody_passes_without() {
    for rule in [
        Keyless::of(true, true, false),
        Keyless::of(false, false, false),
        Keyless::of(false, true, true),
    ] {
        for path in ["/v1/vms", "/v1/health", "/vms", "/health", "/v1/vms/none"] {
            let answer = send_to(gate_with(rule), "GET", path, &[], "").await;
            assert_eq!(answer.status, 401, "{rule:?} {path}");
        }
        let answer = send_to(gate_with(rule), "GET", "/v1/vms", &[AUTHORIZED], "").await;
        assert_eq!(answer.text, "default");
    }
}

#[tokio::test]
async fn the_arrakis_door_answers_in_its_dialect() {
    let none = send("GET", "/v1/vms/none/other", &[], "").await;
    assert_eq!(
        (none.status, none.text.as_str()),
        (404, "404 page not found\n")
    );
    let wrong = send("DELETE", "/v1/vms", &[], "").await;
    assert_eq!((wrong.status, wrong.text.as_str()), (405, ""));
    assert_eq!(refused("POST", "/v1/vms", &[JSON], "{").await, 400);
}

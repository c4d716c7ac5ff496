//! Sandboxes that end or sleep by themselves, and wake when they are needed.

mod stage;
mod wake;

use pando_testkit::World;
use serde_json::{Value, json};
use stage::{
    await_event, change, code, echo, events, exec, get_port, make, now, serve, text, time,
};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

#[test]
fn a_sandbox_goes_when_its_timeout_passes_whatever_it_does() {
    let world = World::start();
    let id = world.ok(["create", "--timeout", "3s"]);
    let made = world.inspect(&id);
    let expires_at = time(&made, "expires_at");
    assert_eq!(
        (&made["timeout_s"], &made["on_timeout"]),
        (&json!(3.0), &json!("kill"))
    );
    // From the moment at which it runs; both times are rounded to ms.
    assert!(expires_at >= time(&made, "created_at") + 2.998, "{made}");
    assert!(expires_at <= time(&made, "started_at") + 3.002, "{made}");
    let (shim, vmm) = (world.shim_pid(&id), world.vmm_pid(&id));
    // It is used all the time.
    let path = format!("/v1/sandboxes/{id}/exec");
    let cut_off = world.api().post(&path, &json!({ "argv": ["sleep", "60"] }));
    assert_eq!(
        (cut_off.status, code(&cut_off.text).as_str()),
        (409, "removed")
    );

    let removed = await_event(&world, &id, "sandbox.removed", 1);
    assert_eq!(removed["detail"], "its timeout passed");
    assert!(time(&removed, "at") >= expires_at, "{removed}");
    assert_eq!(world.api().get(&format!("/v1/sandboxes/{id}")).status, 404);
    for pid in [shim, vmm] {
        assert!(!world.processes().contains(&pid), "{pid}");
    }
    assert!(!world.sandbox_dir(&id).exists());
    an_idle_one_goes_too_and_a_stopped_one(&world);
}

fn an_idle_one_goes_too_and_a_stopped_one(world: &World) {
    let idle = make(world, &json!({ "idle_timeout_s": 1 }));
    let stopped = make(world, &json!({ "timeout_s": 600 }));
    let kept = make(world, &json!({ "timeout_s": 600, "on_timeout": "pause" }));
    // The one that is to be left alone is due first.
    for id in [&kept, &stopped] {
        world.ok(["stop", id]);
        change(world, id, &json!({ "timeout_s": 1 }));
    }
    let removed = await_event(world, &idle, "sandbox.removed", 1);
    assert_eq!(removed["detail"], "nothing used it for its idle timeout");
    await_event(world, &stopped, "sandbox.removed", 1);
    // There is nothing of it to be put on disk; its start begins a time of its own.
    let off = world.inspect(&kept);
    assert_eq!(off["state"], "stopped");
    assert!(time(&off, "expires_at") <= now());
    world.ok(["start", &kept]);
    assert!(time(&world.inspect(&kept), "expires_at") > now());
    await_event(world, &kept, "sandbox.paused", 1);
}

#[test]
fn a_timeout_is_extended_taken_away_and_begun_anew_by_a_resume() {
    let world = World::start();
    let id = make(&world, &json!({ "timeout_s": 60, "on_timeout": "pause" }));
    world.sh(&id, "echo kept > /dev/shm/kept");
    let snapshot = text(&world.api().snapshot(&id, &json!({})).json(), "id");
    let longer = change(&world, &id, &json!({ "timeout_s": 600 }));
    let left = time(&longer, "expires_at") - now();
    assert!((595.0..=600.5).contains(&left), "{longer}");
    assert_eq!(longer["timeout_s"], 600.0);

    // The deadline is the sandbox's, not its state's.
    let back = world.api().roll_back(&id, &json!({ "snapshot": snapshot }));
    assert_eq!(back.status, 200, "{}", back.text);
    assert_eq!(world.inspect(&id)["expires_at"], longer["expires_at"]);

    let endless = change(&world, &id, &json!({ "timeout_s": null }));
    assert_eq!(
        (&endless["timeout_s"], &endless["expires_at"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(endless["on_timeout"], "pause", "what is not named stays");
    let nothing = change(&world, &id, &json!({}));
    assert_eq!(nothing["on_timeout"], "pause");

    let shown = world.ok(["timeout", &id, "2s"]);
    assert!(shown.starts_with("timeout       2s, over in "), "{shown}");
    let paused = await_event(&world, &id, "sandbox.paused", 1);
    assert_eq!(paused["detail"], "its timeout passed");
    let asleep = world.inspect(&id);
    assert_eq!(
        (&asleep["expires_at"], &asleep["timeout_s"]),
        (&Value::Null, &json!(2.0))
    );
    assert_eq!(asleep["state_reason"], "its timeout passed");
    // It does not wake by itself: it was not asked to.
    let (status, body) = exec(&world, &id);
    assert_eq!((status, code(&body).as_str()), (409, "wrong_state"));
    assert!(body.contains("is paused"), "{body}");
    change(&world, &id, &json!({ "timeout_s": 300 }));
    assert_eq!(world.inspect(&id)["expires_at"], Value::Null);
    world.ok(["resume", &id]);
    let left = time(&world.inspect(&id), "expires_at") - now();
    assert!((290.0..=300.5).contains(&left), "{left}");
    assert_eq!(world.sh(&id, "cat /dev/shm/kept"), "kept");
    let listed = world.ok(["ls"]);
    assert!(
        listed.lines().next().unwrap().ends_with("EXPIRES"),
        "{listed}"
    );
    assert!(
        listed.contains(&id) && listed.trim_end().ends_with('m'),
        "{listed}"
    );
    assert_eq!(events(&world.api(), &id, "sandbox.lifetime").len(), 4);
    children_have_their_parents_lifetime(&world, &id);
}

fn children_have_their_parents_lifetime(world: &World, id: &str) {
    let parent = change(
        world,
        id,
        &json!({ "timeout_s": 1000, "auto_resume": true }),
    );
    let fork = |request: &Value| {
        let forked = world.api().fork(id, request).json();
        forked["children"][0]["sandbox"].clone()
    };
    let child = fork(&json!({}));
    for field in ["timeout_s", "idle_timeout_s", "on_timeout", "auto_resume"] {
        assert_eq!(child[field], parent[field], "{field}: {child}");
    }
    assert!(
        time(&child, "expires_at") > time(&parent, "expires_at"),
        "counted anew"
    );
    let child = fork(&json!({ "timeout_s": null, "idle_timeout_s": 99.5, "auto_resume": false }));
    assert_eq!(
        (&child["timeout_s"], &child["expires_at"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        (&child["idle_timeout_s"], &child["on_timeout"]),
        (&json!(99.5), &json!("pause"))
    );
    assert_eq!(child["auto_resume"], false);
    let child = world.ok(["fork", id, "--timeout", "5m", "--on-timeout", "kill"]);
    let child = world.inspect(&child);
    assert_eq!(
        (&child["timeout_s"], &child["on_timeout"]),
        (&json!(300.0), &json!("kill"))
    );
    // What is made from a snapshot has what is given with it.
    let snapshot = text(&world.api().snapshot(id, &json!({})).json(), "id");
    let made = make(world, &json!({ "from": snapshot, "idle_timeout_s": 60 }));
    let made = world.inspect(&made);
    assert_eq!(
        (&made["timeout_s"], &made["idle_timeout_s"]),
        (&Value::Null, &json!(60.0))
    );
    assert_eq!(
        (&made["on_timeout"], &made["auto_resume"]),
        (&json!("kill"), &json!(false))
    );
}

#[test]
fn what_is_used_does_not_sleep_and_what_stands_open_does() {
    let world = World::start();
    let id = make(&world, &json!({ "on_timeout": "pause" }));
    serve(&world, &id);
    let raw = world.ok(["port", &id, "5901"]);
    let limit = |seconds: u64| change(&world, &id, &json!({ "idle_timeout_s": seconds }));
    let begun = Instant::now();
    limit(2);

    // An exec, however quiet it is, and one that is followed.
    world.sh(&id, "sleep 4");
    world.ok(["exec", &id, "--", "sleep", "4"]);
    // Bytes, now and then, of a connection that stands open, and requests.
    let mut stream = stage::connect(&raw);
    for _ in 0..8 {
        echo(&mut stream, b"x").unwrap();
        std::thread::sleep(Duration::from_millis(400));
    }
    for _ in 0..8 {
        assert_eq!(get_port(&world, &id, 8080).0, 200);
        std::thread::sleep(Duration::from_millis(400));
    }
    assert!(begun.elapsed() > Duration::from_secs(14));
    let paused = events(&world.api(), &id, "sandbox.paused");
    assert!(paused.is_empty(), "{paused:?}");

    // The connection stands open, a process runs, and somebody looks after it all the time.
    let process = world.ok(["exec", "-d", &id, "--", "sleep", "600"]);
    assert!(!process.is_empty());
    while world.inspect(&id)["state"] == "running" {
        world
            .api()
            .send("POST", &format!("/v1/sandboxes/{id}/ping"), &[], b"");
        world.api().get("/v1/sandboxes");
        world.api().get(&format!("/v1/sandboxes/{id}/network"));
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "it never sleeps"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let paused = await_event(&world, &id, "sandbox.paused", 1);
    assert_eq!(paused["detail"], "nothing used it for its idle timeout");
    let cut = echo(&mut stream, b"x").unwrap_err();
    assert!(
        matches!(
            cut.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        "{cut}"
    );
    let asleep = world.inspect(&id);
    assert!(
        time(&asleep, "last_used_at") <= time(&paused, "at") - 2.0,
        "{asleep}"
    );
    let (status, body) = get_port(&world, &id, 8080);
    assert_eq!(status, 502);
    assert!(body.contains(r#""state":"paused""#), "{body}");
}

#[test]
fn a_daemon_that_was_down_when_time_was_over_acts_at_once() {
    let mut world = World::start();
    let killed = make(&world, &json!({}));
    let paused = make(&world, &json!({ "on_timeout": "pause" }));
    let asleep = make(&world, &json!({ "auto_resume": true }));
    world.ok(["pause", &asleep]);
    change(&world, &asleep, &json!({ "timeout_s": 3 }));
    let lives = make(
        &world,
        &json!({ "timeout_s": 900.25, "idle_timeout_s": 800, "on_timeout": "pause", "auto_resume": true }),
    );
    let before = world.inspect(&lives);
    let soon = |id: &String| {
        time(
            &change(&world, id, &json!({ "timeout_s": 3 })),
            "expires_at",
        )
    };
    let over = soon(&killed).max(soon(&paused));
    world.kill_daemon();
    assert!(now() < over, "it was up at the deadline");
    while now() <= over {
        std::thread::sleep(Duration::from_millis(50));
    }
    world.start_daemon();
    await_event(&world, &killed, "sandbox.removed", 1);
    await_event(&world, &paused, "sandbox.paused", 1);
    let after = world.inspect(&lives);
    for field in [
        "timeout_s",
        "expires_at",
        "idle_timeout_s",
        "on_timeout",
        "auto_resume",
    ] {
        assert_eq!(after[field], before[field], "{field}");
    }
    // A paused one keeps; its time begins when it goes on.
    assert_eq!(world.inspect(&asleep)["state"], "paused");
    let before = now();
    assert_eq!(exec(&world, &asleep).0, 200);
    let woken = world.inspect(&asleep);
    // Its time is rounded to ms.
    assert!(time(&woken, "expires_at") >= before + 2.998, "{woken}");
    await_event(&world, &asleep, "sandbox.removed", 1);
}

#[test]
fn what_is_no_lifetime_is_refused_by_name() {
    let world = World::start();
    let id = make(&world, &json!({ "timeout_s": 600 }));
    let before = world.inspect(&id);
    let wrong = [
        (
            r#"{"timeout_s":0}"#,
            "invalid_request",
            "`timeout_s` cannot be 0: choose 1 second to 30 days",
        ),
        (
            r#"{"timeout_s":-1}"#,
            "invalid_request",
            "`timeout_s` cannot be -1",
        ),
        (
            r#"{"timeout_s":0.5}"#,
            "invalid_request",
            "`timeout_s` cannot be 0.5",
        ),
        (
            r#"{"timeout_s":1e18}"#,
            "invalid_request",
            "`timeout_s` cannot be 1000000000000000000",
        ),
        (
            r#"{"timeout_s":2592001}"#,
            "invalid_request",
            "30 days (2592000 seconds)",
        ),
        (
            r#"{"timeout_s":1e400}"#,
            "malformed_json",
            "number out of range",
        ),
        (r#"{"timeout_s":NaN}"#, "malformed_json", "expected value"),
        (
            r#"{"timeout_s":"NaN"}"#,
            "malformed_json",
            "invalid type: string",
        ),
        (
            r#"{"timeout_s":"600"}"#,
            "malformed_json",
            "invalid type: string",
        ),
        (
            r#"{"timeout_s":true}"#,
            "malformed_json",
            "invalid type: boolean",
        ),
        (
            r#"{"timeout_s":[600]}"#,
            "malformed_json",
            "invalid type: sequence",
        ),
        (
            r#"{"idle_timeout_s":-0.0}"#,
            "invalid_request",
            "`idle_timeout_s` cannot be -0",
        ),
        (
            r#"{"idle_timeout_s":1e-300}"#,
            "invalid_request",
            "`idle_timeout_s` cannot be",
        ),
        (
            r#"{"on_timeout":"sleep"}"#,
            "invalid_request",
            "`on_timeout` cannot be `sleep`: choose `kill` or `pause`",
        ),
        (
            r#"{"on_timeout":"Kill"}"#,
            "invalid_request",
            "choose `kill` or `pause`",
        ),
        (
            r#"{"on_timeout":""}"#,
            "invalid_request",
            "choose `kill` or `pause`",
        ),
        (
            r#"{"on_timeout":1}"#,
            "malformed_json",
            "invalid type: integer",
        ),
        (
            r#"{"auto_resume":"yes"}"#,
            "malformed_json",
            "invalid type: string",
        ),
        (
            r#"{"auto_resume":1}"#,
            "malformed_json",
            "invalid type: integer",
        ),
        (
            r#"{"timeout":600}"#,
            "malformed_json",
            "unknown field `timeout`",
        ),
        // Nothing is changed unless all of it is right.
        (
            r#"{"timeout_s":5,"idle_timeout_s":0}"#,
            "invalid_request",
            "`idle_timeout_s` cannot be 0",
        ),
        (
            r#"{"timeout_s":5,"egress":{"default":"maybe"}}"#,
            "invalid_request",
            "`egress`",
        ),
    ];
    let headers = [("content-type", "application/json")];
    for (body, wanted, words) in wrong {
        for (method, path) in [
            ("POST", "/v1/sandboxes".to_owned()),
            ("PATCH", format!("/v1/sandboxes/{id}")),
            ("POST", format!("/v1/sandboxes/{id}/fork")),
        ] {
            if body.contains("egress") && path.ends_with("/fork") {
                continue;
            }
            let refused = world.api().send(method, &path, &headers, body.as_bytes());
            assert_eq!(
                refused.status, 400,
                "{method} {path} {body}: {}",
                refused.text
            );
            assert_eq!(code(&refused.text), wanted, "{method} {path} {body}");
            assert!(
                refused.text.contains(words),
                "{method} {path} {body}: {}",
                refused.text
            );
        }
    }
    let template = world.api().send(
        "PATCH",
        "/v1/templates/base",
        &headers,
        br#"{"timeout_s":5}"#,
    );
    assert_eq!(
        (template.status, code(&template.text).as_str()),
        (400, "malformed_json")
    );
    let missing = world.api().send(
        "PATCH",
        "/v1/sandboxes/nobody",
        &headers,
        br#"{"timeout_s":5}"#,
    );
    assert_eq!(
        (missing.status, code(&missing.text).as_str()),
        (404, "sandbox_not_found")
    );
    for line in [
        &["create", "--timeout", "0"][..],
        &["create", "--timeout", "soon"],
        &["create", "--on-timeout", "sleep"],
        &["timeout", &id, "-1"],
        &["timeout", &id, "--auto-resume=maybe"],
    ] {
        let refused = world.run(line);
        assert_eq!(
            (refused.code, refused.stdout.as_str()),
            (2, ""),
            "{line:?}: {refused:?}"
        );
    }
    let refused = world.run(["timeout", &id, "31d"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused.stderr.contains("choose 1 second to 30 days"),
        "{refused:?}"
    );
    let sandboxes = world.api().get("/v1/sandboxes").json();
    assert_eq!(sandboxes["sandboxes"].as_array().unwrap().len(), 1);
    let after = world.inspect(&id);
    for field in [
        "timeout_s",
        "expires_at",
        "idle_timeout_s",
        "on_timeout",
        "auto_resume",
        "egress",
    ] {
        assert_eq!(after[field], before[field], "{field}");
    }
}

//! Sleep in earnest: again and again, many at once, at the wrong moment, in vain.

use super::stage::{
    await_event, change, code, connect, echo, events, exec, get_port, make, now, serve, time,
};
use pando_testkit::World;
use serde_json::json;
use std::io::ErrorKind;
use std::time::Duration;

/// A sandbox with a server that wakes when it is needed.
fn sleeper(world: &World) -> String {
    let id = make(
        world,
        &json!({ "on_timeout": "pause", "auto_resume": true }),
    );
    serve(world, &id);
    id
}

#[test]
fn twenty_rounds_of_sleep_lose_nothing() {
    const ROUNDS: usize = 20;
    let world = World::start();
    let id = sleeper(&world);
    let (_, first) = get_port(&world, &id, 8080);
    let token = first
        .strip_suffix(" 1")
        .expect("the first answer")
        .to_owned();
    change(&world, &id, &json!({ "idle_timeout_s": 1 }));
    for round in 1..=ROUNDS {
        let paused = await_event(&world, &id, "sandbox.paused", round);
        let used = time(&world.inspect(&id), "last_used_at");
        assert!(
            time(&paused, "at") - used >= 1.0,
            "round {round}: too early"
        );
        // By turns what needs it: a request to a port, an exec.
        match round % 2 {
            0 => assert_eq!(exec(&world, &id).0, 200),
            _ => {
                let answer = get_port(&world, &id, 8080);
                let wanted = format!("{token} {}", 1 + round.div_ceil(2));
                assert_eq!(answer, (200, wanted), "round {round}");
            }
        }
    }
    change(&world, &id, &json!({ "idle_timeout_s": null }));
    // The file that it has held open all the time.
    let lines = world.sh(&id, "wc -l < /home/user/log");
    assert_eq!(lines.trim(), (1 + ROUNDS / 2).to_string());
    assert_eq!(events(&world.api(), &id, "sandbox.resumed").len(), ROUNDS);
    assert_eq!(events(&world.api(), &id, "sandbox.paused").len(), ROUNDS);
}

/// Calls come when it has been unused for just its idle timeout: before, while and after it is
/// put on disk.
#[test]
fn a_call_that_comes_as_it_falls_asleep_succeeds() {
    let world = World::start();
    let id = sleeper(&world);
    let raw = world.ok(["port", &id, "5901"]);
    change(&world, &id, &json!({ "idle_timeout_s": 1 }));
    for (round, late_ms) in [980, 1000, 1005, 1010, 1020, 1040, 1060, 1090, 1120, 1160]
        .into_iter()
        .enumerate()
    {
        let used = time(&world.inspect(&id), "last_used_at");
        let wait = used + f64::from(late_ms) / 1000.0 - now();
        std::thread::sleep(Duration::from_secs_f64(wait.max(0.0)));
        match round % 3 {
            0 => assert_eq!(exec(&world, &id).0, 200, "{late_ms}"),
            1 => assert_eq!(get_port(&world, &id, 8080).0, 200, "{late_ms}"),
            _ => echo(&mut connect(&raw), b"hello").unwrap(),
        }
    }
    // They have met it at different moments.
    let rounds = events(&world.api(), &id, "sandbox.resumed").len();
    assert_eq!(events(&world.api(), &id, "sandbox.lifetime").len(), 1);
    assert!(rounds > 0, "it never slept");
    without_waking_they_are_told(&world, &id, &raw);
}

fn without_waking_they_are_told(world: &World, id: &str, raw: &str) {
    change(
        world,
        id,
        &json!({ "idle_timeout_s": null, "auto_resume": false }),
    );
    if !is_paused(world, id) {
        world.ok(["pause", id]);
    }
    let resumed = events(&world.api(), id, "sandbox.resumed").len();
    let (status, body) = exec(world, id);
    assert_eq!((status, code(&body).as_str()), (409, "wrong_state"));
    let (status, body) = get_port(world, id, 8080);
    assert_eq!(status, 502);
    assert!(body.contains(r#""state":"paused""#), "{body}");
    let mut stream = connect(raw);
    let reset = echo(&mut stream, b"x").unwrap_err();
    assert!(
        matches!(
            reset.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        "{reset}"
    );
    assert_eq!(events(&world.api(), id, "sandbox.resumed").len(), resumed);
}

fn is_paused(world: &World, id: &str) -> bool {
    world.inspect(id)["state"] == "paused"
}

#[test]
fn twenty_at_once_wake_it_once_and_all_are_served() {
    let world = World::start();
    let id = sleeper(&world);
    let raw = world.ok(["port", &id, "5901"]);
    // By a caller: it wakes all the same.
    world.ok(["pause", &id]);
    // Looking does not wake it.
    for path in ["", "/network", "/logs"] {
        world.api().get(&format!("/v1/sandboxes/{id}{path}"));
    }
    world
        .api()
        .send("POST", &format!("/v1/sandboxes/{id}/ping"), &[], b"");
    world.ok(["ls"]);
    assert!(is_paused(&world, &id));
    // Nor does who may not use it.
    let stranger = pando_testkit::Api::new(world.url(), None);
    let refused = stranger.post(
        &format!("/v1/sandboxes/{id}/exec"),
        &json!({ "shell": "true" }),
    );
    assert_eq!(refused.status, 401);
    assert!(is_paused(&world, &id));

    std::thread::scope(|scope| {
        for number in 0..20 {
            let (world, id, raw) = (&world, &id, &raw);
            scope.spawn(move || match number % 4 {
                0 => {
                    let (status, body) = exec(world, id);
                    assert_eq!(status, 200, "{body}");
                    assert!(body.contains("awake"), "{body}");
                }
                1 => assert_eq!(get_port(world, id, 8080).0, 200),
                2 => echo(&mut connect(raw), b"hello").unwrap(),
                _ => {
                    let path = format!("/v1/sandboxes/{id}/files?path=server.py");
                    let file = world.api().get(&path);
                    assert_eq!(file.status, 200, "{}", file.text);
                    assert_eq!(file.body, include_bytes!("server.py"));
                }
            });
        }
    });
    assert_eq!(events(&world.api(), &id, "sandbox.resumed").len(), 1);
    whatever_needs_it_wakes_it(&world, &id, &raw);
    a_waking_that_fails_is_everybodys(&world, &id);
}

fn whatever_needs_it_wakes_it(world: &World, id: &str, raw: &str) {
    let sandbox = format!("/v1/sandboxes/{id}");
    let mut woken = 1;
    let mut wakes = |what: &str, call: &dyn Fn()| {
        world.ok(["pause", id]);
        call();
        woken += 1;
        assert_eq!(
            events(&world.api(), id, "sandbox.resumed").len(),
            woken,
            "{what}"
        );
    };
    let ok = |status: u16| assert!((200..300).contains(&status), "{status}");
    wakes("a snapshot", &|| {
        ok(world.api().snapshot(id, &json!({})).status)
    });
    wakes("a fork", &|| {
        let forked = world.api().fork(id, &json!({}));
        ok(forked.status);
        let child = &forked.json()["children"][0]["sandbox"];
        world.ok(["rm", child["id"].as_str().expect("a child")]);
    });
    wakes("a list of ports", &|| {
        let ports = world.api().get(&format!("{sandbox}/ports")).text;
        assert!(ports.contains(r#""port":8080,"open":true"#), "{ports}");
    });
    wakes("a list of processes", &|| {
        ok(world.api().get(&format!("{sandbox}/processes")).status)
    });
    wakes("a copy", &|| {
        drop(world.ok(["cp", &format!("{id}:server.py"), "/dev/null"]))
    });
    wakes("a followed exec", &|| {
        assert_eq!(world.ok(["exec", id, "--", "echo", "hi"]), "hi")
    });
    wakes("a client that does not wait", &|| {
        // It hangs up at once; the sandbox wakes all the same.
        drop(connect(raw));
        world.await_state(id, "running");
    });
}

fn a_waking_that_fails_is_everybodys(world: &World, id: &str) {
    world.ok(["pause", id]);
    // The snapshot that holds it, and no other.
    let snapshots = world.state_dir().join("v1/snapshots");
    for snapshot in std::fs::read_dir(snapshots).unwrap().flatten() {
        let manifest = snapshot.path().join("manifest");
        if manifest.exists() {
            std::fs::remove_file(&manifest).unwrap();
            std::fs::write(&manifest, "PANDO-MANIFEST torn").unwrap();
        }
    }
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let (status, body) = exec(world, id);
                assert_eq!(
                    (status, code(&body).as_str()),
                    (422, "corrupt_snapshot"),
                    "{body}"
                );
                let (status, body) = get_port(world, id, 8080);
                assert_eq!(status, 422, "{body}");
                assert!(body.contains("is damaged"), "{body}");
            });
        }
    });
    assert!(is_paused(world, id));
}

//! What a person or a program may get wrong: each row is tried over REST or the command
//! line, its exact words are in `snapshots/`, and nothing is left behind by any.

use pando_testkit::{Api, Footprint, Options, World};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

#[test]
fn rest_refuses_with_a_status_a_code_and_a_hint() {
    let world = World::start();
    let id = world.ok(["create", "--name", "taken"]);
    // A warm connection and a first exec, so that what they keep is there before.
    world.sh(&id, "true");
    let before = Footprint::of(&world);
    let exec = format!("/v1/sandboxes/{id}/exec");
    let start = format!("/v1/sandboxes/{id}/start");
    let files = |query: &str| format!("/v1/sandboxes/{id}/files?{query}");
    let posts: Vec<(&str, &str, Value)> = vec![
        (
            "unknown template",
            "/v1/sandboxes",
            json!({ "template": "nope" }),
        ),
        (
            "malformed template",
            "/v1/sandboxes",
            json!({ "template": "a/b" }),
        ),
        (
            "CPUs not in the list",
            "/v1/sandboxes",
            json!({ "cpus": 3 }),
        ),
        (
            "memory not in the list",
            "/v1/sandboxes",
            json!({ "memory_mib": 500 }),
        ),
        ("malformed name", "/v1/sandboxes", json!({ "name": "a/b" })),
        (
            "name like an id",
            "/v1/sandboxes",
            json!({ "name": "s1234567890123456789" }),
        ),
        ("reserved name", "/v1/sandboxes", json!({ "name": "ls" })),
        (
            "unknown way to start",
            "/v1/sandboxes",
            json!({ "start": "cold" }),
        ),
        ("a number to start", "/v1/sandboxes", json!({ "start": 1 })),
        ("name taken", "/v1/sandboxes", json!({ "name": "taken" })),
        ("unknown field", "/v1/sandboxes", json!({ "cpu": 1 })),
        ("wrong type", "/v1/sandboxes", json!({ "cpus": "one" })),
        ("negative number", "/v1/sandboxes", json!({ "cpus": -1 })),
        ("not an object", "/v1/sandboxes", json!([1])),
        (
            "variable with =",
            "/v1/sandboxes",
            json!({ "env": { "A=B": "1" } }),
        ),
        (
            "environment too large",
            "/v1/sandboxes",
            json!({ "env": { "A": "x".repeat(200_000) } }),
        ),
        (
            "neither allow nor deny",
            "/v1/sandboxes",
            json!({ "egress": { "default": "maybe" } }),
        ),
        (
            "a URL to reach",
            "/v1/sandboxes",
            json!({ "egress": { "allow": ["https://example.org/"] } }),
        ),
        (
            "everything to reach",
            "/v1/sandboxes",
            json!({ "egress": { "allow": ["*"] } }),
        ),
        (
            "bits behind the prefix",
            "/v1/sandboxes",
            json!({ "egress": { "deny": ["10.1.2.3/16"] } }),
        ),
        (
            "a port that is none",
            "/v1/sandboxes",
            json!({ "egress": { "allow": ["example.org:0"] } }),
        ),
        (
            "too many rules",
            "/v1/sandboxes",
            json!({ "egress": { "allow": vec!["example.org"; 257] } }),
        ),
        (
            "an unknown field of a policy",
            "/v1/sandboxes",
            json!({ "egress": { "alow": [] } }),
        ),
        (
            "no such sandbox",
            "/v1/sandboxes/saaaaaaaaaaaaaaaaaaa/exec",
            json!({ "argv": ["true"] }),
        ),
        (
            "no such program",
            &exec,
            json!({ "argv": ["no-such-program"] }),
        ),
        (
            "a program that is a directory",
            &exec,
            json!({ "argv": ["/etc"] }),
        ),
        (
            "a program that may not be run",
            &exec,
            json!({ "argv": ["/etc/passwd"] }),
        ),
        (
            "no such directory",
            &exec,
            json!({ "argv": ["true"], "cwd": "/nope" }),
        ),
        (
            "no such user",
            &exec,
            json!({ "argv": ["true"], "user": "nobody-here" }),
        ),
        ("nothing to run", &exec, json!({})),
        ("empty argv", &exec, json!({ "argv": [] })),
        (
            "argv and shell",
            &exec,
            json!({ "argv": ["true"], "shell": "true" }),
        ),
        (
            "NUL in an argument",
            &exec,
            json!({ "argv": ["echo", "a\u{0}b"] }),
        ),
        (
            "negative timeout",
            &exec,
            json!({ "argv": ["true"], "timeout_s": -1 }),
        ),
        ("start what runs", &start, json!({})),
    ];
    let mut table = String::new();
    for (row, path, body) in &posts {
        table += &format!("{row}: {}\n", world.api().post(path, body).refusal());
    }
    let gets = [
        ("missing file", files("path=/nope")),
        ("path is a directory", files("path=/etc")),
        ("no path", files("")),
        ("no such route", "/v1/nope".to_owned()),
        (
            "no such sandbox's files",
            "/v1/sandboxes/saaaaaaaaaaaaaaaaaaa/files?path=/etc/hosts".to_owned(),
        ),
        (
            "an id that is none",
            "/v1/sandboxes/..%2f..%2fetc".to_owned(),
        ),
    ];
    for (row, path) in &gets {
        table += &format!("{row}: {}\n", world.api().get(path).refusal());
    }
    let patches = [
        (
            "no such sandbox's policy",
            "/v1/sandboxes/saaaaaaaaaaaaaaaaaaa".to_owned(),
            json!({ "egress": {} }),
        ),
        (
            "something else to change",
            format!("/v1/sandboxes/{id}"),
            json!({ "cpus": 2 }),
        ),
        (
            "no such template's policy",
            "/v1/templates/nope".to_owned(),
            json!({ "egress": {} }),
        ),
        (
            "nothing to change of a template",
            "/v1/templates/base".to_owned(),
            json!({}),
        ),
    ];
    for (row, path, body) in &patches {
        let body = body.to_string();
        let headers = [("content-type", "application/json")];
        let answer = world.api().send("PATCH", path, &headers, body.as_bytes());
        table += &format!("{row}: {}\n", answer.refusal());
    }
    table += &raw_rows(&world, &exec);
    assert_eq!(Footprint::of(&world), before);
    insta::assert_snapshot!(world.filtered(&[&id], &table));
}

/// Requests that are wrong below JSON.
fn raw_rows(world: &World, exec: &str) -> String {
    let api = world.api();
    let json = ("content-type", "application/json");
    let nobody = Api::new(world.url(), None);
    let stranger = Api::new(world.url(), Some(format!("pando_{}", "0".repeat(40))));
    let rows = [
        (
            "malformed JSON",
            api.send("POST", "/v1/sandboxes", &[json], b"{\"cpus\": "),
        ),
        (
            "not UTF-8",
            api.send("POST", "/v1/sandboxes", &[json], b"{\"name\": \"\xff\"}"),
        ),
        (
            "no content type",
            api.send("POST", exec, &[("content-type", "text/plain")], b"{}"),
        ),
        (
            "oversized body",
            api.send("POST", exec, &[json], &vec![b' '; 13 << 20]),
        ),
        (
            "wrong method",
            api.send("PATCH", "/v1/sandboxes", &[json], b"{}"),
        ),
        ("no key", nobody.get("/v1/sandboxes")),
        ("wrong key", stranger.get("/v1/sandboxes")),
        (
            "foreign Host",
            api.send("GET", "/v1/sandboxes", &[("host", "evil.example")], b""),
        ),
        (
            "foreign Origin",
            api.send(
                "POST",
                "/v1/sandboxes",
                &[json, ("origin", "http://evil.example")],
                b"{}",
            ),
        ),
        (
            "a guest's page",
            api.send(
                "POST",
                "/v1/sandboxes",
                &[
                    json,
                    ("origin", "http://80-saaaaaaaaaaaaaaaaaaa.localhost:7000"),
                ],
                b"{}",
            ),
        ),
    ];
    rows.iter()
        .map(|(row, answer)| format!("{row}: {}\n", answer.refusal()))
        .collect()
}

#[test]
fn the_command_line_refuses_with_an_exit_code_and_a_sentence() {
    let world = World::start();
    let id = world.ok(["create", "--name", "taken"]);
    world.sh(&id, "true");
    let before = Footprint::of(&world);
    let directory = world.scratch("directory");
    std::fs::create_dir(&directory).unwrap();
    let unknown = world.scratch("file.unknown");
    std::fs::write(&unknown, "text").unwrap();
    let (directory, unknown) = (
        directory.display().to_string(),
        unknown.display().to_string(),
    );
    let into = format!("{id}:/tmp/x");
    let missing = format!("{id}:/nope");
    let rows: Vec<(&str, Vec<&str>)> = vec![
        ("unknown template", vec!["create", "-t", "nope"]),
        ("unknown way to start", vec!["create", "--start", "cold"]),
        ("no such template to remove", vec!["template", "rm", "nope"]),
        ("no template to remove", vec!["template", "rm"]),
        (
            "malformed template to remove",
            vec!["template", "rm", "a/b"],
        ),
        ("CPUs not in the list", vec!["create", "--cpus", "3"]),
        ("memory not in the list", vec!["create", "--memory", "500"]),
        ("malformed name", vec!["create", "--name", "a/b"]),
        ("name taken", vec!["create", "--name", "taken"]),
        ("malformed variable", vec!["create", "-e", "novalue"]),
        (
            "no such sandbox",
            vec!["exec", "saaaaaaaaaaaaaaaaaaa", "true"],
        ),
        ("no such program", vec!["exec", &id, "no-such-program"]),
        (
            "no such directory",
            vec!["exec", "-w", "/nope", &id, "true"],
        ),
        (
            "no such user",
            vec!["exec", "-u", "nobody-here", &id, "true"],
        ),
        ("a terminal without one", vec!["exec", "-it", &id, "true"]),
        (
            "timeout",
            vec!["exec", "--timeout", "1", &id, "sleep", "100"],
        ),
        ("copy a missing file in", vec!["cp", "/nope", &into]),
        ("copy a missing file out", vec!["cp", &missing, "."]),
        ("copy between two hosts", vec!["cp", "a", "b"]),
        ("run a missing file", vec!["run", "/nope.py"]),
        ("run a directory", vec!["run", &directory]),
        ("run a file of no kind", vec!["run", &unknown]),
        (
            "run a missing program",
            vec!["run", "--", "no-such-program"],
        ),
        ("rm nothing", vec!["rm"]),
        ("rm a stranger", vec!["rm", "saaaaaaaaaaaaaaaaaaa"]),
        ("start what runs", vec!["start", &id]),
        ("no such command", vec!["fly"]),
    ];
    let mut table = String::new();
    for (row, args) in &rows {
        table += &format!("# {row}\n{}\n", world.run(args).refusal());
    }
    assert_eq!(Footprint::of(&world), before);
    let scratch = world.scratch("").display().to_string();
    insta::assert_snapshot!(
        world
            .filtered(&[&id], &table)
            .replace(scratch.trim_end_matches('/'), "<scratch>")
    );
}

#[test]
fn a_guest_without_a_shell_says_so() {
    let world = World::start();
    let id = world.create();
    world.sh(
        &id,
        "sudo rm -f /bin/sh /bin/bash /bin/dash /usr/bin/sh /usr/bin/bash /usr/bin/dash",
    );
    let answer = world.api().post(
        &format!("/v1/sandboxes/{id}/exec"),
        &json!({ "shell": "true" }),
    );
    insta::assert_snapshot!(world.filtered(&[&id], &answer.refusal()));
    assert_eq!(
        world.exec(&id, &json!({ "argv": ["/bin/true"] }))["exit_code"],
        0
    );
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let world = World::with(Options {
        without_template: true,
        ..Options::default()
    });
    let mut table = String::new();
    let other = world.scratch("other");
    let other = other.display().to_string();
    let elsewhere = ["--state-dir", &other];
    let port = world.url().rsplit(':').next().unwrap().to_owned();
    let address = format!("127.0.0.1:{port}");
    table += &format!(
        "# port taken\n{}\n",
        world
            .run(["serve", "--listen", &address].iter().chain(&elsewhere))
            .refusal()
    );
    table += &format!(
        "# already running\n{}\n",
        world.run(["serve", "--listen", "127.0.0.1:0"]).refusal()
    );

    for (row, name, value) in [
        ("too many to keep warm", "PANDO_WARM", "65"),
        ("a word to keep warm", "PANDO_WARM", "some"),
        ("a reserve that is no number", "PANDO_RESERVE_MIB", "1G"),
    ] {
        let mut command = world.command(
            ["serve", "--listen", "127.0.0.1:0"]
                .iter()
                .chain(&elsewhere),
        );
        let output = command.env(name, value).output().unwrap();
        table += &format!(
            "# {row}\nexit {}: {}\n",
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }

    let old = world.scratch("qemu-old");
    std::fs::write(
        &old,
        "#!/bin/sh\necho 'QEMU emulator version 7.2.17 (Debian 1:7.2+dfsg-7+deb12u16)'\n",
    )
    .unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (row, qemu) in [
        ("QEMU too old", old.as_path()),
        ("QEMU missing", Path::new("/nope/qemu")),
    ] {
        let mut command = world.command(
            ["serve", "--listen", "127.0.0.1:0"]
                .iter()
                .chain(&elsewhere),
        );
        let output = command.env("PANDO_QEMU", qemu).output().unwrap();
        table += &format!(
            "# {row}\nexit {}: {}\n",
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    table += &format!("# no template yet\n{}\n", world.run(["create"]).refusal());
    let mut command = world.command(["ls"]);
    let output = command
        .env("PANDO_URL", "http://127.0.0.1:1")
        .output()
        .unwrap();
    table += &format!(
        "# no daemon\nexit {}: {}\n",
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let scratch = world.scratch("").display().to_string();
    insta::assert_snapshot!(
        world
            .filtered(&[&address], &table)
            .replace(scratch.trim_end_matches('/'), "<scratch>")
    );
}

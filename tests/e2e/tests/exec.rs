//! Running programs in a sandbox: blocking exec over REST.

use pando_testkit::World;
use serde_json::json;

#[test]
fn exec_returns_the_programs_own_result() {
    let world = World::start();
    let id = world.create();
    let answer = world.exec(
        &id,
        &json!({ "argv": ["sh", "-c", "echo out; echo err >&2; exit 7"] }),
    );
    assert_eq!(answer["exit_code"], 7);
    assert_eq!(answer["signal"], json!(null));
    assert_eq!(
        (answer["stdout"].as_str(), answer["stderr"].as_str()),
        (Some("out\n"), Some("err\n"))
    );
    assert_eq!(
        (&answer["timed_out"], &answer["truncated"]),
        (&json!(false), &json!(false))
    );
    assert!(answer["duration_ms"].as_f64().unwrap() > 0.0);

    let killed = world.exec(&id, &json!({ "shell": "kill -TERM $$" }));
    assert_eq!(
        (&killed["exit_code"], &killed["signal"]),
        (&json!(null), &json!(15)),
        "{killed}"
    );
}

#[test]
fn a_process_finds_the_usual_environment() {
    let world = World::start();
    let id = world.ok(["create", "-e", "FROM_CREATE=1", "-e", "BOTH=create"]);
    let answer = world.exec(&id, &json!({
        "shell": "echo $HOME $USER $LOGNAME $SHELL $LANG $FROM_CREATE $BOTH; pwd; id -un; id -u; date +%Z",
        "env": { "BOTH": "exec" },
    }));
    assert_eq!(
        answer["stdout"],
        "/home/user user user /bin/bash C.UTF-8 1 exec\n/home/user\nuser\n1000\nUTC\n",
        "{answer}"
    );
    let root = world.exec(
        &id,
        &json!({ "argv": ["sh", "-c", "echo $HOME; pwd; id -u"], "user": "root", "cwd": "/etc" }),
    );
    assert_eq!(root["stdout"], "/root\n/etc\n0\n");
    assert_eq!(world.sh(&id, "sudo -n id -u"), "0");
}

#[test]
fn stdin_reaches_the_program_and_ends() {
    let world = World::start();
    let id = world.create();
    let answer = world.exec(
        &id,
        &json!({ "argv": ["sh", "-c", "cat; echo end"], "stdin": "a line\n" }),
    );
    assert_eq!(answer["stdout"], "a line\nend\n");
    let none = world.exec(&id, &json!({ "argv": ["cat"] }));
    assert_eq!(
        (&none["exit_code"], &none["stdout"]),
        (&json!(0), &json!(""))
    );
}

#[test]
fn a_timeout_kills_the_whole_process_group_and_keeps_what_was_said() {
    let world = World::start();
    let id = world.create();
    let answer = world.exec(
        &id,
        &json!({
            "argv": ["sh", "-c", "echo before; sleep 1000 & echo $! > /tmp/child; sleep 1001"],
            "timeout_s": 2,
        }),
    );
    assert_eq!(
        (&answer["timed_out"], &answer["stdout"], &answer["signal"]),
        (&json!(true), &json!("before\n"), &json!(9)),
        "{answer}"
    );
    let left = world.sh(
        &id,
        "if kill -0 $(cat /tmp/child) 2>/dev/null; then echo alive; else echo dead; fi",
    );
    assert_eq!(left, "dead");
}

#[test]
fn a_process_left_behind_neither_holds_the_call_nor_dies() {
    let world = World::start();
    let id = world.create();
    let answer = world.exec(&id, &json!({ "shell": "sleep 300 & echo $!" }));
    let pid = answer["stdout"].as_str().unwrap().trim().to_owned();
    assert!(
        answer["duration_ms"].as_f64().unwrap() < 10_000.0,
        "{answer}"
    );
    assert_eq!(world.sh(&id, &format!("cat /proc/{pid}/comm")), "sleep");
}

#[test]
fn a_gibibyte_of_output_is_bounded_and_said_to_be() {
    let world = World::start();
    let id = world.create();
    let answer = world.exec(&id, &json!({ "argv": ["sh", "-c", "head -c 1073741824 /dev/zero | tr '\\0' x; echo done >&2"] }));
    assert_eq!(
        (
            &answer["exit_code"],
            &answer["truncated"],
            &answer["stderr"]
        ),
        (&json!(0), &json!(true), &json!("done\n"))
    );
    let stdout = answer["stdout"].as_str().unwrap();
    assert_eq!(stdout.len(), 8 << 20);
    let rss = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap()
            .to_owned();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >> 10
    };
    assert!(
        rss(world.daemon_pid()) < 256,
        "the daemon took {} MiB",
        rss(world.daemon_pid())
    );
    assert!(
        rss(world.shim_pid(&id)) < 256,
        "the shim took {} MiB",
        rss(world.shim_pid(&id))
    );
}

#[test]
fn output_that_is_not_text_comes_as_base64() {
    use base64::Engine as _;
    let world = World::start();
    let id = world.create();
    let answer = world.exec(&id, &json!({ "argv": ["printf", "\\377\\376a"] }));
    let encoded = answer["stdout_base64"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(
        base64::engine::general_purpose::STANDARD
            .decode(encoded)
            .unwrap(),
        b"\xff\xfea"
    );
    assert_eq!(answer["stdout"], json!(null));
}

#[test]
fn fifty_execs_at_once_are_all_answered() {
    let world = World::start();
    let id = world.create();
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..50)
            .map(|number| {
                let (world, id) = (&world, &id);
                scope.spawn(move || (number, world.sh(id, &format!("echo {number}"))))
            })
            .collect();
        for call in calls {
            let (number, said) = call.join().unwrap();
            assert_eq!(said, number.to_string());
        }
    });
}

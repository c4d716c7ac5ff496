//! Sandboxes, and what is done in them, outlive the daemon.

use pando_testkit::{Answer, Api, World, pando};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Far above what anything here takes, so that what never comes is a failed test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the next daemon where the last one was.
fn start_again(world: &mut World) {
    let address = world.url().trim_start_matches("http://").to_owned();
    world.start_daemon_at(&address);
}

fn exec_path(id: &str) -> String {
    format!("/v1/sandboxes/{id}/exec")
}

/// The directories of sandboxes; one that went back or was paused has another than its id.
fn homes(world: &World) -> Vec<String> {
    let homes = std::fs::read_dir(world.state_dir().join("v1/sandboxes")).unwrap();
    let names = homes.map(|home| home.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// The processes that a sandbox knows.
fn processes(world: &World, id: &str) -> Vec<Value> {
    let answer = world.api().get(&format!("/v1/sandboxes/{id}/processes"));
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["processes"].as_array().unwrap().clone()
}

/// Waits until the sandbox has a file of this name in the user's home.
fn await_file(world: &World, id: &str, name: &str) {
    // The guest's own wait: one call, and none of it is seen by what is tested.
    let line = format!("while ! test -e ~/{name}; do sleep 0.02; done");
    world.exec(id, &json!({ "shell": line, "timeout_s": 60 }));
}

/// Asks until there is an answer that a daemon's end did not cut off.
fn ask_again(api: &Api, path: &str, body: &Value) -> Answer {
    let began = std::time::Instant::now();
    loop {
        match api.try_post(path, Some(body)) {
            Ok(answer) if answer.status != 503 => return answer,
            other => assert!(began.elapsed() < PATIENCE, "no answer: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_exec_that_the_daemons_end_cuts_off_is_told_its_process_and_runs_on() {
    let mut world = World::start();
    let id = world.create();
    let request = json!({
        "shell": "echo once >> ~/runs; seq 1 40000; touch ~/up; while ! test -e ~/go; do sleep 0.02; done; echo end; exit 7",
        "request_id": "cut-off.1",
    });
    let (api, path) = (world.api(), exec_path(&id));
    let cut = std::thread::scope(|scope| {
        let call = scope.spawn(|| api.post(&path, &request));
        await_file(&world, &id, "up");
        // In order, so that there is somebody left to answer.
        let mut ended = Command::new("kill");
        let told = ended
            .args(["-TERM", &world.daemon_pid().to_string()])
            .status();
        assert!(told.unwrap().success());
        call.join().unwrap()
    });
    world.await_daemons_end();
    assert_eq!(cut.status, 503, "{}", cut.text);
    let error = cut.json()["error"].clone();
    assert_eq!(error["code"], "daemon_restarted", "{error}");
    let process = error["process_id"].as_str().unwrap().to_owned();

    start_again(&mut world);
    let known = processes(&world, &id);
    let found = known.iter().find(|one| one["process_id"] == *process);
    assert_eq!(found.unwrap()["running"], true, "{known:?}");
    // Who comes back by the process gets all of it, to the end.
    let (mut child, lines) = attached(&world, &id, &process);
    world.sh(&id, "touch ~/go");
    let said: Vec<_> = lines.map(Result::unwrap).collect();
    let wanted: Vec<_> = (1..=40_000)
        .map(|number| number.to_string())
        .chain(["end".to_owned()])
        .collect();
    assert!(said == wanted, "{} lines", said.len());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    // And so does who asks again, as often as it likes.
    for _ in 0..2 {
        let answer = world.exec(&id, &request);
        assert_eq!(
            (&answer["exit_code"], &answer["process_id"]),
            (&json!(7), &json!(process))
        );
        assert_eq!(answer["truncated"], false);
        assert_eq!(answer["stdout"].as_str().unwrap().lines().count(), 40_001);
    }
    assert_eq!(world.sh(&id, "cat ~/runs"), "once");
}

#[test]
fn a_request_with_an_id_runs_once_however_often_and_of_whom_it_is_asked() {
    let mut world = World::start();
    let id = world.create();
    let (api, path) = (world.api(), exec_path(&id));
    let request = json!({
        "shell": "echo x >> ~/runs; touch ~/up; sleep 2; cat; wc -l < ~/runs",
        "stdin": "in\n",
        "request_id": "a",
    });
    let lost = std::thread::scope(|scope| {
        let call = scope.spawn(|| api.try_post(&path, Some(&request)));
        await_file(&world, &id, "up");
        world.kill_daemon();
        call.join().unwrap()
    });
    assert!(lost.is_err(), "a killed daemon answers nobody: {lost:?}");
    start_again(&mut world);
    assert_eq!(world.exec(&id, &request)["stdout"], "in\n1\n");

    // Twenty at the same moment.
    let request =
        json!({ "shell": "echo x >> ~/more; sleep 0.3; wc -l < ~/more", "request_id": "b" });
    std::thread::scope(|scope| {
        let ask = || scope.spawn(|| api.post(&path, &request));
        let calls: Vec<_> = (0..20).map(|_| ask()).collect();
        for call in calls {
            let answer = call.join().unwrap();
            assert_eq!(answer.json()["stdout"], "1\n", "{}", answer.text);
        }
    });

    for other in [
        json!({ "shell": "echo other", "request_id": "b" }),
        json!({ "shell": "echo x >> ~/more; sleep 0.3; wc -l < ~/more", "request_id": "b", "stdin": "x" }),
    ] {
        let answer = api.post(&path, &other);
        assert_eq!(answer.status, 409, "{}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "request_id_taken");
    }
    // What could not be started may be asked for again.
    let missing = json!({ "argv": ["/home/user/late"], "request_id": "c" });
    assert_eq!(
        api.post(&path, &missing).json()["error"]["code"],
        "cannot_run"
    );
    world.sh(
        &id,
        "printf '#!/bin/sh\\necho there\\n' > ~/late && chmod +x ~/late",
    );
    assert_eq!(world.exec(&id, &missing)["stdout"], "there\n");
    // Without an id each is a new one.
    let plain = json!({ "shell": "echo x >> ~/plain; wc -l < ~/plain" });
    assert_eq!(world.exec(&id, &plain)["stdout"], "1\n");
    assert_eq!(world.exec(&id, &plain)["stdout"], "2\n");

    for bad in [
        "",
        "a b",
        "ä",
        "../x",
        "a\n",
        "a\u{0}",
        "{}",
        "%41",
        "a/b",
        &"a".repeat(65),
    ] {
        let answer = api.post(&path, &json!({ "argv": ["true"], "request_id": bad }));
        assert_eq!(answer.status, 400, "{bad:?}: {}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "invalid_request", "{bad:?}");
    }
    let answer = api.post(&path, &json!({ "argv": ["true"], "request_id": 5 }));
    assert_eq!(answer.status, 400, "{}", answer.text);
}

/// `pando exec` that follows a process which runs.
fn attached(world: &World, id: &str, process: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    lines_of(world.command(["exec", "--attach", process, id]))
}

fn lines_of(mut command: Command) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

#[test]
fn a_followed_program_loses_no_line_of_its_last_mebibyte() {
    let mut world = World::start();
    let id = world.create();
    // Some 860 KiB while there is no daemon.
    let line = "seq 1 1000; sleep 1; seq 1001 130000; touch ~/said; while ! test -e ~/go; do sleep 0.02; done; echo end; exit 9";
    let (mut child, mut lines) = lines_of(world.command(["exec", &id, "sh", "-c", line]));
    for number in 1..=1000 {
        assert_eq!(lines.next().unwrap().unwrap(), number.to_string());
    }
    world.kill_daemon();
    // Nobody can be asked when it has said it: what is late is read as it comes.
    std::thread::sleep(Duration::from_secs(3));
    start_again(&mut world);
    for number in 1001..=130_000 {
        assert_eq!(lines.next().unwrap().unwrap(), number.to_string());
    }
    world.sh(&id, "touch ~/go");
    assert_eq!(lines.next().unwrap().unwrap(), "end");
    assert!(lines.next().is_none());
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_shell_on_a_terminal_goes_on_under_the_next_daemon() {
    let mut world = World::start();
    let id = world.create();
    // `script` is the terminal.
    let line = format!("{} shell {id}", pando().display());
    let ours = world.command([""; 0]);
    let mut command = Command::new("script");
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    let mut screen = BufReader::new(child.stdout.take().unwrap());
    // Reads to the line that is this, or ends like this, and no more. What is typed is echoed,
    // so it is written otherwise; the shell's own controls stand before a carriage return.
    let mut await_line = |whole: bool, wanted: &str| {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            assert!(
                screen.read_until(b'\n', &mut bytes).unwrap() > 0,
                "no {wanted}"
            );
            let text = String::from_utf8_lossy(&bytes);
            let line = text.trim_end_matches(['\r', '\n']).rsplit('\r').next();
            let line = line.unwrap_or_default();
            if line == wanted || !whole && line.ends_with(wanted) {
                return;
            }
        }
    };
    writeln!(keyboard, "X=kept; echo first-$((1+1))").unwrap();
    await_line(true, "first-2");
    world.kill_daemon();
    await_line(false, "waiting for it");
    start_again(&mut world);
    // Typed into the shell that was there before: it knows its variable.
    let (api, path) = (world.api(), format!("/v1/sandboxes/{id}/processes"));
    assert_eq!(api.get(&path).json()["processes"][0]["running"], true);
    writeln!(keyboard, "seq 1 20000; echo $X-$((2+2))").unwrap();
    for number in 1..=20_000 {
        await_line(true, &number.to_string());
    }
    await_line(true, "kept-4");
    writeln!(keyboard, "exit 5").unwrap();
    let mut rest = Vec::new();
    screen.read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn another_program_file_takes_over_what_the_one_before_started() {
    let mut world = World::start();
    let id = world.create();
    let shim = world.shim_pid(&id);
    let pid = world.sh(&id, "sleep 1000 >/dev/null 2>&1 & echo $!");
    for orderly in [true, false] {
        match orderly {
            true => world.end_daemon(),
            false => world.kill_daemon(),
        }
        world.upgrade();
        world.start_daemon();
        assert_eq!(world.shim_pid(&id), shim, "its shim is the one that it had");
        assert_eq!(world.sh(&id, &format!("cat /proc/{pid}/comm")), "sleep");
    }
    world.ok(["snapshot", &id, "--name", "kept"]);
    world.ok(["pause", &id]);
    world.ok(["resume", &id]);
    let home = homes(&world).remove(0);
    assert_ne!(world.shim_pid(&home), shim, "it is the new program's");
    assert_eq!(world.sh(&id, &format!("cat /proc/{pid}/comm")), "sleep");
    let child = world.ok(["create", "--from", "kept"]);
    assert_eq!(world.sh(&child, &format!("cat /proc/{pid}/comm")), "sleep");
}

#[test]
fn a_shim_that_hangs_keeps_no_daemon_from_the_others() {
    let mut world = World::start();
    let (hung, well) = (world.create(), world.create());
    let signal = |name: &str, pid: u32| {
        let mut kill = Command::new("kill");
        assert!(
            kill.args([name, &pid.to_string()])
                .status()
                .unwrap()
                .success()
        );
    };
    let shim = world.shim_pid(&hung);
    world.kill_daemon();
    signal("-STOP", shim);
    world.start_daemon();
    assert_eq!(world.sh(&well, "echo up"), "up");
    assert_eq!(
        world.inspect(&hung)["state"],
        "running",
        "nobody knows it to have failed"
    );
    signal("-CONT", shim);
    assert_eq!(world.sh(&hung, "echo up"), "up");
}

/// What goes on in a sandbox while daemons come and go.
struct Busy {
    id: String,
    writer: Child,
    lines: Lines<BufReader<ChildStdout>>,
    raw: String,
}

impl Busy {
    fn start(world: &World) -> Self {
        let id = world.create();
        world.sh(&id, "mkdir ~/www; echo served > ~/www/index.html; cd ~/www; nohup python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & until curl -sf http://127.0.0.1:8000/ >/dev/null; do sleep 0.05; done");
        let raw = world.ok(["port", &id, "8000"]);
        let line = "i=0; while ! test -e ~/enough; do i=$((i+1)); echo $i; sleep 0.01; done";
        let (writer, lines) = lines_of(world.command(["exec", &id, "sh", "-c", line]));
        Self {
            id,
            writer,
            lines,
            raw,
        }
    }

    /// The server in it answers at its raw port, which is the one it was, and by its name.
    fn serves(&self, world: &World) {
        let daemon = world.url().trim_start_matches("http://").to_owned();
        let named = format!("8000-{}.localhost", self.id);
        for (address, host) in [(&self.raw, "localhost"), (&daemon, &*named)] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(stream, "GET /index.html HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(
                answer.ends_with("served\n"),
                "{host} at {address}: {answer}"
            );
        }
    }

    /// Every line that its writer wrote came, once and in order.
    fn ends(mut self, world: &World) {
        world.sh(&self.id, "touch ~/enough");
        let mut count = 0;
        for line in self.lines {
            count += 1;
            assert_eq!(line.unwrap(), count.to_string());
        }
        assert!(count > 100, "{count} lines");
        assert_eq!(self.writer.wait().unwrap().code(), Some(0));
    }
}

/// Counts in a sandbox, one request after the other, whether there is a daemon or not.
fn count_on(api: &Api, id: &str, enough: &AtomicBool) -> u64 {
    let mut count = 0;
    while !enough.load(Ordering::Relaxed) {
        count += 1;
        let body = json!({ "shell": format!("echo {count} >> ~/counted"), "request_id": format!("count-{count}") });
        let answer = ask_again(api, &exec_path(id), &body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json()["exit_code"], 0, "{}", answer.text);
    }
    count
}

/// Ends the counting when it is dropped.
struct Enough<'e>(&'e AtomicBool);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The number that `/metrics` has under a name.
fn metric(world: &World, name: &str) -> f64 {
    let text = world.api().get("/metrics").text;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in:\n{text}"))
}

#[test]
fn a_daemon_that_is_killed_over_and_over_under_load_loses_nothing() {
    let rounds = match std::env::var_os("PANDO_TEST_FULL") {
        Some(_) => 50,
        None => 10,
    };
    let mut world = World::start();
    let busy: Vec<_> = (0..3).map(|_| Busy::start(&world)).collect();
    let stopped = world.create();
    world.ok(["stop", &stopped]);
    let shims: Vec<_> = busy.iter().map(|one| world.shim_pid(&one.id)).collect();
    let (api, enough) = (world.api(), AtomicBool::new(false));
    let counted = std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_on(&api, &busy[0].id, &enough));
        // Also when this fails: the scope waits for who counts.
        let ending = Enough(&enough);
        for round in 0..rounds {
            world.kill_daemon();
            start_again(&mut world);
            let took = metric(&world, "pando_adoption_duration_seconds");
            assert!(took < 1.0, "round {round}: taking over took {took} s");
            assert_eq!(
                metric(&world, "pando_adopted_sandboxes"),
                3.0,
                "round {round}"
            );
            for (one, shim) in busy.iter().zip(&shims) {
                assert_eq!(world.inspect(&one.id)["state"], "running", "round {round}");
                assert_eq!(world.shim_pid(&one.id), *shim, "round {round}");
                one.serves(&world);
            }
            assert_eq!(world.inspect(&stopped)["state"], "stopped", "round {round}");
        }
        drop(ending);
        counting.join().unwrap()
    });
    assert_eq!(world.ok(["ls", "-q"]).lines().count(), 4);
    let wanted: Vec<_> = (1..=counted).map(|number| number.to_string()).collect();
    let found = world.sh(&busy[0].id, "cat ~/counted");
    assert!(
        found.lines().eq(wanted.iter().map(String::as_str)),
        "{counted} were counted: {found}"
    );
    for one in busy {
        one.ends(&world);
    }
}

#[test]
fn a_failed_sandbox_says_its_last_words_and_leaves_its_snapshots() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, "echo before > ~/file; sync");
    world.ok(["snapshot", &id, "--name", "kept"]);
    assert!(
        world.inspect(&id).get("last_console").is_none(),
        "nothing failed yet"
    );
    world.api().post(
        &exec_path(&id),
        &json!({ "shell": "printf '\\033[31mred\\007\\n' | sudo tee /dev/console; echo c | sudo tee /proc/sysrq-trigger; sleep 100" }),
    );
    let failed = world.await_state(&id, "failed");
    let lines: Vec<_> = failed["last_console"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("sysrq triggered crash")),
        "{lines:?}"
    );
    assert!(lines.len() <= 80 && lines.iter().all(|line| line.chars().count() <= 240));
    assert!(
        lines.iter().all(|line| !line.contains(char::is_control)),
        "{lines:?}"
    );

    let child = world.ok(["create", "--from", "kept"]);
    assert_eq!(world.sh(&child, "cat ~/file"), "before");
    world.ok(["rollback", &id, "kept"]);
    assert_eq!(world.sh(&id, "cat ~/file"), "before");
    let home = homes(&world).into_iter().find(|home| *home != child);
    let vmm = world.vmm_pid(&home.unwrap()).to_string();
    let killed = Command::new("kill").args(["-9", &vmm]).status();
    assert!(killed.unwrap().success());
    let failed = world.await_state(&id, "failed");
    let reason = failed["state_reason"].as_str().unwrap();
    assert!(reason.starts_with("QEMU died: signal 9, "), "{reason}");
    assert!(reason.contains("out-of-memory killer"), "{reason}");
    world.ok(["rm", &id]);
    assert_eq!(homes(&world), [child], "its files are gone");
    let again = world.ok(["create", "--from", "kept"]);
    assert_eq!(world.sh(&again, "cat ~/file"), "before");
}

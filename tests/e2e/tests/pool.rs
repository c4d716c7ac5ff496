//! Clones that wait: they are claimed, refilled, given up, and never to be told from others.

use pando_testkit::{Options, World, available_mib};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A fill takes a second; other tests may keep the machine busy.
const PATIENCE: Duration = Duration::from_secs(120);

fn world(warm: usize) -> World {
    world_with(warm, &[])
}

/// A world whose pool is full.
fn world_with(warm: usize, env: &[(&str, String)]) -> World {
    let mut env: Vec<_> = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    env.push(("PANDO_WARM".to_owned(), warm.to_string()));
    let world = World::with(Options {
        env,
        ..Options::default()
    });
    world.await_full_pool();
    world
}

fn is_full(pool: &Value) -> bool {
    let slots = pool["slots"].as_array().expect("a list");
    slots
        .iter()
        .all(|slots| slots["waiting"] == slots["wanted"])
}

fn waiting(pool: &Value) -> u64 {
    let slots = pool["slots"].as_array().expect("a list");
    slots
        .iter()
        .map(|slots| slots["waiting"].as_u64().expect("a number"))
        .sum()
}

/// Ids of what has a directory: sandboxes and slots.
fn directories(world: &World) -> BTreeSet<String> {
    let dir = world.state_dir().join("v1/sandboxes");
    let entries = fs::read_dir(dir).expect("it is there").flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Ids of the slots of this kind.
fn slots(world: &World, kind: &str) -> Vec<String> {
    let is_slot = |id: &String| {
        let text = fs::read(world.sandbox_dir(id).join("spec.json")).unwrap_or_default();
        let spec: Value = serde_json::from_slice(&text).unwrap_or_default();
        spec["slot"]["wait"] == kind
    };
    let known: Vec<_> = world.ok(["ls", "-q"]).lines().map(str::to_owned).collect();
    let all = directories(world).into_iter();
    all.filter(|id| !known.contains(id) && is_slot(id))
        .collect()
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.expect("`kill` runs").success());
}

fn create(world: &World, request: &Value) -> String {
    let answer = world.api().post("/v1/sandboxes", request);
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()["id"].as_str().expect("an id").to_owned()
}

/// All that a program can easily see of the machine it is on, but for its name.
///
/// Of the process numbers those that nobody has any more: the kernel's own threads take some
/// when it suits them, but they live on.
const FINGERPRINT: &str = r"
below=$(ls -d /proc/[0-9]*/task/[0-9]* | sed 's|.*/||' | awk -v me=$$ '$1 < me' | wc -l)
echo numbers of the dead $(($$ - below)); cat /proc/self/cgroup; env | sort; id; umask; ulimit -a
ps -eo pid,ppid,user,stat,args --no-headers | grep -v -e ' ps -eo' -e '\['
mount; ls -lA /tmp /run /var/tmp /home/user /root /dev/shm 2>&1 | grep -v total
cat /etc/hosts /etc/hostname
sudo find / -xdev -newermt @0 -newer /etc/machine-id -type f 2>/dev/null | sort";

#[test]
fn a_claimed_clone_looks_like_one_that_was_loaded() {
    let world = world(1);
    let request = json!({ "env": { "COLOUR": "green" }, "labels": { "a": "b" }, "name": "web" });
    let claimed = create(&world, &request);
    assert_eq!(world.pool()["claims"]["warm"], 1);
    let described = world.inspect(&claimed);
    assert_eq!(described["name"], "web");
    assert_eq!(described["state"], "running");
    assert_eq!(described["labels"], json!({ "a": "b" }));
    assert_eq!(
        world.sh("web", "echo $COLOUR; hostname"),
        format!("green\n{claimed}")
    );
    let loaded = create(
        &world,
        &json!({ "env": { "COLOUR": "green" }, "start": "snapshot" }),
    );
    assert_eq!(
        world.sh(&loaded, "echo $COLOUR; hostname"),
        format!("green\n{loaded}")
    );
    let seen = [&claimed, &loaded].map(|id| world.sh(id, FINGERPRINT).replace(id, "ID"));
    assert_eq!(seen[0], seen[1]);
    let isolation = |id: &str| {
        world.inspect(id)["isolation"]["layers"]
            .as_array()
            .map(Vec::len)
    };
    assert_eq!(isolation(&claimed), isolation(&loaded));
    let events = world.ok(["events", "--json"]);
    let kinds: Vec<_> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter(|event| event["subject"] == claimed.as_str())
        .map(|event| event["kind"].clone())
        .collect();
    assert_eq!(kinds, ["sandbox.creating", "sandbox.running"]);
}

#[test]
fn waiting_clones_share_nothing_secret_and_know_the_time() {
    let world = world(2);
    let mut seen = BTreeSet::new();
    let line = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; \
                python3 -c 'import uuid, os; print(uuid.uuid4(), os.urandom(8).hex())'; \
                cat /etc/machine-id; hostname";
    for _ in 0..2 {
        let id = world.create();
        for word in world.sh(&id, line).lines() {
            assert!(seen.insert(word.to_owned()), "two clones gave {word}");
        }
    }
    assert_eq!(world.pool()["claims"]["warm"], 2);
}

#[test]
fn a_clone_that_waited_is_none_the_older() {
    let world = world(1);
    let waited = match std::env::var_os("PANDO_TEST_FULL") {
        Some(_) => Duration::from_secs(3600),
        None => Duration::from_secs(20),
    };
    std::thread::sleep(waited);
    let id = world.create();
    let host = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64()
    };
    let before = host();
    let guest: f64 = world.sh(&id, "date +%s.%N").parse().unwrap();
    let after = host();
    assert!(
        before - 0.05 <= guest && guest <= after + 0.05,
        "guest {guest}, host {before} to {after}"
    );
    let loaded = create(&world, &json!({ "start": "snapshot" }));
    let uptime = |id: &str| -> f64 { world.sh(id, "cut -d' ' -f1 /proc/uptime").parse().unwrap() };
    let ages = (uptime(&id), uptime(&loaded));
    assert!(
        ages.0 < ages.1 + waited.as_secs_f64() / 2.0,
        "it says {} s, one that did not wait {} s",
        ages.0,
        ages.1
    );
    // A timer that was set before the wait, and one after it, are on time.
    let begun = Instant::now();
    world.sh(&id, "sleep 1");
    let slept = begun.elapsed().as_secs_f64();
    assert!((0.95..3.0).contains(&slept), "a second took {slept} s");
    // The kernel noticed nothing: no stall, no hung task, no clock that is unstable. What a
    // busy host makes it say of slow interrupts, either may say.
    let said = |id: &str| -> BTreeSet<String> {
        let lines = world.sh(id, "sudo dmesg");
        lines.lines().map(str::to_owned).collect()
    };
    let words = [
        "stall",
        "hung",
        "blocked for",
        "lockup",
        "unstable",
        "watchdog",
        "rcu",
    ];
    for line in said(&id).difference(&said(&loaded)) {
        let complaint = words.iter().any(|word| line.to_lowercase().contains(word));
        assert!(!complaint, "{line}");
    }
}

#[test]
fn a_claim_is_followed_by_a_refill() {
    let world = world(2);
    let before: BTreeSet<_> = slots(&world, "warm").into_iter().collect();
    assert_eq!(before.len(), 2);
    let id = world.create();
    assert!(
        before.contains(&id),
        "a slot has the id of the sandbox it becomes"
    );
    world.await_full_pool();
    let after: BTreeSet<_> = slots(&world, "warm").into_iter().collect();
    assert_eq!(after.len(), 2);
    assert!(!after.contains(&id));
    assert_eq!(world.sh(&id, "echo on"), "on");
}

#[test]
fn more_requests_than_clones_are_all_served() {
    let world = world(1);
    let ids: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| create(&world, &json!({}))))
            .collect();
        let made = threads
            .into_iter()
            .map(|thread| thread.join().expect("made"));
        made.collect()
    });
    for id in &ids {
        assert_eq!(world.sh(id, "hostname"), *id);
    }
    let claims = world.pool()["claims"].clone();
    let count = |kind: &str| claims[kind].as_u64().expect("a number");
    assert_eq!(count("warm"), 1, "{claims}");
    assert_eq!(count("bound"), 1, "{claims}");
    assert_eq!(count("generic"), 1, "{claims}");
    assert_eq!(count("none"), 1, "{claims}");
    world.await_full_pool();
}

#[test]
fn without_a_pool_nothing_waits() {
    let world = World::start();
    world.create();
    let pool = world.pool();
    assert_eq!(pool["slots"], json!([]));
    assert_eq!(
        pool["claims"],
        json!({ "warm": 0, "bound": 0, "generic": 0, "none": 1 })
    );
    assert_eq!(directories(&world).len(), 1);
}

/// Runs alone: what others allocate meanwhile would be the pressure that it makes.
#[test]
fn under_memory_pressure_the_pool_gives_way_and_comes_back() {
    let reserve = available_mib() - 2048;
    let world = world_with(2, &[("PANDO_RESERVE_MIB", reserve.to_string())]);
    let hog = vec![1_u8; 4096 << 20];
    let pool_now = world.await_pool("empty", |pool| waiting(pool) == 0 && pool["filling"] == 0);
    assert_eq!(pool_now["limited_by"], "the host's memory");
    assert_eq!(directories(&world).len(), 0, "a slot's files are left");
    let id = world.create();
    assert_eq!(world.sh(&id, "echo on"), "on");
    assert_eq!(world.pool()["claims"]["none"], 1);
    assert!(hog.iter().step_by(4096).all(|byte| *byte == 1));
    drop(hog);
    let pool = world.await_full_pool();
    assert_eq!(pool["limited_by"], Value::Null);
}

#[test]
fn a_template_that_is_removed_takes_its_clones_along() {
    let world = world(2);
    let kept = world.create();
    world.await_full_pool();
    assert_eq!(world.ok(["template", "rm", "base"]), "base");
    let deadline = Instant::now() + PATIENCE;
    while directories(&world).len() > 1 {
        assert!(
            Instant::now() < deadline,
            "slots are left: {:?}",
            directories(&world)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(world.pool()["slots"], json!([]));
    let refused = world.run(["create"]);
    assert!(
        refused.stderr.contains("template `base:latest` not found")
            || refused.stderr.contains("template `base` not found"),
        "{refused:?}"
    );
    let again = world.run(["template", "rm", "base"]);
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("not found"), "{again:?}");
    assert_eq!(world.sh(&kept, "echo on"), "on");
    world.ok(["template", "bake", "base"]);
    world.await_full_pool();
    world.create();
    assert_eq!(world.pool()["claims"]["warm"], 2);
}

#[test]
fn the_next_daemon_goes_on_with_the_clones_that_wait() {
    let mut world = world(2);
    let before = slots(&world, "warm");
    let processes: Vec<u32> = before.iter().map(|id| world.shim_pid(id)).collect();
    world.kill_daemon();
    world.start_daemon();
    world.await_full_pool();
    let mut after = slots(&world, "warm");
    after.sort();
    assert_eq!(after, before, "other clones wait now");
    assert_eq!(
        before
            .iter()
            .map(|id| world.shim_pid(id))
            .collect::<Vec<_>>(),
        processes
    );
    let id = world.create();
    assert!(before.contains(&id));
    assert_eq!(world.sh(&id, "hostname"), id);
    assert_eq!(world.pool()["claims"]["warm"], 1);
}

#[test]
fn a_daemon_that_ends_in_order_leaves_no_clone_behind() {
    let world = world(2);
    let kept = world.create();
    world.await_full_pool();
    let pids: Vec<u32> = slots(&world, "warm")
        .iter()
        .map(|id| world.shim_pid(id))
        .collect();
    world.ok(["stop"]);
    let deadline = Instant::now() + PATIENCE;
    while directories(&world) != BTreeSet::from([kept.clone()]) {
        assert!(Instant::now() < deadline, "{:?}", directories(&world));
        std::thread::sleep(Duration::from_millis(20));
    }
    for pid in pids {
        assert!(
            !PathBuf::from(format!("/proc/{pid}")).exists(),
            "process {pid} is left"
        );
    }
}

#[test]
fn a_daemon_that_dies_right_after_a_claim_leaves_nothing_of_it() {
    let mut world = world_with(1, &[("PANDO_FAULT", "sandbox.claimed".to_owned())]);
    let slot = slots(&world, "warm").remove(0);
    let cut_off = world.run(["create"]);
    assert_ne!(cut_off.code, 0, "{cut_off:?}");
    world.forget_env();
    world.kill_daemon();
    world.start_daemon();
    assert_eq!(world.ok(["ls", "-q"]), "");
    assert!(
        !world.sandbox_dir(&slot).exists(),
        "the claimed slot is still there"
    );
}

#[test]
fn a_clone_that_dies_is_replaced_and_no_request_notices() {
    let world = world(1);
    for (round, whose) in ["vmm", "shim", "vmm"].into_iter().enumerate() {
        let slot = slots(&world, "warm").remove(0);
        let pid = match whose {
            "vmm" => world.vmm_pid(&slot),
            _ => world.shim_pid(&slot),
        };
        signal(pid, "-KILL");
        // The last time at once: the daemon may not know yet.
        if round < 2 {
            world.await_pool("full with another", |pool| {
                is_full(pool) && slots(&world, "warm") != [slot.clone()]
            });
            assert!(!world.sandbox_dir(&slot).exists(), "its files are left");
        }
        let id = world.create();
        assert_ne!(id, slot);
        assert_eq!(world.sh(&id, "hostname"), id);
        world.await_full_pool();
    }
}

#[test]
fn clones_that_hang_cost_a_request_time_but_not_its_answer() {
    let world = world(2);
    let hanging: Vec<String> = ["warm", "bound", "generic"]
        .iter()
        .flat_map(|kind| slots(&world, kind))
        .collect();
    assert_eq!(hanging.len(), 4);
    for slot in &hanging {
        signal(world.vmm_pid(slot), "-STOP");
    }
    let begun = Instant::now();
    let id = world.create();
    // 15 s for all of them together.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(40), "it took {took:?}");
    assert!(!hanging.contains(&id));
    assert_eq!(world.sh(&id, "hostname"), id);
    // What was tried is gone in the end, and its files with it.
    let deadline = Instant::now() + PATIENCE;
    while hanging.iter().all(|slot| world.sandbox_dir(slot).exists()) {
        assert!(Instant::now() < deadline, "files are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_tags_of_one_image_share_their_clones() {
    let world = world(1);
    world.ok(["template", "bake", "base:other"]);
    let names = world.await_full_pool()["slots"][0]["template"].clone();
    assert_eq!(names, "base, base:other");
    world.ok(["template", "rm", "base"]);
    let pool = world.await_full_pool();
    assert_eq!(pool["slots"][0]["template"], "base:other");
    world.ok(["create", "-t", "base:other"]);
    assert_eq!(world.pool()["claims"]["warm"], 1);
    world.await_full_pool();
    world.ok(["template", "rm", "base:other"]);
    world.await_pool("empty", |pool| waiting(pool) == 0 && pool["filling"] == 0);
}

#[test]
fn a_kernel_of_its_own_shares_no_secret() {
    let world = World::start();
    let symbol = "sudo sh -c 'sysctl -q kernel.kptr_restrict=0; grep \" _text$\" /proc/kallsyms'";
    let ids = ["boot", "boot", "snapshot", "snapshot"]
        .map(|start| create(&world, &json!({ "start": start })));
    let texts = ids.clone().map(|id| world.sh(&id, symbol));
    assert_ne!(texts[0], texts[1], "two boots have one layout");
    assert_eq!(texts[2], texts[3]);
    // It is a sandbox like any other, and its disk outlives its kernel.
    world.sh(&ids[0], "echo kept > ~/file");
    world.ok(["stop", &ids[0]]);
    world.ok(["start", &ids[0]]);
    assert_eq!(
        world.sh(&ids[0], "cat ~/file; hostname"),
        format!("kept\n{}", ids[0])
    );
}

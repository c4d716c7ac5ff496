//! Limits of a sandbox, of a tenant and of the host: each holds in a real guest, and what is
//! beyond it is refused before anything is done.

use pando_testkit::{Answer, Footprint, Options, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

fn world(env: &[(&str, String)]) -> World {
    World::with(Options {
        env: env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        ..Options::default()
    })
}

fn create(world: &World, request: &Value) -> String {
    let answer = world.api().post("/v1/sandboxes", request);
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()["id"].as_str().expect("an id").to_owned()
}

fn code_of(answer: &Answer) -> (u16, String) {
    let code = answer.json()["error"]["code"].as_str().map(str::to_owned);
    (answer.status, code.unwrap_or_default())
}

/// The priorities of a process's threads.
fn nices(pid: u32) -> BTreeSet<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let stats = threads.flatten().map(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields.to_owned());
        let nice = fields
            .unwrap_or_default()
            .split_whitespace()
            .nth(16)
            .map(str::to_owned);
        nice.unwrap_or_default()
    });
    stats.collect()
}

/// The most that a file may be which the process writes, in MiB.
fn file_limit_mib(pid: u32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max file size"))
        .expect("the kernel says it");
    let soft = line.split_whitespace().next()?;
    soft.parse::<u64>().ok().map(|bytes| bytes >> 20)
}

/// How many processes one user can have beside the shell that counts them.
const COUNT_PROCESSES: &str = r#"python3 -c '
import os, signal
pids = []
try:
    while len(pids) < 3000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pids.append(pid)
except OSError:
    pass
for pid in pids:
    os.kill(pid, 9)
print(len(pids))'"#;

#[test]
fn a_sandbox_is_held_to_its_limits_however_it_was_started() {
    let world = world(&[("PANDO_WARM", "1".to_owned())]);
    world.await_full_pool();
    let limits = json!({ "cpu_percent": 50, "processes": 64, "disk_mib": 256, "open_files": 100 });
    let claimed = create(&world, &json!({ "limits": limits }));
    assert_eq!(world.pool()["claims"]["warm"], 1);
    let loaded = create(&world, &json!({ "limits": limits, "start": "snapshot" }));
    let vmms = [&claimed, &loaded].map(|id| world.vmm_pid(id));
    let answer = world.api().fork(&loaded, &json!({ "count": 1 }));
    let child = answer.json()["children"][0]["sandbox"]["id"].clone();
    let child = child.as_str().expect("a child").to_owned();
    // It may have been a process that waited before, in a directory of another name: of all
    // VMMs that of the third sandbox is the third that is limited.
    let mut limited: Vec<u32> = world.processes().into_iter().collect();
    limited.retain(|pid| {
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        program.starts_with("qemu") && !vmms.contains(pid) && file_limit_mib(*pid).is_some()
    });
    assert_eq!(
        limited.len(),
        1,
        "the child's VMM is limited, and no clone that waits"
    );
    let vmms = [vmms[0], vmms[1], limited[0]];
    for (id, vmm) in [&claimed, &loaded, &child].into_iter().zip(vmms) {
        assert_eq!(world.inspect(id)["limits"], limits);
        assert_eq!(nices(vmm), BTreeSet::from(["4".to_owned()]));
        assert_eq!(file_limit_mib(vmm), Some(256 + 64 + 128));
        assert_eq!(world.sh(id, "ulimit -Sn; ulimit -Hn"), "100\n100");
        let count: u32 = world.sh(id, COUNT_PROCESSES).parse().expect("a number");
        assert!((32..64).contains(&count), "{count} processes");
    }
    // A disk that is full is a disk that is full, and not a broken one.
    let filled = "dd if=/dev/zero of=big bs=1M count=300 2>&1; stat -c %s big; sync; rm big; \
                  echo again > small && cat small";
    let said = world.sh(&claimed, filled);
    assert!(said.contains("No space left on device"), "{said}");
    let size: u64 = said
        .lines()
        .rev()
        .nth(1)
        .and_then(|line| line.parse().ok())
        .expect("its size");
    assert!((150 << 20..256 << 20).contains(&size), "{size}");
    assert!(said.ends_with("again"), "{said}");
    // Power off and on again: they are the sandbox's, not the VM's.
    world.ok(["stop", &claimed]);
    world.ok(["start", &claimed]);
    assert_eq!(world.sh(&claimed, "ulimit -Hn"), "100");
    let vmm = world.vmm_pid(&claimed);
    assert_eq!(file_limit_mib(vmm), Some(256 + 64 + 128));
    assert_eq!(nices(vmm), BTreeSet::from(["4".to_owned()]));
    // One of the same snapshot that is not limited has nothing of it.
    let free = create(&world, &json!({ "start": "snapshot" }));
    assert_eq!(world.inspect(&free)["limits"], json!({}));
    assert_eq!(file_limit_mib(world.vmm_pid(&free)), None);
    assert_eq!(
        nices(world.vmm_pid(&free)),
        BTreeSet::from(["0".to_owned()])
    );
    assert_eq!(world.sh(&free, "ulimit -Hn"), "524288");
}

#[test]
fn what_a_snapshots_sandbox_might_use_is_said_anew_or_kept() {
    let world = world(&[("PANDO_LIMITS", "open_files=200,disk_mib=512".to_owned())]);
    let id = create(&world, &json!({ "limits": { "disk_mib": 128 } }));
    let kept = json!({ "disk_mib": 128, "open_files": 200 });
    assert_eq!(world.inspect(&id)["limits"], kept);
    let snapshot = world.ok(["snapshot", &id]);
    let same = world.ok(["create", "--from", &snapshot]);
    assert_eq!(world.inspect(&same)["limits"], kept);
    let more = world.ok([
        "create",
        "--from",
        &snapshot,
        "--limit",
        "disk_mib=2048",
        "--limit",
        "open_files=4096",
    ]);
    assert_eq!(
        world.inspect(&more)["limits"],
        json!({ "disk_mib": 2048, "open_files": 4096 })
    );
    let free = "df --output=avail -m / | tail -1; ulimit -Hn";
    let said = |id: &str| -> (u64, u64) {
        let said = world.sh(id, free);
        let mut lines = said
            .lines()
            .map(|line| line.trim().parse().expect("a number"));
        (lines.next().expect("MiB"), lines.next().expect("files"))
    };
    let (mib, files) = said(&same);
    assert!(
        (64..=128).contains(&mib) && files == 200,
        "{mib} MiB, {files} files"
    );
    let (mib, files) = said(&more);
    assert!(
        (1800..=2048).contains(&mib) && files == 4096,
        "{mib} MiB, {files} files"
    );
}

/// Root in a guest takes off what the agent put on; what is around the VM holds.
#[test]
fn a_hostile_guest_cannot_take_more_of_the_disk() {
    let world = World::start();
    let hostile = create(&world, &json!({ "limits": { "disk_mib": 64 } }));
    let neighbour = world.create();
    let bytes = |id: &str| -> u64 {
        let slot = world.sandbox_dir(id).join("slot");
        let files = fs::read_dir(slot).expect("its slot").flatten();
        let own = files.filter_map(|file| file.metadata().ok());
        own.filter(|data| data.nlink() == 1)
            .map(|data| data.len())
            .sum()
    };
    let line = "sudo sh -c 'echo 0 > /sys/fs/ext4/vdb/reserved_clusters'; \
                dd if=/dev/zero of=big bs=1M count=400 conv=fsync 2>&1 | tail -1; true";
    let answer = world.exec(&hostile, &json!({ "shell": line, "timeout_s": 60.0 }));
    let limit = (64 + 16 + 128) << 20;
    let taken = bytes(&hostile);
    assert!(
        (64 << 20..=limit).contains(&taken),
        "{taken} bytes of {limit}: {answer}"
    );
    // Its own disk is broken, and nothing else.
    assert_eq!(world.sh(&neighbour, "echo on > file; sync; cat file"), "on");
    assert_eq!(world.inspect(&hostile)["state"], "running");
    assert_eq!(world.ok(["rm", &hostile]), hostile);
}

#[test]
fn disk_rates_hold() {
    let world = World::start();
    // Direct, so that no cache of the guest's is measured.
    let write = "dd if=/dev/zero of=f bs=1M count=16 oflag=direct 2>&1 | tail -1";
    let time = |id: &str, line: &str| {
        let begun = Instant::now();
        world.sh(id, line);
        begun.elapsed().as_secs_f64()
    };
    let slow = create(&world, &json!({ "limits": { "disk_mib_s": 4 } }));
    let seconds = time(&slow, write);
    // The first tenth of a second's worth may come at once.
    assert!(seconds > 3.5, "16 MiB in {seconds} s");
    let few = create(&world, &json!({ "limits": { "disk_iops": 20 } }));
    let requests = "dd if=/dev/zero of=f bs=4k count=100 oflag=direct 2>&1 | tail -1";
    let seconds = time(&few, requests);
    assert!(seconds > 4.0, "100 requests in {seconds} s");
    // A snapshot is not held up by what waits for its turn.
    let begun = Instant::now();
    let snapshot = world.api().snapshot(&slow, &json!({}));
    assert_eq!(snapshot.status, 201, "{}", snapshot.text);
    assert!(begun.elapsed() < Duration::from_secs(30));
    let free = world.create();
    assert!(time(&free, write) < 3.5, "it is not limited");
}

#[test]
fn a_tenants_limits_count_what_runs() {
    let world = world(&[
        ("PANDO_MAX_SANDBOXES", "2".to_owned()),
        ("PANDO_MAX_MEMORY_MIB", "4096".to_owned()),
    ]);
    let first = world.create();
    let second = world.create();
    let snapshot = world.ok(["snapshot", &first]);
    let before = Footprint::of(&world);
    let refused = world.api().post("/v1/sandboxes", &json!({}));
    assert_eq!(code_of(&refused), (429, "quota_exceeded".to_owned()));
    assert_eq!(
        refused.json()["error"]["message"],
        "the limit `max_sandboxes` is 2: 2 in use, 1 asked for"
    );
    let from = world
        .api()
        .post("/v1/sandboxes", &json!({ "from": snapshot }));
    assert_eq!(from.status, 429, "{}", from.text);
    assert_eq!(Footprint::of(&world), before);
    let forked = world.api().fork(&first, &json!({ "count": 2 }));
    for child in forked.json()["children"].as_array().expect("a list") {
        assert_eq!(child["error"]["code"], "quota_exceeded", "{child}");
    }
    // To be put back is no more than there was.
    let back = world
        .api()
        .roll_back(&first, &json!({ "snapshot": snapshot }));
    assert_eq!(back.status, 200, "{}", back.text);
    // What is paused or stopped does not count, until it is to run again.
    assert_eq!(world.api().pause(&first).status, 200);
    let third = world.create();
    let resumed = world.api().resume(&first);
    assert_eq!(code_of(&resumed), (429, "quota_exceeded".to_owned()));
    assert_eq!(world.inspect(&first)["state"], "paused");
    world.ok(["stop", &second]);
    assert_eq!(world.api().resume(&first).status, 200);
    let started = world.run(["start", &second]);
    assert!(started.stderr.contains("max_sandboxes"), "{started:?}");
    assert_eq!(world.inspect(&second)["state"], "stopped");
    world.ok(["rm", &third]);
    world.ok(["start", &second]);
    assert_eq!(world.sh(&second, "echo on"), "on");
}

#[test]
fn ten_at_once_never_pass_a_limit() {
    let world = world(&[("PANDO_MAX_CPUS", "3".to_owned())]);
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let create = || world.api().post("/v1/sandboxes", &json!({}));
        let threads: Vec<_> = (0..10).map(|_| scope.spawn(create)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|answer| answer.expect("no panic")).collect()
    });
    let with = |status: u16| answers.iter().filter(|one| one.status == status).count();
    assert_eq!((with(201), with(429)), (3, 7));
    let status = world.api().get("/v1/status").json();
    assert_eq!(status["starts_under_way"], 0, "{status}");
    assert_eq!(status["starts_refused"], 7, "{status}");
    assert_eq!(world.processes().len(), 2 * 3, "a shim and a VMM each");
}

#[test]
fn a_full_host_refuses_before_anything_is_done() {
    let world = world(&[("PANDO_MEMORY_RESERVE_MIB", "100000000".to_owned())]);
    let before = Footprint::of(&world);
    for request in [json!({}), json!({ "start": "boot" })] {
        let refused = world.api().post("/v1/sandboxes", &request);
        assert_eq!(code_of(&refused), (503, "host_full".to_owned()));
        assert_eq!(refused.header("retry-after"), Some("5"));
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains("memory_reserve_mib"), "{message}");
    }
    assert_eq!(Footprint::of(&world), before);
    let ran = world.run(["create"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
}

/// Memory that the host has left, in MiB.
fn available_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("it is there");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("the kernel says it") >> 10
}

/// Runs alone: what others allocate meanwhile would be the pressure that it makes.
#[test]
fn under_memory_pressure_clones_that_wait_go_before_a_start_is_refused() {
    let reserve = available_mib() - 2048;
    let world = world(&[
        ("PANDO_WARM", "2".to_owned()),
        ("PANDO_MEMORY_RESERVE_MIB", reserve.to_string()),
    ]);
    world.await_full_pool();
    let directories = || -> BTreeSet<String> {
        let dir = fs::read_dir(world.state_dir().join("v1/sandboxes")).expect("it is there");
        let names = dir.flatten().map(|entry| entry.file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    };
    let waiting = directories();
    assert!(waiting.len() >= 2, "{waiting:?}");
    let hog = vec![1_u8; 4096 << 20];
    let refused = world.api().post("/v1/sandboxes", &json!({}));
    assert_eq!(code_of(&refused), (503, "host_full".to_owned()));
    assert!(directories().is_disjoint(&waiting), "a clone still waits");
    assert!(hog.iter().step_by(4096).all(|byte| *byte == 1));
    drop(hog);
    let id = world.create();
    assert_eq!(world.sh(&id, "echo on"), "on");
}

#[test]
fn what_a_sandbox_costs_is_told() {
    let world = World::start();
    let id = world.create();
    let usage = || world.inspect(&id)["usage"].clone();
    let number = |usage: &Value, name: &str| usage[name].as_u64().expect("a number");
    let before = usage();
    let memory = number(&before, "memory_bytes") >> 20;
    assert!((8..200).contains(&memory), "{before}");
    // A file in memory stays, and what is written to the disk is written through.
    let line = "head -c 64M /dev/urandom > /dev/shm/a; head -c 32M /dev/urandom > b; sync";
    world.sh(&id, line);
    let after = usage();
    let grown = |name: &str| number(&after, name) - number(&before, name);
    assert!(grown("memory_bytes") >= 64 << 20, "{before} {after}");
    assert!(grown("disk_bytes") >= 32 << 20, "{before} {after}");
    assert!(grown("cpu_ms") > 0, "{before} {after}");
    let table = world.ok(["ls"]);
    let heading: Vec<_> = table
        .lines()
        .next()
        .expect("a heading")
        .split_whitespace()
        .collect();
    assert!(
        heading.contains(&"USED") && heading.contains(&"DISK"),
        "{table}"
    );
    let listed: Value = serde_json::from_str(&world.ok(["ls", "--json"])).expect("JSON");
    assert!(
        listed[0]["usage"]["memory_bytes"].as_u64() >= Some(64 << 20),
        "{listed}"
    );
    // A list that nobody asked it of says nothing of it.
    let plain = world.api().get("/v1/sandboxes").json();
    assert_eq!(plain["sandboxes"][0]["usage"], Value::Null);
    assert_eq!(world.api().pause(&id).status, 200);
    let paused = usage();
    assert_eq!(number(&paused, "memory_bytes"), 0, "{paused}");
    assert!(number(&paused, "disk_bytes") >= 64 << 20, "{paused}");
}

#[test]
fn limits_that_cannot_be_had_are_refused() {
    let world = World::start();
    let before = Footprint::of(&world);
    let limits = [
        (
            json!({ "cpu_percent": 4 }),
            "`limits.cpu_percent` is from 5 to 800, not 4",
        ),
        (
            json!({ "cpu_percent": 801 }),
            "`limits.cpu_percent` is from 5 to 800, not 801",
        ),
        (
            json!({ "processes": 15 }),
            "`limits.processes` is from 16 to 4194304, not 15",
        ),
        (
            json!({ "disk_mib": 63 }),
            "`limits.disk_mib` is from 64 to 8192, not 63",
        ),
        (
            json!({ "disk_mib": 8193 }),
            "`limits.disk_mib` is from 64 to 8192, not 8193",
        ),
        (
            json!({ "disk_mib_s": 0 }),
            "`limits.disk_mib_s` is from 1 to 100000, not 0",
        ),
        (
            json!({ "disk_iops": 9 }),
            "`limits.disk_iops` is from 10 to 10000000, not 9",
        ),
        (
            json!({ "net_mib_s": 0 }),
            "`limits.net_mib_s` is from 1 to 100000, not 0",
        ),
        (
            json!({ "open_files": 31 }),
            "`limits.open_files` is from 32 to 1048576, not 31",
        ),
        (
            json!({ "open_files": u32::MAX }),
            "`limits.open_files` is from 32 to 1048576, not 4294967295",
        ),
    ];
    for (limits, said) in limits {
        for from in [
            json!({ "limits": limits }),
            json!({ "limits": limits, "from": "n1" }),
        ] {
            let refused = world.api().post("/v1/sandboxes", &from);
            assert_eq!(code_of(&refused), (400, "invalid_request".to_owned()));
            assert_eq!(refused.json()["error"]["message"], said);
        }
    }
    let malformed = [
        json!({ "disk_mib": -1 }),
        json!({ "disk_mib": 1.5 }),
        json!({ "disk_mib": "64" }),
        json!({ "disk_mib": 4_294_967_296_u64 }),
        json!({ "disk_gib": 1 }),
        json!({ "": 1 }),
        json!("none"),
        json!(1),
        json!(null),
    ];
    for limits in malformed {
        let refused = world
            .api()
            .post("/v1/sandboxes", &json!({ "limits": limits }));
        assert_eq!(
            code_of(&refused),
            (400, "malformed_json".to_owned()),
            "{limits}"
        );
    }
    for query in ["usage=yes", "usage=", "usage=1", "cost=true"] {
        let refused = world.api().get(&format!("/v1/sandboxes?{query}"));
        assert_eq!(
            code_of(&refused),
            (400, "invalid_request".to_owned()),
            "{query}"
        );
    }
    assert_eq!(Footprint::of(&world), before);
}

#[test]
fn limits_in_the_configuration_are_checked_and_told() {
    let world = world(&[("PANDO_LIMITS", "disk_mib=2048, open_files=4096".to_owned())]);
    let told = world.run(["doctor"]).stdout;
    assert!(
        told.contains("defaults: disk_mib 2048, open_files 4096"),
        "{told}"
    );
    let other = world.scratch("other").display().to_string();
    for (name, value, said) in [
        (
            "PANDO_LIMITS",
            "disk_mib",
            "`limits`: `disk_mib` is not NAME=VALUE",
        ),
        (
            "PANDO_LIMITS",
            "disk=1",
            "`limits`: `disk` is not a limit; there are cpu_percent",
        ),
        (
            "PANDO_LIMITS",
            "disk_mib=1",
            "`limits`: `limits.disk_mib` is from 64 to 8192, not 1",
        ),
        (
            "PANDO_MAX_SANDBOXES",
            "-1",
            "`max_sandboxes` is `-1`: give a number",
        ),
        (
            "PANDO_MAX_CPUS",
            "two",
            "`max_cpus` is `two`: give a number",
        ),
        (
            "PANDO_MAX_SNAPSHOT_GIB",
            "1.5",
            "`max_snapshot_gib` is `1.5`: give a number",
        ),
        (
            "PANDO_MEMORY_RESERVE_MIB",
            "1G",
            "`memory_reserve_mib` is `1G`: give a number",
        ),
        (
            "PANDO_MEMORY_OVERCOMMIT",
            "49",
            "`memory_overcommit` is 49: give 50 to 10000 (percent)",
        ),
        (
            "PANDO_MEMORY_OVERCOMMIT",
            "10001",
            "`memory_overcommit` is 10001: give 50 to 10000 (percent)",
        ),
    ] {
        let line = ["serve", "--listen", "127.0.0.1:0", "--state-dir", &other];
        let output = world
            .command(line)
            .env(name, value)
            .output()
            .expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}

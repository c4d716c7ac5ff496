//! The channel under load, and across a snapshot taken in the middle of it.

use pando_shim::client::ShimClient;
use pando_shim::spec::{self, Begin, ShimSpec};
use pando_sys::spawn::{Child, Spawn};
use pando_testkit::{World, pando};
use pando_wire::shim::{self, SnapshotRequest, SnapshotResponse, State};
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Median of the round trips of `count` execs of `true`, and the longest.
fn exec_times(world: &World, id: &str, count: usize) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let begun = Instant::now();
            world.sh(id, "true");
            begun.elapsed()
        })
        .collect();
    times.sort();
    (times[count / 2], times[count - 1])
}

#[test]
fn fifty_stalled_downloads_do_not_slow_an_exec() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, "truncate -s 1G ~/big; for i in 1 2 3; do true; done");
    exec_times(&world, &id, 10);
    let (before, _) = exec_times(&world, &id, 30);
    let path = format!("/v1/sandboxes/{id}/files?path=/home/user/big");
    let stalled: Vec<_> = (0..50)
        .map(|_| {
            let mut body = world.api().open(&path);
            body.read_exact(&mut vec![0; 1 << 16]).unwrap();
            body
        })
        .collect();
    let (during, longest) = exec_times(&world, &id, 30);
    assert!(
        during < before * 2 + Duration::from_millis(30),
        "{before:?} before, {during:?} during"
    );
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    drop(stalled);
    world.sh(&id, "true");
}

#[test]
fn a_hundred_children_of_a_snapshot_in_the_middle_of_a_download_all_answer() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, "truncate -s 1G ~/big; echo 7 > /dev/shm/kept");
    let mut body = world
        .api()
        .open(&format!("/v1/sandboxes/{id}/files?path=/home/user/big"));
    body.read_exact(&mut vec![0; 8 << 20]).unwrap();

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let source = world.sandbox_dir(&id);
    let text = fs::read(source.join("spec.json")).unwrap();
    let spec: ShimSpec = serde_json::from_slice(&text).unwrap();
    let request = SnapshotRequest {
        base: spec.base,
        name: "taken".to_owned(),
        memory: true,
        ..SnapshotRequest::default()
    };
    let taken = runtime.block_on(async {
        let client = ShimClient::connect(&source.join("shim.sock"))
            .await
            .unwrap();
        client.rpc.snapshot(request).await.unwrap().into_owned()
    });
    assert!(!taken.forced, "the guest did not come to rest");
    assert!(taken.dirty_pages > 0);

    let children = world.scratch("children");
    fs::create_dir(&children).unwrap();
    // Eight at a time, since the machine has not the memory for a hundred.
    for batch in 0..13 {
        let batch: Vec<_> = (0..8)
            .map(|number| batch * 8 + number)
            .filter(|number| *number < 100)
            .collect();
        let started: Vec<_> = batch
            .iter()
            .map(|number| ChildShim::start(&children, *number, &source, &taken))
            .collect();
        for child in &started {
            assert_eq!(
                runtime.block_on(child.answer()),
                "7\n",
                "child {}",
                child.dir.display()
            );
        }
    }

    // The source goes on, and so does its download, to the last byte.
    let mut rest = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match body.read(&mut buffer).unwrap() {
            0 => break,
            count => rest += count,
        }
    }
    assert_eq!(rest + (8 << 20), 1 << 30);
    assert_eq!(world.sh(&id, "cat /dev/shm/kept"), "7");
}

/// A child of a snapshot, run by a shim of its own without a daemon.
struct ChildShim {
    dir: PathBuf,
    process: Child,
}

impl ChildShim {
    fn start(children: &Path, number: usize, source: &Path, taken: &SnapshotResponse) -> Self {
        let dir = children.join(format!("c{number}"));
        let (from, slot) = (source.join("slot"), dir.join("slot"));
        fs::create_dir_all(&slot).unwrap();
        fs::create_dir(dir.join("shim")).unwrap();
        let mut links = vec![
            (spec::MEMORY.to_owned(), spec::MEMORY.to_owned()),
            (taken.pages_file.clone(), spec::pages(0)),
            (
                taken.device_state_file.clone(),
                spec::DEVICE_STATE.to_owned(),
            ),
            (spec::ROOT.to_owned(), spec::ROOT.to_owned()),
        ];
        links.extend((0..3).map(|index| (spec::disk(index), spec::disk(index))));
        for (file, name) in links {
            fs::hard_link(from.join(file), slot.join(name)).unwrap();
        }
        let parent: ShimSpec =
            serde_json::from_slice(&fs::read(source.join("spec.json")).unwrap()).unwrap();
        let spec = ShimSpec {
            sandbox_id: format!("child{number}"),
            hostname: format!("child{number}"),
            begin: Begin::Spawn {
                clean_barrier: !taken.forced,
                mount: false,
            },
            disks: 4,
            pages: 1,
            ..parent
        };
        fs::write(dir.join("spec.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
        let listener = UnixListener::bind(dir.join("shim.sock")).unwrap();
        let process = Spawn::new(&pando())
            .args(["shim", "."])
            .env("PATH", "/usr/bin:/bin")
            .current_dir(&dir)
            .descriptor(listener.into(), pando_shim::LISTENER_FD)
            .new_session()
            .spawn()
            .unwrap();
        Self { dir, process }
    }

    /// What a program in it says, once it answers.
    async fn answer(&self) -> String {
        let client = ShimClient::connect(&self.dir.join("shim.sock"))
            .await
            .unwrap();
        let ready = client
            .rpc
            .ready(shim::ReadyRequest::default())
            .await
            .unwrap()
            .into_owned();
        assert_eq!(ready.state, State::STATE_RUNNING, "{}", ready.cause);
        let command = shim::Command {
            argv: vec!["cat".into(), "/dev/shm/kept".into()],
            timeout_ms: 60_000,
            ..Default::default()
        };
        let request = shim::ExecRequest {
            command: command.into(),
            output_limit_bytes: 1 << 20,
            ..Default::default()
        };
        let response = client.rpc.exec(request).await.unwrap().into_owned();
        String::from_utf8(response.stdout).unwrap()
    }
}

impl Drop for ChildShim {
    fn drop(&mut self) {
        drop(self.process.kill(9));
        drop(self.process.wait());
        drop(fs::remove_dir_all(&self.dir));
    }
}

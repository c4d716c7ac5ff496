//! The driver against a real QEMU, with the jail on.
#![allow(missing_docs, reason = "the names of tests are their documentation")]

mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use pando_vmm::capture::ARENA_BYTES;
use pando_vmm::memory_image::seal_cold;
use pando_vmm::{
    Arena, Binding, Captured, ChangeTracker, LaunchError, Qemu, RunState, ShutdownReason, Start,
    VmEvent, Vmm, VmmError,
};
use support::{PATIENCE, World, best_method, page_of};

/// The byte of a memory file at `offset`.
fn byte_at(file: &Path, offset: u64) -> u8 {
    let mut byte = [0];
    std::fs::File::open(file)
        .unwrap()
        .read_exact_at(&mut byte, offset)
        .unwrap();
    byte[0]
}

/// A line of the VMM's `/proc/PID/status`.
fn status_line(qemu: &Qemu, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", qemu.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

/// Writes a stopped VM's memory to `target`: the file it was spawned from with its own
/// pages laid over it.
fn save_memory(qemu: &Qemu, base: &Path, target: &Path, arena_bytes: usize) -> Captured {
    std::fs::copy(base, target).unwrap();
    let file = std::fs::File::options().write(true).open(target).unwrap();
    let mut arena = Arena::faulted_in(arena_bytes);
    // Each time all that is its own, whatever others have captured.
    let mut tracker = ChangeTracker::comparing(qemu.guest_memory().unwrap());
    let write = &mut |offset, bytes: &[u8]| file.write_all_at(bytes, offset);
    let captured = tracker.capture(&mut arena, write).unwrap();
    tracker.emit(&captured, &arena, write).unwrap();
    captured
}

#[tokio::test]
async fn children_go_on_where_their_parent_was_saved() {
    let world = World::new();
    let (last, state) = world.bake().await;
    seal_cold(&world.path("memory")).unwrap();
    assert_eq!(byte_at(&world.path("memory"), page_of(last)), last);

    let (one, other) = (
        world.spawn(&state, "one").await,
        world.spawn(&state, "other").await,
    );
    for child in [&one, &other] {
        assert_eq!(child.qemu.run_state().await.unwrap(), RunState::Paused);
        assert_eq!(
            child.qemu.console_tail(),
            "",
            "nothing runs before it is told to"
        );
        child.qemu.cont().await.unwrap();
    }
    for child in [&one, &other] {
        child.wait_for(last + 2).await;
        assert_eq!(child.qemu.console_tail().as_bytes()[0], last + 1);
    }
    let end = other.qemu.exited().await;
    assert_eq!(end.shutdown, Some(ShutdownReason::GuestReset), "{end:?}");
    assert!(other.qemu.console_tail().ends_with('z'));
    assert_eq!(
        byte_at(&world.path("memory"), page_of(b'z')),
        0,
        "the parent's memory is kept"
    );
}

#[tokio::test]
async fn a_snapshot_of_a_child_has_its_pages_and_the_child_runs_on() {
    let world = World::new();
    let (last, state) = world.bake().await;
    let child = world.spawn(&state, "child").await;
    child.qemu.cont().await.unwrap();
    child.wait_for(last + 3).await;

    let (memory, second_state) = (world.path("memory-2"), world.path("slot/device-state-2"));
    let overlay = child
        .qemu
        .prepare_disk_overlay(&world.layer("above"))
        .await
        .unwrap();
    child.qemu.stop().await.unwrap();
    child.qemu.save_device_state(&second_state).await.unwrap();
    let captured = save_memory(&child.qemu, &world.path("memory"), &memory, ARENA_BYTES);
    let sealed = child.qemu.switch_disk_overlay(overlay).await.unwrap();
    let reached = child.last_letter().await;
    child.qemu.cont().await.unwrap();

    assert_eq!(sealed, world.path("slot/child"));
    assert!(captured.pages >= u64::from(reached - last), "{captured:?}");
    assert_eq!(captured.spilled_bytes, 0);
    for letter in b'A'..=reached {
        assert_eq!(
            byte_at(&memory, page_of(letter)),
            letter,
            "`{}`",
            letter as char
        );
    }
    assert_eq!(byte_at(&memory, page_of(b'z')), 0);
    child.wait_for(reached + 1).await;

    let disk = vec![world.path("slot/disk"), sealed, world.layer("grandchild")];
    let grandchild = world.launch(Start::Load { memory }, disk).await.unwrap();
    grandchild.qemu.load(&second_state).await.unwrap();
    grandchild.qemu.cont().await.unwrap();
    grandchild.wait_for(reached + 1).await;
    assert_eq!(grandchild.qemu.console_tail().as_bytes()[0], reached + 1);
}

#[tokio::test]
async fn a_vm_that_was_bound_later_is_like_any_other() {
    let world = World::new();
    let (last, state) = world.bake().await;
    let disk = vec![world.layer("own")];
    let machine = world.launch(Start::Unbound, disk).await.unwrap();
    assert!(machine.qemu.guest_memory().is_err());
    // Its jail sees the slot: what is put there after the start, too.
    let slot = |name: &str| world.path("slot").join(name);
    for name in ["memory", "root"] {
        std::fs::hard_link(world.path(name), slot(name)).unwrap();
    }
    let binding = Binding {
        memory: slot("memory"),
        root: slot("root"),
        lower: vec![slot("disk")],
        top: slot("child"),
    };
    std::fs::rename(slot("own"), slot("child")).unwrap();
    machine.qemu.bind(&binding).await.unwrap();
    machine.qemu.load(&state).await.unwrap();
    machine.qemu.cont().await.unwrap();
    machine.wait_for(last + 2).await;

    machine.qemu.stop().await.unwrap();
    let mut tracker = ChangeTracker::new(machine.qemu.guest_memory().unwrap());
    assert_eq!(tracker.method(), best_method());
    let mut arena = Arena::faulted_in(ARENA_BYTES);
    let captured = tracker.capture(&mut arena, &mut |_, _| Ok(())).unwrap();
    assert!(captured.pages >= 2, "{captured:?}");
    let overlay = machine
        .qemu
        .prepare_disk_overlay(&world.layer("above"))
        .await
        .unwrap();
    let sealed = machine.qemu.switch_disk_overlay(overlay).await.unwrap();
    assert_eq!(sealed, slot("child"));
    machine.qemu.cont().await.unwrap();
    machine.wait_for(last + 3).await;
}

#[tokio::test]
async fn pages_that_do_not_fit_the_arena_are_captured_all_the_same() {
    let world = World::new();
    let (last, state) = world.bake().await;
    let child = world.spawn(&state, "child").await;
    child.qemu.cont().await.unwrap();
    child.wait_for(last + 4).await;
    child.qemu.stop().await.unwrap();
    let (roomy, tight) = (world.path("roomy"), world.path("tight"));
    for (path, arena) in [(&roomy, ARENA_BYTES), (&tight, 2 * 4096)] {
        let captured = save_memory(&child.qemu, &world.path("memory"), path, arena);
        assert_eq!(captured.spilled_bytes > 0, path == &tight, "{captured:?}");
    }
    assert!(std::fs::read(roomy).unwrap() == std::fs::read(tight).unwrap());
}

#[tokio::test]
async fn the_jail_is_in_force_and_says_so() {
    let world = World::new();
    let machine = world
        .launch(world.cold(), vec![world.layer("disk")])
        .await
        .unwrap();
    assert_eq!(status_line(&machine.qemu, "Seccomp:"), "2");
    assert_eq!(status_line(&machine.qemu, "NoNewPrivs:"), "1");
    let filters: u32 = status_line(&machine.qemu, "Seccomp_filters:")
        .parse()
        .unwrap();
    assert!(filters >= 2, "ours below QEMU's own: {filters}");
    for layer in [
        "seccomp",
        "qemu-sandbox",
        "no-new-privileges",
        "landlock-files",
    ] {
        assert!(
            machine.qemu.layers().iter().any(|name| name == layer),
            "{layer}"
        );
    }
}

#[tokio::test]
async fn qemu_cannot_read_what_is_not_its_business() {
    let world = World::new();
    let (memory, stranger) = (world.path("memory"), world.path("kernel"));
    std::fs::File::create(&memory)
        .unwrap()
        .set_len(256 << 20)
        .unwrap();
    let machine = world
        .launch(Start::Load { memory }, vec![world.layer("disk")])
        .await
        .unwrap();
    let error = machine.qemu.load(&stranger).await.unwrap_err();
    assert!(error.to_string().contains("Permission denied"), "{error}");
}

#[tokio::test]
async fn layers_are_sealed_one_after_the_other() {
    let world = World::new();
    let disk = world.layer("disk");
    let machine = world
        .launch(world.cold(), vec![disk.clone()])
        .await
        .unwrap();
    let mut sealed = vec![];
    for name in ["one", "two", "three"] {
        let overlay = machine
            .qemu
            .prepare_disk_overlay(&world.layer(name))
            .await
            .unwrap();
        sealed.push(machine.qemu.switch_disk_overlay(overlay).await.unwrap());
    }
    assert_eq!(
        sealed,
        [disk, world.path("slot/one"), world.path("slot/two")]
    );
}

#[tokio::test]
async fn what_happens_to_a_vm_is_told() {
    let world = World::new();
    let machine = world
        .launch(world.cold(), vec![world.layer("disk")])
        .await
        .unwrap();
    let mut events = machine.qemu.subscribe();
    machine.qemu.cont().await.unwrap();
    machine.qemu.stop().await.unwrap();
    assert_eq!(machine.qemu.run_state().await.unwrap(), RunState::Paused);
    let end = machine.qemu.quit(PATIENCE).await;
    assert_eq!(end.shutdown, Some(ShutdownReason::HostQuit));
    assert!(end.exit.success());
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(event);
    }
    let quit = VmEvent::Shutdown(ShutdownReason::HostQuit);
    assert_eq!(told, [VmEvent::Resumed, VmEvent::Stopped, quit]);
    assert!(matches!(machine.qemu.cont().await, Err(VmmError::Ended)));
}

#[tokio::test]
async fn a_killed_vmm_is_told_from_an_ended_one() {
    let world = World::new();
    let machine = world
        .launch(world.cold(), vec![world.layer("disk")])
        .await
        .unwrap();
    let pid = machine.qemu.pid().to_string();
    std::process::Command::new("kill")
        .args(["-9", &pid])
        .status()
        .unwrap();
    let end = machine.qemu.exited().await;
    assert_eq!(end.shutdown, None);
    assert_eq!(end.to_string(), "QEMU ended by itself (signal 9)");
}

#[tokio::test]
async fn a_vmm_that_does_not_listen_is_killed_after_its_grace() {
    let world = World::new();
    let machine = world
        .launch(world.cold(), vec![world.layer("disk")])
        .await
        .unwrap();
    let pid = machine.qemu.pid().to_string();
    std::process::Command::new("kill")
        .args(["-STOP", &pid])
        .status()
        .unwrap();
    let end = machine.qemu.quit(Duration::from_millis(100)).await;
    assert_eq!(end.shutdown, None);
}

#[tokio::test]
async fn dropping_it_ends_the_process() {
    let world = World::new();
    let machine = world
        .launch(world.cold(), vec![world.layer("disk")])
        .await
        .unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", machine.qemu.pid()));
    assert!(process.exists());
    drop(machine);
    let gone = async {
        while process.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}

#[tokio::test]
async fn device_state_that_is_none_fails_the_load() {
    let world = World::new();
    let (_, state) = world.bake().await;
    let garbage = world.path("slot/garbage");
    std::fs::write(&garbage, [7; 10_000]).unwrap();
    let half = world.path("slot/half");
    let bytes = std::fs::read(&state).unwrap();
    std::fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    for (index, bad) in [garbage, half].iter().enumerate() {
        let start = Start::Load {
            memory: world.path("memory"),
        };
        let disk = vec![
            world.path("slot/disk"),
            world.layer(&format!("layer-{index}")),
        ];
        let machine = world.launch(start, disk).await.unwrap();
        machine.qemu.load(bad).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_start_that_fails_says_why() {
    let world = World::new();
    let not_a_disk = world.path("slot/not-a-disk");
    std::fs::write(&not_a_disk, "text").unwrap();
    let Err(error) = world.launch(world.cold(), vec![not_a_disk]).await else {
        panic!()
    };
    let LaunchError::Ended { stderr, .. } = &error else {
        panic!("{error}")
    };
    assert!(stderr.contains("not in qcow2 format"), "{stderr}");

    std::fs::remove_file(world.path("memory")).unwrap();
    let missing = world.path("slot/missing");
    let Err(error) = world.launch(world.cold(), vec![missing.clone()]).await else {
        panic!()
    };
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains(missing.to_str().unwrap()), "{source}");
}

//! VMs that die, guests that misbehave, hosts that are full.

use pando_testkit::World;
use serde_json::json;
use std::process::Command;

fn kill(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_killed_qemu_is_noticed_with_its_cause_and_the_disk_survives() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, "echo kept > ~/file; sync");
    kill(world.vmm_pid(&id));
    let failed = world.await_state(&id, "failed");
    let reason = failed["state_reason"].as_str().unwrap();
    assert!(
        reason.contains("QEMU died") && reason.contains("signal 9"),
        "{reason}"
    );
    world.ok(["start", &id]);
    assert_eq!(world.sh(&id, "cat ~/file"), "kept");
}

#[test]
fn a_killed_shim_takes_its_vm_with_it_and_is_noticed() {
    let world = World::start();
    let id = world.create();
    let vmm = world.vmm_pid(&id);
    kill(world.shim_pid(&id));
    let failed = world.await_state(&id, "failed");
    assert_eq!(failed["state_reason"], "its shim died: signal 9");
    assert!(
        !std::path::Path::new(&format!("/proc/{vmm}/exe")).exists(),
        "QEMU outlived its shim"
    );
    world.ok(["rm", &id]);
}

#[test]
fn an_exec_that_the_vms_death_cuts_off_is_answered_with_the_cause() {
    let world = World::start();
    let id = world.create();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            world.api().post(
                &format!("/v1/sandboxes/{id}/exec"),
                &json!({ "shell": "touch /tmp/up; sleep 1000" }),
            )
        });
        while world.sh(&id, "ls /tmp") != "up" {}
        kill(world.vmm_pid(&id));
        let answer = call.join().unwrap();
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (502, &json!("sandbox_gone")),
            "{}",
            answer.text
        );
        assert!(answer.text.contains("QEMU died"), "{}", answer.text);
    });
}

#[test]
fn a_guest_that_powers_itself_off_is_stopped_not_failed() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, "echo kept > ~/file");
    world.api().post(
        &format!("/v1/sandboxes/{id}/exec"),
        &json!({ "shell": "sudo poweroff; sleep 100" }),
    );
    let stopped = world.await_state(&id, "stopped");
    assert_eq!(stopped["state_reason"], "the guest powered itself off");
    world.ok(["start", &id]);
    assert_eq!(world.sh(&id, "cat ~/file"), "kept");
}

#[test]
fn a_guest_kernel_panic_is_failed_and_the_console_shows_it() {
    let world = World::start();
    let id = world.create();
    world.api().post(
        &format!("/v1/sandboxes/{id}/exec"),
        &json!({ "shell": "echo c | sudo tee /proc/sysrq-trigger; sleep 100" }),
    );
    let failed = world.await_state(&id, "failed");
    assert!(
        failed["state_reason"].as_str().unwrap().contains("panic"),
        "{failed}"
    );
    assert!(world.ok(["logs", &id]).contains("sysrq triggered crash"));
}

#[test]
fn a_fork_bomb_and_a_memory_hog_leave_the_agent_answering() {
    let world = World::start();
    let id = world.create();
    world.sh(&id, "nohup python3 -c '\nimport os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n' >/dev/null 2>&1 &");
    assert!(
        world.exec(&id, &json!({ "argv": ["echo", "still"], "user": "root" }))["exit_code"]
            .is_i64()
    );
    assert_eq!(
        world
            .api()
            .post(&format!("/v1/sandboxes/{id}/ping"), &json!({}))
            .status,
        204
    );
    let other = world.create();
    let hog = world.exec(
        &other,
        &json!({ "argv": ["python3", "-c", "b = bytearray(4 << 30)"], "timeout_s": 60 }),
    );
    assert_ne!(hog["exit_code"], 0, "{hog}");
    assert_eq!(world.sh(&other, "echo still"), "still");
}

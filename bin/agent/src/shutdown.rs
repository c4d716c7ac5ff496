//! The orderly end.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::mount::{
    FsPickFlags, MountFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick, mount_remount,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::system::{RebootCommand, reboot};
use tokio::time::Instant;

use crate::log::{last_words, log};
use crate::sandbox::Sandbox;

/// What a `poweroff` inside the sandbox gives its processes.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// More than this nobody waits for.
const MAX_GRACE: Duration = Duration::from_secs(60);

/// How long killed processes may take to be gone.
const KILL_TIME: Duration = Duration::from_secs(2);

/// Lets the answer to a shutdown request reach the host.
const ANSWER_TIME: Duration = Duration::from_millis(20);

static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Ends all user processes, brings the disk to rest and powers off. Returns only
/// where a shutdown is under way already, or the kernel refuses.
pub(crate) async fn power_off(sandbox: &Sandbox, grace: Duration) {
    if UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    log!("powering off");
    tokio::time::sleep(ANSWER_TIME).await;
    end_processes(sandbox, grace.min(MAX_GRACE)).await;
    let disk_at_rest = rest(sandbox);
    last_words(if disk_at_rest {
        "powered off"
    } else {
        "powered off, disk busy"
    });
    // A power-off is what the host can tell from a panic, which restarts. Without
    // ACPI it would halt the processor for good, while a restart ends the VM as well:
    // it runs with `-no-reboot`.
    let command = match Path::new("/sys/firmware/acpi/tables").exists() {
        true => RebootCommand::PowerOff,
        false => RebootCommand::Restart,
    };
    let _ = reboot(command);
    log!("the kernel does not power off");
}

async fn end_processes(sandbox: &Sandbox, grace: Duration) {
    let cgroup = &sandbox.cgroup;
    let _ = cgroup.thaw();
    for id in cgroup.process_ids().unwrap_or_default() {
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            // Stopped ones have to run to handle it.
            let _ = kill_process(pid, Signal::TERM);
            let _ = kill_process(pid, Signal::CONT);
        }
    }
    if !wait_until_empty(sandbox, grace).await {
        let _ = cgroup.kill();
        wait_until_empty(sandbox, KILL_TIME).await;
    }
}

async fn wait_until_empty(sandbox: &Sandbox, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if sandbox.cgroup.process_ids().unwrap_or_default().is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Writes everything out and makes the file systems read-only, so that the next
/// start finds a clean journal. Returns whether that worked.
fn rest(sandbox: &Sandbox) -> bool {
    let Some(root) = sandbox.root() else {
        return true;
    };
    rustix::fs::sync();
    let overlay = mount_remount("/", MountFlags::RDONLY, c"");
    // The disk is mounted out of reach of any path; its open folder will do.
    let disk = remount_read_only(root.disk.as_fd());
    if let Err(error) = overlay.and(disk) {
        log!("cannot bring the disk to rest: {error}");
        return false;
    }
    true
}

fn remount_read_only(folder: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let context = fspick(folder, c"", flags)?;
    fsconfig_set_flag(context.as_fd(), c"ro")?;
    fsconfig_reconfigure(context.as_fd())
}

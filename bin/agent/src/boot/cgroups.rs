//! Three cgroups: `user` for everything that is not the agent, limited so that the
//! agent and the kernel always have room; `hooks` for what runs while `user` is
//! frozen; and `agent`.
//!
//! CPU time is not theirs to share out: without the cpu controller the scheduler
//! gives every session an equal part (autogroups), so what a client starts gets its
//! turn beside a fork bomb of another session. The agent has the highest priority.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use tokio::time::Instant;

use crate::log::log;

const CGROUPS: &str = "/sys/fs/cgroup";

/// The cgroup of user processes, as `/proc/PID/cgroup` names it.
pub(crate) const USER_CGROUP: &str = "/user";

/// Memory that user processes can't have: the kernel's own and the agent's.
const RESERVED_BYTES: u64 = 48 << 20;

/// Processes that user code may have, per MiB of memory: more of the smallest
/// would not fit anyway (a kernel stack and a page table each). Between the bounds.
const PROCESSES_PER_MIB: u64 = 8;
const MIN_PROCESSES: u64 = 1024;
const MAX_PROCESSES: u64 = 16384;

/// How a freeze is waited for: at first with the whole agent standing still, so that
/// the others have the CPU.
const SHORT_PAUSES: [Duration; 5] = [
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(400),
    Duration::from_micros(800),
    Duration::from_micros(1600),
];
const LONG_PAUSE: Duration = Duration::from_millis(2);

/// The cgroup of user processes, everything it takes to freeze it already open.
pub(crate) struct UserCgroup {
    folder: OwnedFd,
    hooks: OwnedFd,
    freeze: File,
    events: File,
    processes: File,
    kill: File,
    /// Missing where the kernel lacks the controller.
    most_processes: Option<File>,
    /// What user code may have where the host says nothing.
    usual_processes: u64,
}

impl UserCgroup {
    /// Makes the cgroups and moves this process into its own.
    ///
    /// # Errors
    /// The kernel lacks cgroup v2 or its freezer.
    pub(crate) fn create(memory_total_bytes: u64) -> Result<Self> {
        let root = Path::new(CGROUPS);
        for controller in ["memory", "pids"] {
            let control = root.join("cgroup.subtree_control");
            if let Err(error) = fs::write(control, format!("+{controller}")) {
                log!("no {controller} controller: {error}");
            }
        }
        let [agent, user, hooks] = ["agent", "user", "hooks"].map(|name| root.join(name));
        for folder in [&agent, &user, &hooks] {
            fs::create_dir_all(folder).context("cannot make a cgroup")?;
        }
        fs::write(agent.join("cgroup.procs"), "0").context("cannot enter the agent's cgroup")?;
        let limits = [
            (
                user.join("memory.max"),
                memory_max(memory_total_bytes).to_string(),
            ),
            (
                user.join("pids.max"),
                pids_max(memory_total_bytes).to_string(),
            ),
        ];
        for (file, value) in limits {
            if let Err(error) = fs::write(&file, value) {
                log!("cannot set {}: {error}", file.display());
            }
        }
        Self::open(&user, &hooks, pids_max(memory_total_bytes))
    }

    fn open(folder: &Path, hooks: &Path, usual_processes: u64) -> Result<Self> {
        let file = |name: &str, write: bool| {
            let mut options = File::options();
            let opened = options.read(!write).write(write).open(folder.join(name));
            opened.with_context(|| format!("cgroup file {name}"))
        };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self {
            folder: rustix::fs::open(folder, flags, Mode::empty())?,
            hooks: rustix::fs::open(hooks, flags, Mode::empty())?,
            freeze: file("cgroup.freeze", true)?,
            events: file("cgroup.events", false)?,
            processes: file("cgroup.procs", false)?,
            kill: file("cgroup.kill", true)?,
            most_processes: file("pids.max", true).ok(),
            usual_processes,
        })
    }

    /// The folder to start processes into.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// The folder to start resume hooks into.
    pub(crate) fn hooks_folder(&self) -> BorrowedFd<'_> {
        self.hooks.as_fd()
    }

    /// Freezes all user processes and waits until they are. After `limit` returns
    /// the ids of those in uninterruptible sleep, which no freezer stops.
    ///
    /// # Errors
    /// The cgroup is gone: guest root removed it.
    pub(crate) async fn freeze(&self, limit: Duration) -> std::io::Result<Vec<u32>> {
        (&self.freeze).write_all(b"1")?;
        let deadline = Instant::now() + limit;
        // Usually they are frozen as soon as they had the CPU for a moment. The
        // kernel's own notice of that comes up to 10 ms late, the runtime's timer 4 ms.
        for pause in SHORT_PAUSES {
            if self.is_frozen()? {
                return Ok(Vec::new());
            }
            std::thread::sleep(pause);
        }
        while !self.is_frozen()? {
            if Instant::now() >= deadline {
                return self.uninterruptible();
            }
            tokio::time::sleep(LONG_PAUSE).await;
        }
        Ok(Vec::new())
    }

    fn is_frozen(&self) -> std::io::Result<bool> {
        Ok(self.read(&self.events)?.contains("frozen 1"))
    }

    /// Lets all user processes run.
    ///
    /// # Errors
    /// The cgroup is gone: guest root removed it.
    pub(crate) fn thaw(&self) -> std::io::Result<()> {
        (&self.freeze).write_all(b"0")
    }

    /// Ids of all user processes.
    ///
    /// # Errors
    /// The cgroup is gone: guest root removed it.
    pub(crate) fn process_ids(&self) -> std::io::Result<Vec<u32>> {
        let ids = self.read(&self.processes)?;
        Ok(ids.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Lets user code have so many processes and threads; 0 is as many as usual.
    ///
    /// # Errors
    /// The kernel lacks the controller, or guest root removed the cgroup.
    pub(crate) fn limit_processes(&self, most: u64) -> std::io::Result<()> {
        let most = if most == 0 {
            self.usual_processes
        } else {
            most
        };
        let file = self.most_processes.as_ref();
        let mut file = file.ok_or(std::io::ErrorKind::Unsupported)?;
        file.write_all(most.to_string().as_bytes())
    }

    /// Kills all user processes at once.
    ///
    /// # Errors
    /// The cgroup is gone: guest root removed it.
    pub(crate) fn kill(&self) -> std::io::Result<()> {
        (&self.kill).write_all(b"1")
    }

    fn uninterruptible(&self) -> std::io::Result<Vec<u32>> {
        let mut ids = self.process_ids()?;
        ids.retain(|id| process_state(*id) == Some('D'));
        Ok(ids)
    }

    fn read(&self, mut file: &File) -> std::io::Result<String> {
        let mut content = String::new();
        file.rewind()?;
        file.read_to_string(&mut content)?;
        Ok(content)
    }
}

/// The state letter of a process: the field behind its name, which may contain anything.
fn process_state(id: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn memory_max(total_bytes: u64) -> u64 {
    total_bytes
        .saturating_sub(RESERVED_BYTES)
        .max(total_bytes / 2)
}

fn pids_max(total_bytes: u64) -> u64 {
    ((total_bytes >> 20) * PROCESSES_PER_MIB).clamp(MIN_PROCESSES, MAX_PROCESSES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_scale_with_memory_and_leave_room() {
        assert_eq!(memory_max(512 << 20), 464 << 20);
        assert_eq!(memory_max(64 << 20), 32 << 20);
        assert_eq!(pids_max(512 << 20), 4096);
        assert_eq!(pids_max(64 << 20), MIN_PROCESSES);
        assert_eq!(pids_max(1 << 40), MAX_PROCESSES);
    }

    #[test]
    fn the_state_of_this_process_is_running() {
        assert!(matches!(process_state(std::process::id()), Some('R' | 'S')));
    }
}

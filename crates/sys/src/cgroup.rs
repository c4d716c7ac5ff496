//! Control groups, version 2, on the host: a group for each sandbox's processes.
//!
//! Only where whoever started this process gave it a part of the tree to rule, as systemd
//! does for a unit with `Delegate=yes`. Then
//!
//! ```text
//!   …/pando.service/              delegated: it hands controllers on and has no processes itself
//!     daemon/                     this process
//!     sandboxes/                  hands controllers on
//!       NAME/                     one sandbox: its shim and its VMM, born here
//! ```
//!
//! Sources: the kernel's `Documentation/admin-guide/cgroup-v2.rst` (files, "no internal
//! processes", delegation); systemd's `docs/CGROUP_DELEGATION.md` (who may write where; the
//! attribute that marks a delegated group).

use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What limits are put on by. `cpu` and `memory` are what matters; `pids` keeps a VMM that
/// was taken over from filling the host with processes.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// The daemon's own group, which the unit names too (`DelegateSubgroup=`).
const DAEMON: &str = "daemon";

/// What sandboxes' groups are in.
const SANDBOXES: &str = "sandboxes";

/// What systemd marks a group with that it has handed over; the first is readable by its
/// owner too, the second by root alone.
const DELEGATED: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// The time over which `cpu.max` counts, in microseconds: the kernel's own default.
const CPU_PERIOD_US: u64 = 100_000;

/// Groups a sweep looks at; there are at most a few thousand sandboxes on a host.
const SWEPT_MAX: usize = 65_536;

/// Why there are no groups for sandboxes.
#[derive(Debug, thiserror::Error)]
pub enum NotDelegated {
    /// The host has version 1, or both and the controllers belong to that.
    #[error("this host has no unified control groups (version 2)")]
    NoUnified,
    /// Nobody gave this process a part of the tree.
    #[error("`{0}` is not delegated: `systemctl start pando` starts the daemon where it is")]
    NotOurs(String),
    /// The unit's own process is in the delegated group: a restart of the unit would fail if
    /// that handed controllers on.
    #[error("this systemd is older than 254: it knows no `DelegateSubgroup`")]
    OldSystemd,
    /// Some controllers are withheld.
    #[error("the controllers {0} are withheld")]
    NoControllers(String),
    /// A file of the tree could not be read or written.
    #[error("cannot {action} `{}`: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The part of the tree that this process rules.
#[derive(Debug)]
pub struct Cgroups {
    sandboxes: PathBuf,
}

/// Limits of one group; `None` is as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupLimits {
    /// Memory in bytes, page cache included.
    pub memory_bytes: Option<u64>,
    /// Swap in bytes, beyond that.
    pub swap_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

static OURS: OnceLock<Cgroups> = OnceLock::new();

/// What [`take_over`] found, if it did: a process is in one place of the tree only.
pub fn ours() -> Option<&'static Cgroups> {
    OURS.get()
}

/// Takes over the part of the tree that was delegated to this process, moves it into a
/// group of its own there if it is not in one.
///
/// # Errors
/// Nothing is delegated, or not what is needed. Then there are no groups for sandboxes.
pub fn take_over() -> Result<&'static Cgroups, NotDelegated> {
    if let Some(found) = OURS.get() {
        return Ok(found);
    }
    let own = group_of("self")?;
    let place = Place::find(&own, &is_delegated)?;
    if place == Place::Top {
        make(&own.join(DAEMON))?;
        let pid = rustix::process::getpid().as_raw_nonzero().to_string();
        write(&own.join(DAEMON).join("cgroup.procs"), &pid)?;
    }
    let top = place.top(&own);
    hand_on(top)?;
    let sandboxes = top.join(SANDBOXES);
    make(&sandboxes)?;
    hand_on(&sandboxes)?;
    Ok(OURS.get_or_init(|| Cgroups { sandboxes }))
}

/// Where the groups of a daemon's sandboxes are, if it has any: for another process to tell.
///
/// # Errors
/// It has none, or there is no such process.
pub fn of_daemon(pid: u32) -> Result<PathBuf, NotDelegated> {
    let own = group_of(&pid.to_string())?;
    let place = Place::find(&own, &is_delegated)?;
    let sandboxes = place.top(&own).join(SANDBOXES);
    let handed_on = read(&sandboxes.join("cgroup.subtree_control"))?;
    match missing(&handed_on) {
        None => Ok(sandboxes),
        Some(names) => Err(NotDelegated::NoControllers(names)),
    }
}

impl Cgroups {
    /// Makes a group, or finds it, and says what it may use. A process that is started in
    /// it ([`crate::spawn::Spawn::group`]) is never outside.
    ///
    /// # Errors
    /// A file of the tree cannot be written.
    pub fn create(&self, name: &str, limits: &GroupLimits) -> Result<OwnedFd, NotDelegated> {
        let path = self.path(name);
        // One of an earlier life counts what went wrong in that.
        drop(fs::remove_dir(&path));
        make(&path)?;
        for (file, value) in [
            ("memory.max", limits.memory_bytes),
            ("memory.swap.max", limits.swap_bytes),
            ("pids.max", limits.processes),
        ] {
            let file = path.join(file);
            // A kernel without swap accounting has no such file.
            if file.exists() {
                let text = value.map_or_else(|| "max".to_owned(), |value| value.to_string());
                write(&file, &text)?;
            }
        }
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty()).map_err(failed("open", &path))
    }

    /// Says how much CPU time a group may have, in percent of one CPU.
    ///
    /// # Errors
    /// There is no such group, or it cannot be written to.
    pub fn limit_cpu(&self, name: &str, percent: Option<u32>) -> Result<(), NotDelegated> {
        write(&self.path(name).join("cpu.max"), &cpu_max(percent))
    }

    /// How many processes of a group the kernel has killed since the group had reached its
    /// `memory.max`; 0 where there is no such group.
    pub fn oom_kills(&self, name: &str) -> u64 {
        let events = fs::read_to_string(self.path(name).join("memory.events"));
        oom_kills(&events.unwrap_or_default())
    }

    /// Removes a group whose processes have ended; false where one is left, and with it the
    /// group.
    pub fn remove(&self, name: &str) -> bool {
        match fs::remove_dir(self.path(name)) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Removes every group in which nothing is left. Not while one is being filled.
    pub fn sweep(&self) {
        let entries = fs::read_dir(&self.sandboxes).into_iter().flatten();
        for entry in entries.flatten().take(SWEPT_MAX) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // The kernel refuses where anything lives.
                drop(fs::remove_dir(entry.path()));
            }
        }
    }

    /// Where the groups are, for logs.
    pub fn root(&self) -> &Path {
        &self.sandboxes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sandboxes.join(name)
    }
}

/// Where a process is in a delegated part of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the delegated group itself.
    Top,
    /// In the daemon's own group below it.
    Daemon,
}

impl Place {
    fn find(own: &Path, is_delegated: &dyn Fn(&Path) -> bool) -> Result<Self, NotDelegated> {
        let named = |path: &Path, end: &str| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(end)
        };
        match own.parent() {
            Some(parent) if own.ends_with(DAEMON) && is_delegated(parent) => Ok(Self::Daemon),
            _ if !is_delegated(own) => Err(NotDelegated::NotOurs(own.display().to_string())),
            _ if named(own, ".service") => Err(NotDelegated::OldSystemd),
            _ => Ok(Self::Top),
        }
    }

    fn top(self, own: &Path) -> &Path {
        match self {
            Self::Top => own,
            Self::Daemon => own.parent().unwrap_or(own),
        }
    }
}

/// Where a process's group is in the file system.
fn group_of(process: &str) -> Result<PathBuf, NotDelegated> {
    let groups = read(Path::new(&format!("/proc/{process}/cgroup")))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    locate(&groups, &mounts).ok_or(NotDelegated::NoUnified)
}

/// The `0::PATH` of `/proc/PID/cgroup` below the mount of the unified tree. Where the
/// mount shows a part of the tree only, or the controllers are version 1's, there is none.
fn locate(groups: &str, mounts: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let has_version_1 = groups.lines().any(|line| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers
            .split(',')
            .any(|name| CONTROLLERS.contains(&name))
    });
    if has_version_1 {
        return None;
    }
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (after.starts_with("cgroup2 ") && root == "/").then_some(point)
    })?;
    Some(Path::new(mount).join(path.trim_start_matches('/')))
}

fn is_delegated(group: &Path) -> bool {
    DELEGATED.iter().any(|name| {
        let mut value = [0; 8];
        let read = rustix::fs::getxattr(group, *name, &mut value[..]);
        read.is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// Lets the groups below this one have limits.
fn hand_on(group: &Path) -> Result<(), NotDelegated> {
    if let Some(names) = missing(&read(&group.join("cgroup.controllers"))?) {
        return Err(NotDelegated::NoControllers(names));
    }
    let all = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    write(&group.join("cgroup.subtree_control"), &all)
}

/// Which of the needed controllers are not among these.
fn missing(controllers: &str) -> Option<String> {
    let there: Vec<&str> = controllers.split_whitespace().collect();
    let missing: Vec<&str> = CONTROLLERS
        .into_iter()
        .filter(|name| !there.contains(name))
        .collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

fn cpu_max(percent: Option<u32>) -> String {
    match percent {
        Some(percent) => {
            let quota = u64::from(percent) * CPU_PERIOD_US / 100;
            format!("{quota} {CPU_PERIOD_US}")
        }
        None => format!("max {CPU_PERIOD_US}"),
    }
}

fn oom_kills(events: &str) -> u64 {
    let count = events
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

fn make(group: &Path) -> Result<(), NotDelegated> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("make", group)(error))
        }
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<String, NotDelegated> {
    fs::read_to_string(path).map_err(failed("read", path))
}

fn write(path: &Path, text: &str) -> Result<(), NotDelegated> {
    fs::write(path, text).map_err(failed("write", path))
}

fn failed<E: Into<io::Error>>(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> NotDelegated + use<E> {
    let path = path.to_owned();
    move |error| NotDelegated::File {
        action,
        path,
        source: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 0:21 / / rw - ext4 /dev/vda rw\n\
        29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn a_group_is_found_below_the_unified_mount() {
        let groups = "0::/system.slice/pando.service/daemon\n";
        assert_eq!(
            locate(groups, MOUNTS).as_deref(),
            Some(Path::new(
                "/sys/fs/cgroup/system.slice/pando.service/daemon"
            ))
        );
        let at_root = locate("0::/\n", MOUNTS);
        assert_eq!(at_root.as_deref(), Some(Path::new("/sys/fs/cgroup/")));
    }

    #[test]
    fn version_1_and_a_part_of_the_tree_are_no_place_for_groups() {
        let version_1 = "4:memory:/x\n2:cpu,cpuacct:/\n0::/\n";
        assert_eq!(locate(version_1, MOUNTS), None);
        assert_eq!(locate("4:memory:/x\n", MOUNTS), None);
        assert_eq!(locate("", MOUNTS), None);
        let part = MOUNTS.replace("0:26 / ", "0:26 /docker/x ");
        assert_eq!(locate("0::/\n", &part), None);
        assert_eq!(
            locate("0::/\n", "22 1 0:21 / / rw - ext4 /dev/vda rw\n"),
            None
        );
        // A tree without controllers of ours beside version 1's is still no use to us.
        let named_only = "1:name=systemd:/\n0::/x\n";
        assert!(locate(named_only, MOUNTS).is_some());
    }

    #[test]
    fn only_a_delegated_group_is_taken() {
        let unit = Path::new("/c/system.slice/pando.service");
        let is = |delegated: &'static Path| move |group: &Path| group == delegated;
        let found = Place::find(&unit.join("daemon"), &is(unit)).unwrap();
        assert_eq!(found, Place::Daemon);
        assert_eq!(found.top(&unit.join("daemon")), unit);

        // `systemd-run --scope -p Delegate=yes pando serve`
        let scope = Path::new("/c/user.slice/run-1.scope");
        assert_eq!(Place::find(scope, &is(scope)).unwrap(), Place::Top);
        let refused = Place::find(unit, &is(unit));
        assert!(matches!(refused, Err(NotDelegated::OldSystemd)));
        let nobodys = Place::find(Path::new("/c/user.slice/daemon"), &|_| false);
        assert!(matches!(nobodys, Err(NotDelegated::NotOurs(_))));
    }

    #[test]
    fn controllers_that_are_withheld_are_named() {
        assert_eq!(
            missing("cpuset cpu io memory hugetlb pids rdma misc\n"),
            None
        );
        assert_eq!(missing("cpuset io\n").as_deref(), Some("cpu, memory, pids"));
        assert_eq!(missing("cpu pids").as_deref(), Some("memory"));
    }

    #[test]
    fn limits_are_written_as_the_kernel_reads_them() {
        assert_eq!(cpu_max(Some(50)), "50000 100000");
        assert_eq!(cpu_max(Some(800)), "800000 100000");
        assert_eq!(cpu_max(None), "max 100000");
    }

    #[test]
    fn kills_are_told_apart_from_other_events() {
        let events = "low 0\nhigh 0\nmax 31\noom 2\noom_kill 3\noom_group_kill 0\n";
        assert_eq!(oom_kills(events), 3);
        for none in ["", "oom 2\n", "oom_kill x\n", "oom_kill 0\n"] {
            assert_eq!(oom_kills(none), 0, "{none:?}");
        }
    }
}

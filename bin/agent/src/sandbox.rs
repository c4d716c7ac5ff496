//! What all parts of the agent share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use connectrpc::ConnectError;

use crate::boot::Root;
use crate::boot::cgroups::UserCgroup;
use crate::process::CgroupChoice;
use crate::process::table::Table;

/// What the last resume message said that later requests need.
#[derive(Debug, Default, Clone)]
pub(crate) struct Identity {
    /// Environment of every process that is started.
    pub environment: BTreeMap<String, String>,
    /// What the user service asks for; empty: nothing.
    pub access_token: String,
}

/// The sandbox, from inside.
pub(crate) struct Sandbox {
    /// Processes that clients have started.
    pub processes: Table,
    /// Where they live.
    pub cgroup: UserCgroup,
    identity: Mutex<Identity>,
    root: OnceLock<Root>,
    /// What the last process's number was before it was warmed up.
    last_pid: Mutex<Option<String>>,
    /// It is nobody's yet and is being warmed up.
    warming: AtomicBool,
    /// Files that one process may have open; 0 is as many as usual.
    open_files: AtomicU64,
    /// The host limited something.
    limited: AtomicBool,
}

impl Sandbox {
    /// A sandbox whose root is not assembled yet.
    pub(crate) fn new(cgroup: UserCgroup) -> Self {
        Self {
            processes: Table::default(),
            cgroup,
            identity: Mutex::default(),
            root: OnceLock::new(),
            last_pid: Mutex::default(),
            warming: AtomicBool::new(false),
            open_files: AtomicU64::new(0),
            limited: AtomicBool::new(false),
        }
    }

    /// Remembers the last process's number.
    pub(crate) fn set_last_pid(&self, last_pid: Option<String>) {
        *self.last_pid.lock().unwrap_or_else(PoisonError::into_inner) = last_pid;
    }

    /// The last process's number, as it was remembered.
    pub(crate) fn last_pid(&self) -> Option<String> {
        let last_pid = self.last_pid.lock().unwrap_or_else(PoisonError::into_inner);
        last_pid.clone()
    }

    /// Says whether it is being warmed up; returns whether it was.
    pub(crate) fn warm(&self, warming: bool) -> bool {
        self.warming.swap(warming, Ordering::Relaxed)
    }

    /// Says whether the host limits something; returns whether it did.
    pub(crate) fn limit(&self, limited: bool) -> bool {
        self.limited.swap(limited, Ordering::Relaxed)
    }

    /// Lets each process that is started from now on have so many files open; 0 is as many
    /// as usual.
    pub(crate) fn limit_open_files(&self, most: u64) {
        self.open_files.store(most, Ordering::Relaxed);
    }

    /// Soft and hard limit of open files of a process that is started now.
    pub(crate) fn open_files(&self, (soft, hard): (u64, u64)) -> (u64, u64) {
        match self.open_files.load(Ordering::Relaxed) {
            0 => (soft, hard),
            most => (soft.min(most), most),
        }
    }

    /// Where a process that is started now lives. While the sandbox is warmed up only the
    /// host can ask for one, which is to take the way of the first real one; the user's
    /// cgroup is frozen.
    pub(crate) fn cgroup_choice(&self) -> CgroupChoice {
        match self.warming.load(Ordering::Relaxed) {
            true => CgroupChoice::Hooks,
            false => CgroupChoice::User,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes on a new identity.
    pub(crate) fn set_identity(&self, identity: Identity) {
        *self.lock() = identity;
    }

    /// The environment that every process gets.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        self.lock().environment.clone()
    }

    /// What the user service asks for; empty: nothing.
    pub(crate) fn access_token(&self) -> String {
        self.lock().access_token.clone()
    }

    /// The root, once it is assembled.
    pub(crate) fn root(&self) -> Option<&Root> {
        self.root.get()
    }

    /// The root is assembled.
    pub(crate) fn set_root(&self, root: Root) {
        // Only one resume at a time assembles it.
        let _ = self.root.set(root);
    }

    /// # Errors
    /// The root is not assembled: `failed_precondition`.
    pub(crate) fn check_ready(&self) -> Result<(), ConnectError> {
        match self.root() {
            Some(_) => Ok(()),
            None => Err(ConnectError::failed_precondition(
                "the sandbox's disk is not mounted yet",
            )),
        }
    }
}

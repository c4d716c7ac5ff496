//! All processes that the agent has started, and the one place that reaps.
//!
//! As PID 1 the agent is also the parent of every orphan, so it reaps by "any
//! child". A process may end before the thread that started it has said its id:
//! while a start is under way, ends of unknown processes are kept aside for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, wait};
use tokio::sync::oneshot;

use super::Process;
use super::output::ExitStatus;

/// How long an ended process can still be connected to.
const KEPT_AFTER_END: Duration = Duration::from_secs(30);

/// Ended processes kept at once; a burst of short ones must not fill the memory.
const MAX_ENDED: usize = 512;

#[derive(Default)]
struct Inner {
    /// Running ones, and those that ended a short while ago.
    processes: HashMap<u32, Arc<Process>>,
    ended: usize,
    waiting: HashMap<u32, oneshot::Sender<ExitStatus>>,
    starting: usize,
    /// Ends of unknown processes, kept while something is starting.
    early: HashMap<u32, ExitStatus>,
}

/// The process table.
#[derive(Default)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
}

/// A start under way.
pub(crate) struct Starting<'a> {
    table: &'a Table,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut inner = self.table.lock();
        inner.starting -= 1;
        if inner.starting == 0 {
            inner.early.clear();
        }
    }
}

impl Starting<'_> {
    /// The id is known: resolves when the process has ended.
    pub(crate) fn started(self, pid: u32) -> oneshot::Receiver<ExitStatus> {
        let (sender, receiver) = oneshot::channel();
        let mut inner = self.table.lock();
        match inner.early.remove(&pid) {
            // The receiver is right here.
            Some(status) => drop(sender.send(status)),
            None => drop(inner.waiting.insert(pid, sender)),
        }
        receiver
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before a process is created.
    pub(crate) fn starting(&self) -> Starting<'_> {
        self.lock().starting += 1;
        Starting { table: self }
    }

    /// Takes in a running process.
    pub(crate) fn insert(&self, process: Arc<Process>) {
        self.lock().processes.insert(process.pid, process);
    }

    /// Keeps an ended process for a while, then forgets it.
    pub(crate) async fn retire(&self, process: &Arc<Process>) {
        let crowded = {
            let mut inner = self.lock();
            inner.ended += 1;
            inner.ended > MAX_ENDED
        };
        if !crowded {
            tokio::time::sleep(KEPT_AFTER_END).await;
        }
        let mut inner = self.lock();
        inner.ended -= 1;
        // Its id may be another's by now.
        let same = |found: &Arc<Process>| Arc::ptr_eq(found, process);
        if inner.processes.get(&process.pid).is_some_and(same) {
            inner.processes.remove(&process.pid);
        }
    }

    /// The first process that fits, running ones first.
    pub(crate) fn find(&self, fits: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
        let inner = self.lock();
        let fitting = inner.processes.values().filter(|process| fits(process));
        fitting.max_by_key(|process| process.is_running()).cloned()
    }

    /// Forgets what has ended: it was another's.
    pub(crate) fn forget_ended(&self) {
        let mut inner = self.lock();
        // What keeps them for a while finds them gone, and counts down.
        inner.processes.retain(|_, process| process.is_running());
    }

    /// All running processes.
    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        let inner = self.lock();
        let running = inner.processes.values().filter(|p| p.is_running());
        running.cloned().collect()
    }

    /// Reaps every child that has ended. To be called at each SIGCHLD.
    pub(crate) fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let status = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (None, Some(signal)) => ExitStatus::Signal(signal),
                (None, None) => continue,
            };
            self.ended(pid, status);
        }
    }

    fn ended(&self, pid: Pid, status: ExitStatus) {
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        let mut inner = self.lock();
        if let Some(process) = inner.processes.get(&pid) {
            // From here on the id may be another's: no more signals to it.
            process.set_ended();
        }
        if let Some(waiting) = inner.waiting.remove(&pid) {
            // Nobody waits for a process that the agent has lost interest in.
            let _ = waiting.send(status);
        } else if inner.starting > 0 {
            inner.early.insert(pid, status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(id: i32) -> Pid {
        Pid::from_raw(id).expect("not zero")
    }

    #[test]
    fn an_end_before_the_id_is_known_is_not_lost() {
        let table = Table::default();
        let starting = table.starting();
        table.ended(pid(7), ExitStatus::Code(3));
        let mut exit = starting.started(7);
        assert_eq!(exit.try_recv(), Ok(ExitStatus::Code(3)));
    }

    #[test]
    fn an_end_after_the_start_is_delivered() {
        let table = Table::default();
        let mut exit = table.starting().started(7);
        assert!(exit.try_recv().is_err());
        table.ended(pid(7), ExitStatus::Signal(9));
        assert_eq!(exit.try_recv(), Ok(ExitStatus::Signal(9)));
    }

    #[test]
    fn orphans_leave_nothing_behind() {
        let table = Table::default();
        let (first, second) = (table.starting(), table.starting());
        table.ended(pid(7), ExitStatus::Code(0));
        drop(first);
        assert_eq!(table.lock().early.len(), 1, "the second may be about 7");
        drop(second);
        table.ended(pid(8), ExitStatus::Code(0));
        let inner = table.lock();
        assert!(inner.early.is_empty() && inner.waiting.is_empty());
    }
}

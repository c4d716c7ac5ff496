//! Who uses the files of a published snapshot by their names. As long as somebody does,
//! nothing takes their place: see [`crate::Snapshots::replace`].

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The leases of one directory of snapshots. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// How many there are of each key that has some.
    held: Mutex<HashMap<String, usize>>,
    ended: Condvar,
}

/// The use of one snapshot, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Leases,
    key: String,
}

impl Leases {
    /// Begins a use; waits while the snapshot is being replaced.
    pub(crate) fn begin(&self, key: &str) -> Lease {
        *self.lock().entry(key.to_owned()).or_default() += 1;
        Lease {
            leases: self.clone(),
            key: key.to_owned(),
        }
    }

    /// Does something while nobody uses the snapshot or begins to; `None` if it is in use
    /// for longer than `patience`.
    pub(crate) fn alone<R>(
        &self,
        key: &str,
        patience: Duration,
        work: impl FnOnce() -> R,
    ) -> Option<R> {
        let in_use = |held: &mut HashMap<String, usize>| held.contains_key(key);
        let waited = self
            .0
            .ended
            .wait_timeout_while(self.lock(), patience, in_use);
        let (held, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        let done = work();
        drop(held);
        Some(done)
    }

    /// Does something that no replacement may come in between of.
    pub(crate) fn unreplaced<R>(&self, work: impl FnOnce() -> R) -> R {
        let held = self.lock();
        let done = work();
        drop(held);
        done
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.leases.lock();
        if let Some(count) = held.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.key);
                self.leases.0.ended.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_not_alone_until_the_last_use_ends() {
        let leases = Leases::default();
        let (one, two) = (leases.begin("a"), leases.begin("a"));
        let alone = |patience| leases.alone("a", Duration::from_millis(patience), || ());
        assert_eq!(alone(1), None);
        drop(one);
        assert_eq!(alone(1), None);
        assert_eq!(leases.alone("b", Duration::ZERO, || ()), Some(()));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(two));
            assert_eq!(alone(60_000), Some(()));
        });
    }
}

//! Carries the rules out: looks at all sandboxes when one could be due, and ends those that are.

use super::rules::{Cause, Verdict, View, verdict};
use crate::EngineError;
use crate::engine::Engine;
use crate::observe::Operation;
use crate::sandboxes::Entry;
use pando_store::NewEvent;
use pando_types::{Lifespan, OnTimeout, SandboxId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The longest between two looks. Deadlines are on the host's clock, which may be set, and
/// stands for nobody's timer while the host sleeps.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The shortest: sandboxes that are due within it are ended together.
const PAUSE: Duration = Duration::from_millis(10);

/// One that could not be ended, for want of disk space say, is tried again after so long,
/// then after twice that, and so on up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(600);

/// What the keeper knows from one look to the next.
#[derive(Default)]
struct Keeping {
    tasks: JoinSet<Result<(), EngineError>>,
    /// What each task ends.
    ending: HashMap<tokio::task::Id, SandboxId>,
    failed: HashMap<SandboxId, Failed>,
}

/// A sandbox that could not be ended.
#[derive(Clone, Copy)]
struct Failed {
    again_at: Instant,
    pause: Duration,
}

impl Keeping {
    /// How long one that is due is let be, since it could not be ended a short while ago.
    fn put_off(&self, sandbox: &SandboxId) -> Option<Duration> {
        let again_at = self.failed.get(sandbox)?.again_at;
        again_at.checked_duration_since(Instant::now())
    }
}

impl Engine {
    /// Ends sandboxes whose time is over, as long as the daemon lives.
    pub(crate) async fn keep_lifetimes(self) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = Arc::new(Semaphore::new(cores));
        let mut keeping = Keeping::default();
        loop {
            let wait = self.end_due(&mut keeping, &turns);
            tokio::select! {
                () = tokio::time::sleep(wait.max(PAUSE)) => {}
                () = self.inner.lifetimes.changed.notified() => {}
                Some(ended) = keeping.tasks.join_next_with_id() => {
                    let (task, done) = match ended {
                        Ok((task, done)) => (task, done),
                        Err(error) => (error.id(), Err(EngineError::internal(&error))),
                    };
                    self.ended(&mut keeping, task, done).await;
                }
            }
        }
    }

    /// Begins to end all that are due, and says when the next could be.
    fn end_due(&self, keeping: &mut Keeping, turns: &Arc<Semaphore>) -> Duration {
        let mut wait = LOOK_AGAIN;
        let all = self.inner.sandboxes.all();
        keeping
            .failed
            .retain(|id, _| self.inner.sandboxes.get(id).is_some());
        for entry in all {
            if keeping.ending.values().any(|ending| *ending == entry.id) {
                continue;
            }
            let left = match verdict(&view(&entry)) {
                Verdict::Now(..) => keeping.put_off(&entry.id),
                Verdict::In(left) => Some(left),
                Verdict::Never => continue,
            };
            match left {
                Some(left) => wait = wait.min(left),
                None => self.begin_to_end(keeping, turns, entry),
            }
        }
        wait
    }

    fn begin_to_end(&self, keeping: &mut Keeping, turns: &Arc<Semaphore>, entry: Arc<Entry>) {
        let (engine, turns, id) = (self.clone(), Arc::clone(turns), entry.id.clone());
        let task = keeping.tasks.spawn(async move {
            // Never closed.
            let _few_at_once = turns.acquire().await;
            engine.end_if_due(&entry).await
        });
        keeping.ending.insert(task.id(), id);
    }

    /// Ends a sandbox whose time is over, by the ways in which a caller would.
    async fn end_if_due(&self, entry: &Arc<Entry>) -> Result<(), EngineError> {
        let _turn = entry.turn.lock().await;
        // Whatever had the turn before may have changed all of it.
        if !self.inner.sandboxes.has(entry) {
            return Ok(());
        }
        let _closed = match verdict(&view(entry)) {
            Verdict::Now(_, Cause::Timeout) => entry.activity.close(),
            Verdict::Now(_, Cause::Idle) => match entry.activity.close_if_unused() {
                Some(closed) => closed,
                None => return Ok(()),
            },
            Verdict::Never | Verdict::In(_) => return Ok(()),
        };
        // A use may have come and gone before it was closed.
        let Verdict::Now(deed, cause) = verdict(&view(entry)) else {
            return Ok(());
        };
        let why = cause.sentence();
        tracing::info!(sandbox = %entry.id, "{deed}: {why}");
        match deed {
            OnTimeout::Kill => {
                let removing = self.erase(entry, why);
                self.observed(Operation::Remove, &entry.id, removing).await
            }
            OnTimeout::Pause => {
                let pausing = self.put_on_disk(entry, Some(why));
                self.observed(Operation::Pause, &entry.id, pausing).await
            }
        }
    }

    async fn ended(
        &self,
        keeping: &mut Keeping,
        task: tokio::task::Id,
        done: Result<(), EngineError>,
    ) {
        let Some(id) = keeping.ending.remove(&task) else {
            return;
        };
        let Err(error) = done else {
            keeping.failed.remove(&id);
            return;
        };
        let before = keeping.failed.get(&id).map(|failed| failed.pause * 2);
        let pause = before.unwrap_or(RETRY_FIRST).min(RETRY_MAX);
        let again_at = Instant::now() + pause;
        tracing::warn!(sandbox = %id, ?pause, "its time is over, and it cannot be ended: {error}");
        keeping
            .failed
            .insert(id.clone(), Failed { again_at, pause });
        self.tell_of_failure(&id, &error).await;
    }

    /// Whoever looks why a sandbox is still there finds it.
    async fn tell_of_failure(&self, id: &SandboxId, error: &EngineError) {
        let Some(entry) = self.inner.sandboxes.get(id) else {
            return;
        };
        let (tenant, id, detail) = (entry.row().tenant, id.to_string(), error.to_string());
        let added = self.aside(move |inner| {
            inner.index.add_event(&NewEvent {
                tenant: &tenant,
                kind: "sandbox.timeout_failed",
                subject: &id,
                detail: &detail,
            })
        });
        // A disk without room is what it is about, mostly.
        drop(added.await);
    }
}

/// What the rules need to know of a sandbox.
fn view(entry: &Entry) -> View {
    let (state, lifetime) = entry.life();
    let now = SystemTime::now();
    View {
        state,
        expires_in: lifetime
            .expires_at
            .map(|at| at.duration_since(now).unwrap_or_default()),
        idle_timeout: lifetime.idle_timeout.map(Lifespan::get),
        idle: entry.activity.idle(),
        on_timeout: lifetime.on_timeout,
    }
}

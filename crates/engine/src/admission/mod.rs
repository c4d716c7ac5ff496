//! Who may start now: limits of the tenant, memory of the host, a turn on its CPUs.
//!
//! [`rules`] and [`quota`] decide and are pure. Whatever brings a VM up for a request asks
//! [`Engine::admit`] first, before any work, and holds the [`Admitted`] until the VM answers
//! or is known not to: what it was promised is nobody else's until then. A start that cannot
//! be is refused at once, with the time after which to ask again.

mod quota;
mod rules;

pub use quota::TenantLimits;

use crate::EngineError;
use crate::engine::Engine;
use crate::request::Caller;
use pando_types::{SandboxId, SandboxState, Size};
use quota::Used;
use rules::{Reckoning, View};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a start may wait for its turn. Clients wait a minute or more for an answer.
const TURN_TIMEOUT: Duration = Duration::from_secs(50);

/// A start without KVM on a busy machine, until some were measured.
const FIRST_MEAN_MS: u64 = 500;

/// The mean follows the last dozen.
const MEAN_WEIGHT: u64 = 12;

/// After this a full host may have room: somebody's sandbox has ended.
const FULL_RETRY_S: u64 = 5;

/// What living sandboxes have for their own is measured anew after this.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// How starts are admitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmissionConfig {
    /// Memory that is left to the host; `None`: a sixteenth of it, 256 MiB at least and 4 GiB
    /// at most.
    pub reserve_mib: Option<u64>,
    /// What the sizes of all sandboxes together may be, in percent of the memory that there
    /// is for them; `None`: not their sizes count, but what they have for their own.
    pub overcommit_percent: Option<u32>,
    /// What each tenant may have.
    pub tenant: TenantLimits,
}

/// What is admitted and what waits.
#[derive(Debug)]
pub(crate) struct Admission {
    config: AdmissionConfig,
    turns: Arc<Semaphore>,
    at_once: usize,
    queue: usize,
    waiting: AtomicUsize,
    mean_ms: AtomicU64,
    refused: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    promises: BTreeMap<u64, Promise>,
    measured: Option<Measured>,
}

/// What was said to one start.
#[derive(Debug)]
struct Promise {
    tenant: String,
    size: Size,
    /// Once it is known.
    sandbox: Option<SandboxId>,
    bytes: u64,
}

/// What living sandboxes have for their own, in bytes.
#[derive(Clone, Debug)]
struct Measured {
    at: Instant,
    private: HashMap<SandboxId, u64>,
}

/// Who asks for a start, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) size: Size,
    /// For one that exists: it does not count beside itself.
    pub(crate) sandbox: Option<&'a SandboxId>,
    /// Whether it waits for its turn as long as it takes: a part of a larger request, which
    /// has bounds of its own.
    pub(crate) patient: bool,
}

impl<'a> Ask<'a> {
    /// For a new sandbox.
    pub(crate) fn for_new(caller: &'a Caller, size: Size) -> Self {
        Self {
            tenant: &caller.tenant,
            size,
            sandbox: None,
            patient: false,
        }
    }

    /// For a sandbox that exists.
    pub(crate) fn for_own(tenant: &'a str, size: Size, sandbox: &'a SandboxId) -> Self {
        Self {
            tenant,
            size,
            sandbox: Some(sandbox),
            patient: false,
        }
    }
}

/// A start that may be. Its promise is held as long as this lives.
#[derive(Debug)]
pub(crate) struct Admitted {
    engine: Engine,
    promise: u64,
    patient: bool,
    /// A place in the queue, unless it needs none.
    _place: Option<Place>,
}

/// A place in the queue.
#[derive(Debug)]
struct Place(Engine);

impl Drop for Place {
    fn drop(&mut self) {
        self.0
            .inner
            .admission
            .waiting
            .fetch_sub(1, Ordering::Relaxed);
    }
}

/// A turn on the CPUs.
#[derive(Debug)]
pub(crate) struct Turn {
    engine: Engine,
    since: Instant,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let took = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mean = &self.engine.inner.admission.mean_ms;
        // Two at once may lose one of their times.
        let before = mean.load(Ordering::Relaxed);
        let after = (before * (MEAN_WEIGHT - 1) + took.min(60_000)) / MEAN_WEIGHT;
        mean.store(after.max(1), Ordering::Relaxed);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.engine.inner.admission.lock();
        state.promises.remove(&self.promise);
    }
}

impl Admitted {
    /// It becomes this sandbox, which counts by its row from now on. Before anybody can
    /// find it.
    pub(crate) fn becomes(&self, sandbox: &SandboxId) {
        let mut state = self.engine.inner.admission.lock();
        if let Some(promise) = state.promises.get_mut(&self.promise) {
            promise.sandbox = Some(sandbox.clone());
        }
    }

    /// Waits for a turn on the CPUs.
    ///
    /// # Errors
    /// The queue moves too slowly; no work was done.
    pub(crate) async fn turn(&self) -> Result<Turn, EngineError> {
        let admission = &self.engine.inner.admission;
        let acquired = Arc::clone(&admission.turns).acquire_owned();
        let permit = match self.patient {
            true => Some(acquired.await),
            false => tokio::time::timeout(TURN_TIMEOUT, acquired).await.ok(),
        };
        let Some(permit) = permit else {
            return Err(admission.busy(admission.queue));
        };
        Ok(Turn {
            engine: self.engine.clone(),
            since: Instant::now(),
            // Never closed.
            _permit: permit.ok(),
        })
    }
}

impl Admission {
    pub(crate) fn new(config: AdmissionConfig) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let at_once = rules::at_once(cpus);
        Self {
            config,
            turns: Arc::new(Semaphore::new(at_once)),
            at_once,
            queue: rules::queue_length(cpus) + at_once,
            waiting: AtomicUsize::new(0),
            mean_ms: AtomicU64::new(FIRST_MEAN_MS),
            refused: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each tenant may have.
    pub(crate) fn tenant_limits(&self) -> &TenantLimits {
        &self.config.tenant
    }

    /// Memory that starts under way were promised, in bytes.
    pub(crate) fn promised_bytes(&self) -> u64 {
        let state = self.lock();
        state.promises.values().map(|promise| promise.bytes).sum()
    }

    /// Starts that were refused since the daemon's.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Starts that wait for their turn or have it.
    pub(crate) fn under_way(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn busy(&self, ahead: usize) -> EngineError {
        let mean_ms = self.mean_ms.load(Ordering::Relaxed);
        EngineError::Busy {
            ahead,
            retry_after_s: rules::retry_after_s(ahead, mean_ms, self.at_once),
        }
    }

    /// Memory that is left to a host with so much, in bytes.
    pub(crate) fn reserve_bytes(&self, total: u64) -> u64 {
        let part = total / rules::RESERVE_PART;
        let usual = part.clamp(*rules::RESERVE_BYTES.start(), *rules::RESERVE_BYTES.end());
        self.config.reserve_mib.map_or(usual, |mib| mib << 20)
    }
}

impl Engine {
    /// Lets a start begin, before any work of it is done. Clones that wait ready are given
    /// up before it is refused.
    ///
    /// # Errors
    /// A limit of the tenant is in the way, the host's memory is used, or too many wait.
    pub(crate) async fn admit(&self, ask: Ask<'_>) -> Result<Admitted, EngineError> {
        let admitted = self.try_admit(ask).await;
        if let Err(error) = &admitted {
            self.inner.admission.refused.fetch_add(1, Ordering::Relaxed);
            tracing::info!(tenant = ask.tenant, "a start is refused: {error}");
        }
        admitted
    }

    async fn try_admit(&self, ask: Ask<'_>) -> Result<Admitted, EngineError> {
        let place = match ask.patient {
            true => None,
            false => Some(self.take_place()?),
        };
        self.measure().await;
        loop {
            match self.promise(ask)? {
                Ok(promise) => {
                    return Ok(Admitted {
                        engine: self.clone(),
                        promise,
                        patient: ask.patient,
                        _place: place,
                    });
                }
                Err(view) => {
                    if !self.give_up_slot().await {
                        return Err(EngineError::HostFull {
                            needed_mib: view.expected.div_ceil(1 << 20),
                            left_mib: view.left() >> 20,
                            retry_after_s: FULL_RETRY_S,
                        });
                    }
                }
            }
        }
    }

    fn take_place(&self) -> Result<Place, EngineError> {
        let admission = &self.inner.admission;
        let ahead = admission.waiting.fetch_add(1, Ordering::Relaxed);
        // Gives the place back if there is none.
        let place = Place(self.clone());
        match ahead < admission.queue {
            true => Ok(place),
            false => Err(admission.busy(ahead)),
        }
    }

    /// Promises what is asked for, or says why not.
    fn promise(&self, ask: Ask<'_>) -> Result<Result<u64, View>, EngineError> {
        let admission = &self.inner.admission;
        let mut state = admission.lock();
        admission
            .config
            .tenant
            .check(self.used(&state, ask), ask.size)?;
        let view = self.view(&state, ask)?;
        if !view.admits() {
            return Ok(Err(view));
        }
        let number = state.next;
        state.next += 1;
        let promise = Promise {
            tenant: ask.tenant.to_owned(),
            size: ask.size,
            sandbox: ask.sandbox.cloned(),
            bytes: view.expected,
        };
        state.promises.insert(number, promise);
        Ok(Ok(number))
    }

    /// What the tenant has: by rows, and by promises of what has no row that says so yet.
    fn used(&self, state: &State, ask: Ask<'_>) -> Used {
        let promised = |id: &SandboxId| {
            let mut promises = state.promises.values();
            promises.any(|promise| promise.sandbox.as_ref() == Some(id))
        };
        let mut used = Used::default();
        for entry in self.inner.sandboxes.all() {
            let row = entry.row();
            let counts = row.tenant == ask.tenant
                && lives(row.state)
                && Some(&entry.id) != ask.sandbox
                && !promised(&entry.id);
            if counts && let Ok(size) = Size::new(row.cpus, row.memory_mib) {
                used = used.and(size);
            }
        }
        let promises = state.promises.values();
        promises
            .filter(|promise| promise.tenant == ask.tenant)
            .fold(used, |used, promise| used.and(promise.size))
    }

    fn view(&self, state: &State, ask: Ask<'_>) -> Result<View, EngineError> {
        let admission = &self.inner.admission;
        let memory = pando_sys::host::memory().map_err(|error| EngineError::internal(&error))?;
        let private = state.measured.as_ref().map(|measured| &measured.private);
        let average = private
            .filter(|private| !private.is_empty())
            .map(|private| {
                let count = u64::try_from(private.len()).unwrap_or(u64::MAX);
                private.values().sum::<u64>() / count
            });
        let reckoning = match admission.config.overcommit_percent {
            Some(percent) => Reckoning::Overcommit(percent),
            None => Reckoning::Measured(average),
        };
        let promised: u64 = state.promises.values().map(|promise| promise.bytes).sum();
        let growth = match reckoning {
            Reckoning::Measured(_) => 0,
            Reckoning::Overcommit(_) => self.growth(state, reckoning),
        };
        Ok(View {
            available: memory.available_bytes,
            reserve: admission.reserve_bytes(memory.total_bytes),
            owed: promised + growth + self.inner.pool.filling_bytes(),
            expected: rules::expected_bytes(ask.size, reckoning),
        })
    }

    /// What living sandboxes have not taken yet of what they were promised, in bytes.
    fn growth(&self, state: &State, reckoning: Reckoning) -> u64 {
        let has = |id: &SandboxId| {
            let measured = state.measured.as_ref();
            measured.and_then(|measured| measured.private.get(id).copied())
        };
        let promised = |id: &SandboxId| {
            let mut promises = state.promises.values();
            promises.any(|promise| promise.sandbox.as_ref() == Some(id))
        };
        let living = self.inner.sandboxes.all().into_iter().filter_map(|entry| {
            let row = entry.row();
            let counts = lives(row.state) && !promised(&entry.id);
            let size = Size::new(row.cpus, row.memory_mib).ok();
            size.filter(|_| counts).map(|size| {
                let expected = rules::expected_bytes(size, reckoning);
                expected.saturating_sub(has(&entry.id).unwrap_or(0))
            })
        });
        living.sum()
    }

    /// Measures what living sandboxes have for their own, now and then. Only the first that
    /// asks waits for it: what they had a moment ago is as good.
    async fn measure(&self) {
        let age = {
            let state = self.inner.admission.lock();
            let measured = state.measured.as_ref();
            measured.map(|measured| measured.at.elapsed())
        };
        match age {
            None => self.measure_now().await,
            Some(age) if age < MEASURE_EVERY => {}
            Some(_) => {
                let engine = self.clone();
                tokio::spawn(async move { engine.measure_now().await });
            }
        }
    }

    async fn measure_now(&self) {
        let private = self.aside(|inner| {
            let running = inner.sandboxes.all().into_iter();
            let running = running.filter(|entry| entry.state() == SandboxState::Running);
            let private = running.filter_map(|entry| {
                let used = entry.shim()?.process?.usage();
                Some((entry.id.clone(), used.private_bytes))
            });
            private.collect::<HashMap<_, _>>()
        });
        if let Ok(private) = private.await {
            let at = Instant::now();
            self.inner.admission.lock().measured = Some(Measured { at, private });
        }
    }
}

/// Whether a sandbox in this state has a VM.
fn lives(state: SandboxState) -> bool {
    matches!(
        state,
        SandboxState::Creating | SandboxState::Running | SandboxState::Stopping
    )
}

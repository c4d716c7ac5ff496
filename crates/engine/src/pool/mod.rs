//! Work done before the request: slots that wait to become sandboxes.
//!
//! [`rules`] and [`demand`] decide and are pure; `keeper` carries out, `claim` turns a slot
//! into a sandbox. A slot has the id, the directory and the account of the sandbox that it
//! may become, so that a claim moves nothing. It has no row: a slot is found by its
//! directory and what its shim says.

mod claim;
mod demand;
mod keeper;
mod rules;

pub use demand::WarmCount;

use crate::bake::Ingredients;
use crate::request::{PoolSlots, PoolStatus};
use crate::shims::Shim;
use demand::{Demand, Failures};
use pando_types::{SandboxId, TemplateRef};
pub(crate) use rules::Kind;
use rules::{Have, Limit, Target, View, Want};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// How the pool is kept.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Warm clones of each template and size in use.
    pub warm: WarmCount,
    /// Memory of the host that the pool leaves to others; `None`: an eighth of it,
    /// 512 MiB at least and 8 GiB at most.
    pub reserve_mib: Option<u64>,
}

/// What was made of what waits, for the counters.
const KINDS: [&str; 4] = ["warm", "bound", "generic", "none"];

/// The slots of a daemon.
#[derive(Debug)]
pub(crate) struct Pool {
    config: PoolConfig,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug)]
struct State {
    sources: BTreeMap<String, Source>,
    slots: Vec<Slot>,
    failures: Failures,
    spawns: usize,
    last_request: Instant,
    put_off_since: Option<Instant>,
    limited_by: Option<Limit>,
    claims: BTreeMap<&'static str, u64>,
    /// How often something was forgotten.
    forgets: u64,
    /// The daemon ends: nothing is made any more.
    closed: bool,
}

/// What slots are made from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// All that have this image; never none.
    templates: BTreeSet<TemplateRef>,
    pub(crate) ingredients: Ingredients,
    /// The key of all snapshots of its size.
    shape: String,
    demand: Demand,
}

impl Source {
    /// Its templates, for a person.
    fn names(&self) -> String {
        let names: Vec<_> = self.templates.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// What its slots are made for, for a person.
    fn describe(&self) -> String {
        let size = self.ingredients.size;
        format!(
            "{}, {} CPU, {} MiB",
            self.names(),
            size.cpus(),
            size.memory_mib()
        )
    }
}

#[derive(Debug)]
struct Slot {
    id: SandboxId,
    target: Target,
    /// `None` while it is being made.
    ready: Option<Ready>,
}

/// A slot that waits.
#[derive(Debug)]
struct Ready {
    shim: Arc<Shim>,
    /// Notices its death.
    watcher: AbortHandle,
}

/// A slot that was taken out: nobody else can have it.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) id: SandboxId,
    pub(crate) shim: Arc<Shim>,
    pub(crate) kind: Kind,
}

/// What is to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) template: &'a TemplateRef,
    pub(crate) ingredients: &'a Ingredients,
}

/// Names a snapshot, and all that have its size.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) snapshot: String,
    pub(crate) shape: String,
}

/// Held while a sandbox is started for a request; the pool yields to it.
pub(crate) struct Spawning<'p>(&'p Pool);

impl Drop for Spawning<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.spawns -= 1;
        state.last_request = Instant::now();
        drop(state);
        self.0.wake.notify_one();
    }
}

impl Pool {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            config,
            state: Mutex::new(State {
                sources: BTreeMap::new(),
                slots: Vec::new(),
                failures: Failures::default(),
                spawns: 0,
                last_request: Instant::now(),
                put_off_since: None,
                limited_by: None,
                claims: KINDS.into_iter().map(|kind| (kind, 0)).collect(),
                forgets: 0,
                closed: false,
            }),
            wake: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is ever to wait.
    fn is_off(&self) -> bool {
        self.config.warm == WarmCount::Fixed(0)
    }

    /// A request came: whatever it asks for comes before the pool's own work.
    pub(crate) fn request_came(&self) {
        self.lock().last_request = Instant::now();
    }

    /// A sandbox is being started.
    pub(crate) fn spawning(&self) -> Spawning<'_> {
        self.lock().spawns += 1;
        Spawning(self)
    }

    /// A sandbox of this was asked for, and more may follow; unless a template was removed
    /// since [`Self::forgets`] was `forgets`, which may be this one.
    pub(crate) fn asked(&self, wanted: &Wanted<'_>, forgets: u64) {
        self.source(wanted, forgets, |demand, now| demand.asked(now));
        self.wake.notify_one();
    }

    /// This is a template's usual size: the first request is not to wait. See [`Self::asked`].
    pub(crate) fn stand(&self, wanted: &Wanted<'_>, forgets: u64) {
        self.source(wanted, forgets, |demand, _| demand.stand());
        self.wake.notify_one();
    }

    /// Changes when something is forgotten.
    pub(crate) fn forgets(&self) -> u64 {
        self.lock().forgets
    }

    fn source(&self, wanted: &Wanted<'_>, forgets: u64, change: impl FnOnce(&mut Demand, Instant)) {
        let now = Instant::now();
        let mut state = self.lock();
        if self.is_off() || state.closed || state.forgets != forgets {
            return;
        }
        let new = || Source {
            templates: BTreeSet::new(),
            ingredients: wanted.ingredients.clone(),
            shape: wanted.keys.shape.clone(),
            demand: Demand::new(now, false),
        };
        let source = state.sources.entry(wanted.keys.snapshot.clone());
        let source = source.or_insert_with(new);
        source.templates.insert(wanted.template.clone());
        change(&mut source.demand, now);
    }

    /// Nothing of this template is wanted any more, but for what has this root image.
    /// Returns what [`Self::forgets`] is now.
    pub(crate) fn forget(&self, template: &TemplateRef, except_root: Option<&str>) -> u64 {
        let mut state = self.lock();
        state.forgets += 1;
        state.sources.retain(|_, source| {
            if Some(source.ingredients.base.content_hash.as_str()) != except_root {
                source.templates.remove(template);
            }
            !source.templates.is_empty()
        });
        let forgets = state.forgets;
        drop(state);
        self.wake.notify_one();
        forgets
    }

    /// Its bake is gone: the next request makes it again.
    fn drop_source(&self, target: &Target) {
        self.lock().sources.remove(&target.key);
    }

    /// Takes out the best slot of this that waits.
    pub(crate) fn take(&self, key: &str) -> Option<Taken> {
        let mut state = self.lock();
        let fits = |slot: &Slot| slot.target.key == key && slot.ready.is_some();
        let best = state
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| fits(slot))
            // The oldest of the best kind.
            .min_by_key(|(index, slot)| (slot.target.kind, *index));
        let index = best.map(|(index, _)| index)?;
        let slot = state.slots.remove(index);
        let ready = slot.ready?;
        ready.watcher.abort();
        Some(Taken {
            id: slot.id,
            shim: ready.shim,
            kind: slot.target.kind,
        })
    }

    /// Memory that slots will take that are being made, in bytes.
    pub(crate) fn filling_bytes(&self) -> u64 {
        let state = self.lock();
        let filling = state.slots.iter().filter(|slot| slot.ready.is_none());
        filling.map(|slot| slot.target.kind.cost_bytes()).sum()
    }

    /// A sandbox was made from this kind of slot, or of `none`.
    pub(crate) fn count_claim(&self, kind: &'static str) {
        *self.lock().claims.entry(kind).or_default() += 1;
    }

    /// For people and counters.
    pub(crate) fn status(&self) -> PoolStatus {
        let mut state = self.lock();
        let mut slots = Vec::new();
        for want in state.wants(self.config.warm, Instant::now()) {
            let waits = |slot: &&Slot| slot.target == want.target && slot.ready.is_some();
            let waiting = state.slots.iter().filter(waits).count();
            let Some(source) = state.source(&want.target) else {
                continue;
            };
            slots.push(PoolSlots {
                template: (want.target.kind != Kind::Generic).then(|| source.names()),
                size: source.ingredients.size,
                kind: want.target.kind.as_str(),
                waiting,
                wanted: want.count,
            });
        }
        PoolStatus {
            slots,
            filling: state
                .slots
                .iter()
                .filter(|slot| slot.ready.is_none())
                .count(),
            limited_by: state.limited_by.map(|limit| limit.as_str().to_owned()),
            claims: state.claims.clone(),
        }
    }

    /// Nothing is made from now on, and nothing waits for long.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.sources.clear();
        drop(state);
        self.wake.notify_one();
    }

    /// Whether a sandbox is being started, or a slot made.
    fn is_busy(&self) -> bool {
        let state = self.lock();
        state.spawns > 0 || state.slots.iter().any(|slot| slot.ready.is_none())
    }
}

impl State {
    /// Takes a slot out, whoever wants it; false if it is out already.
    fn take_out(&mut self, id: &SandboxId) -> bool {
        let before = self.slots.len();
        self.slots.retain(|slot| slot.id != *id);
        self.slots.len() < before
    }

    /// What a slot is made from: for one that fits any snapshot, any of its size.
    fn source(&mut self, target: &Target) -> Option<&mut Source> {
        match target.kind {
            Kind::Generic => self
                .sources
                .values_mut()
                .find(|source| source.shape == target.key),
            Kind::Warm | Kind::Bound => self.sources.get_mut(&target.key),
        }
    }

    /// What is to wait, the most wanted first.
    fn wants(&mut self, warm: WarmCount, now: Instant) -> Vec<Want> {
        self.sources.retain(|_, source| !source.demand.is_over(now));
        let mut sources: Vec<_> = self.sources.iter_mut().collect();
        sources.sort_by_key(|(_, source)| std::cmp::Reverse(source.demand.last_used()));
        let mut wants: Vec<_> = sources
            .into_iter()
            .flat_map(|(key, source)| source.demand.wants((key, &source.shape), warm, now))
            .collect();
        // Several snapshots of a size share what fits them all.
        let mut seen = BTreeSet::new();
        wants.retain(|want| seen.insert(want.target.clone()));
        // Each one's warm clones before anybody's second best.
        wants.sort_by_key(|want| want.target.kind);
        self.failures.mark(&mut wants, now);
        wants
    }

    /// What a decision depends on, without what the host says of itself.
    fn view(&mut self, warm: WarmCount, now: Instant) -> View<SandboxId> {
        let wants = self.wants(warm, now);
        let haves = self.slots.iter().map(|slot| Have {
            id: slot.id.clone(),
            target: slot.target.clone(),
            waiting: slot.ready.is_some(),
        });
        View {
            wants,
            haves: haves.collect(),
            memory_available_bytes: 0,
            memory_reserve_bytes: 0,
            disk_free_bytes: 0,
            cpus: 1,
            spawns: self.spawns,
            quiet: now.duration_since(self.last_request),
            put_off: self
                .put_off_since
                .map_or(Duration::ZERO, |since| now.duration_since(since)),
        }
    }
}

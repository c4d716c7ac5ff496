//! Carries the rules out: makes slots, ends them, takes over those of an earlier daemon.

use super::rules::{self, Kind, Limit, Step, Target, View};
use super::{Ready, Slot, Source, Wanted};
use crate::EngineError;
use crate::bake::{Ingredients, Plan};
use crate::engine::Engine;
use crate::shims::{Shim, ShimProcess, log_last_words};
use crate::spawn::end_of;
use crate::{identity, ids};
use pando_shim::spec::{self, Begin, ShimSpec, Wait};
use pando_store::{SandboxDir, Snapshot};
use pando_types::{SandboxId, Size, TemplateRef};
use pando_wire::shim::State as ShimState;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Programs whose way every clone has gone before it is somebody's: what an exec does,
/// and a shell. They leave nothing behind.
const WARM_UP: [&[&str]; 2] = [&["/bin/true"], &["/bin/sh", "-c", "true"]];

/// A slot that takes longer is not worth waiting for.
const FILL_TIMEOUT: Duration = Duration::from_secs(90);

/// A slot that waits says so at once; one that a daemon left half made is made anew.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of a daemon waits for slots that are being claimed or made.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
const CLOSE_PAUSE: Duration = Duration::from_millis(20);

/// Bounds of the memory that is left to others where nothing is configured.
const RESERVE_BYTES: std::ops::RangeInclusive<u64> = (512 << 20)..=(8 << 30);

impl Engine {
    /// Keeps the pool as long as the daemon lives.
    pub(crate) async fn keep_pool(self) {
        let pool = &self.inner.pool;
        // Where nothing is to wait there is nothing to look for.
        while !pool.is_off() && !pool.lock().closed {
            let view = self.look().await;
            match rules::next(&view) {
                Step::Fill(target) => self.begin_to_fill(target),
                Step::Retire(id) => drop(self.retire(&id).await),
                Step::Rest {
                    again_in,
                    limited_by,
                } => self.rest(again_in, limited_by).await,
            }
        }
    }

    async fn rest(&self, again_in: Option<Duration>, limited_by: Option<Limit>) {
        let pool = &self.inner.pool;
        {
            let mut state = pool.lock();
            state.limited_by = limited_by;
            state.put_off_since = match limited_by {
                Some(Limit::Requests) => state.put_off_since.or_else(|| Some(Instant::now())),
                _ => None,
            };
        }
        match again_in {
            // Either is a reason to look again.
            Some(time) => drop(tokio::time::timeout(time, pool.wake.notified()).await),
            None => pool.wake.notified().await,
        }
    }

    async fn look(&self) -> View<SandboxId> {
        let pool = &self.inner.pool;
        let mut view = pool.lock().view(pool.config.warm, Instant::now());
        let host = self
            .blocking(|inner| {
                let memory = pando_sys::host::memory()?;
                let disk = pando_sys::host::disk_free_bytes(&inner.config.state_dir)?;
                Ok::<_, std::io::Error>((memory, disk))
            })
            .await;
        // A host that does not say gets no slots.
        if let Ok((memory, disk_free_bytes)) = host {
            let eighth =
                (memory.total_bytes / 8).clamp(*RESERVE_BYTES.start(), *RESERVE_BYTES.end());
            let configured = pool.config.reserve_mib.map(|mib| mib << 20);
            // What a start would be refused is not for what waits.
            let for_starts = self.inner.admission.reserve_bytes(memory.total_bytes);
            // What sandboxes were promised that are being started is theirs.
            let promised = self.inner.admission.promised_bytes();
            view.memory_available_bytes = memory.available_bytes.saturating_sub(promised);
            view.memory_reserve_bytes = configured.unwrap_or(eighth).max(for_starts);
            view.disk_free_bytes = disk_free_bytes;
        }
        view.cpus = std::thread::available_parallelism().map_or(1, usize::from);
        view
    }

    fn begin_to_fill(&self, target: Target) {
        let id = ids::sandbox();
        {
            let mut state = self.inner.pool.lock();
            if state.closed {
                return;
            }
            state.put_off_since = None;
            state.slots.push(Slot {
                id: id.clone(),
                target: target.clone(),
                ready: None,
            });
        }
        let engine = self.clone();
        tokio::spawn(async move {
            let made = tokio::time::timeout(FILL_TIMEOUT, engine.make(&id, &target)).await;
            let made = made.unwrap_or_else(|_| {
                Err(EngineError::SpawnFailed(format!(
                    "it took more than {FILL_TIMEOUT:?}"
                )))
            });
            engine.filled(&id, &target, made).await;
        });
    }

    /// A slot was made, or was not.
    async fn filled(&self, id: &SandboxId, target: &Target, made: Result<Shim, EngineError>) {
        match &made {
            Ok(_) => self.inner.pool.lock().failures.succeeded(target),
            Err(error) => {
                let mut state = self.inner.pool.lock();
                state.failures.failed(target, Instant::now());
                let what = state.source(target).map(|source| source.describe());
                drop(state);
                let what = what.unwrap_or_default();
                tracing::warn!(%what, kind = target.kind.as_str(), "a slot could not be made: {error}");
                log_last_words(&self.inner.dirs.get(id));
            }
        }
        self.settle(id, made.ok()).await;
    }

    /// A slot waits from now on, or is thrown away: it came to nothing, or was given up
    /// meanwhile.
    async fn settle(&self, id: &SandboxId, shim: Option<Shim>) {
        let pool = &self.inner.pool;
        let kept = {
            let mut state = pool.lock();
            let closed = state.closed;
            let slot = state.slots.iter_mut().find(|slot| slot.id == *id);
            match (shim.map(Arc::new), slot) {
                (Some(shim), Some(slot)) if !closed => {
                    let watcher = self.watch_slot(id.clone(), Arc::clone(&shim));
                    slot.ready = Some(Ready { shim, watcher });
                    true
                }
                _ => false,
            }
        };
        if !kept {
            // Until its files are gone it counts as being made.
            self.discard(id).await;
            pool.lock().slots.retain(|slot| slot.id != *id);
        }
        pool.wake.notify_one();
    }

    async fn make(&self, id: &SandboxId, target: &Target) -> Result<Shim, EngineError> {
        let source = self.inner.pool.lock().source(target).cloned();
        let gone = || EngineError::SpawnFailed("its template is gone".to_owned());
        let Source { ingredients, .. } = source.ok_or_else(gone)?;
        let dir = self.new_dir(id)?;
        let plan = match target.kind {
            Kind::Warm | Kind::Bound => {
                let source = crate::source::Source::bake(self.baked(target)?);
                source.lay_out(&dir)?;
                source.plan()
            }
            // Which snapshot it is, the claim says.
            Kind::Generic => Plan {
                begin: Begin::Spawn {
                    clean_barrier: true,
                    mount: false,
                },
                machine: self.inner.bakery.machine(&ingredients),
                disks: 0,
                base: String::new(),
                kept_disks: 0,
                pages: 0,
            },
        };
        let spec = ShimSpec {
            slot: Some(slot_spec(target)),
            ..self.inner.bakery.spec(id, ingredients.size, &plan)
        };
        let identity = identity::for_sandbox(&dir, self.inner.host.accelerator);
        let shim = self
            .inner
            .bakery
            .starter
            .start(&dir, &spec, identity)
            .await?;
        waits(shim).await
    }

    fn baked(&self, target: &Target) -> Result<Snapshot, EngineError> {
        let bakery = &self.inner.bakery;
        let Some(snapshot) = bakery.get(&target.key) else {
            self.inner.pool.drop_source(target);
            let gone = "it is not baked any more".to_owned();
            return Err(EngineError::SpawnFailed(gone));
        };
        // A bake that only slots are made from is in use all the same.
        bakery.bakes.mark_used(&target.key);
        Ok(snapshot)
    }

    /// Notices a slot that dies while it waits.
    fn watch_slot(&self, id: SandboxId, shim: Arc<Shim>) -> AbortHandle {
        let engine = self.clone();
        let watching = tokio::spawn(async move {
            let dir = engine.inner.dirs.get(&id);
            let (_, cause) = end_of(&shim, &dir, drop).await;
            // One that was taken out meanwhile is somebody else's business.
            if engine.inner.pool.lock().take_out(&id) {
                tracing::warn!(slot = %id, "a slot died: {cause}");
                log_last_words(&dir);
                // Who takes a slot out aborts its watcher; this one is out already.
                engine.discard(&id).await;
                engine.inner.pool.wake.notify_one();
            }
        });
        watching.abort_handle()
    }

    /// Whether it was there to be ended.
    async fn retire(&self, id: &SandboxId) -> bool {
        let found = self.inner.pool.lock().take_out(id);
        // Claimed or dead meanwhile, otherwise.
        if found {
            self.discard(id).await;
        }
        found
    }

    /// Ends the waiting slot that would be missed least, for the memory that it has; false
    /// if none waits.
    pub(crate) async fn give_up_slot(&self) -> bool {
        loop {
            let pool = &self.inner.pool;
            let view = pool.lock().view(pool.config.warm, Instant::now());
            let Some(id) = rules::least_wanted(&view) else {
                return false;
            };
            if self.retire(&id).await {
                return true;
            }
        }
    }

    /// Ends a slot's processes and removes its files. It has no row.
    pub(crate) async fn discard(&self, id: &SandboxId) {
        let dir = self.inner.dirs.get(id);
        ShimProcess::end(&dir).await;
        let removed = self.blocking(move |_| dir.remove()).await;
        if let Err(error) = removed {
            tracing::error!(slot = %id, "cannot remove a slot: {error}");
        }
    }

    /// Ends all slots: without a daemon nobody could claim them. Those of a daemon that
    /// is killed wait for the next one. What is being claimed or made comes to its end first.
    pub async fn close_pool(&self) {
        let pool = &self.inner.pool;
        pool.close();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while pool.is_busy() && Instant::now() < deadline {
            tokio::time::sleep(CLOSE_PAUSE).await;
        }
        let left: Vec<_> = pool.lock().slots.drain(..).map(|slot| slot.id).collect();
        for id in left {
            self.discard(&id).await;
        }
    }

    /// Makes the usual size of every template wait, where it is baked.
    pub(crate) async fn stand_templates(&self) -> Result<(), EngineError> {
        let rows = self.blocking(|inner| inner.index.all_templates()).await?;
        for row in rows {
            let template = format!("{}:{}", row.name, row.tag).parse();
            let Ok(template) = template else { continue };
            // Not in the cache any more: the first request makes it again.
            if let Ok(ingredients) = self.ingredients_of(&row.root, Size::DEFAULT).await {
                self.want(&template, &ingredients, self.inner.pool.forgets());
            }
        }
        Ok(())
    }

    /// Makes this wait from now on, if it is baked: a usual size for good, another one as if
    /// it had been asked for. `forgets` is from before the template was looked up.
    pub(crate) fn want(&self, template: &TemplateRef, ingredients: &Ingredients, forgets: u64) {
        let bakery = &self.inner.bakery;
        let keys = bakery.keys(ingredients);
        if bakery.get(&keys.snapshot).is_none() {
            return;
        }
        let wanted = Wanted {
            keys: &keys,
            template,
            ingredients,
        };
        match ingredients.size == Size::DEFAULT {
            true => self.inner.pool.stand(&wanted, forgets),
            false => self.inner.pool.asked(&wanted, forgets),
        }
    }

    /// Takes over a slot that an earlier daemon left; false if it is none, or one that
    /// nobody can use.
    pub(crate) fn adopt_slot(&self, id: &SandboxId, dir: &SandboxDir) -> bool {
        let Some(target) = slot_of(dir) else {
            return false;
        };
        {
            let mut state = self.inner.pool.lock();
            if state.source(&target).is_none() {
                return false;
            }
            state.slots.push(Slot {
                id: id.clone(),
                target,
                ready: None,
            });
        }
        let (engine, id, dir) = (self.clone(), id.clone(), dir.clone());
        tokio::spawn(async move {
            let found = async {
                let gone = || EngineError::SpawnFailed("its shim is gone".to_owned());
                waits(Shim::find(&dir).await.ok_or_else(gone)?).await
            };
            let found = tokio::time::timeout(ADOPT_TIMEOUT, found).await;
            let found = found.unwrap_or_else(|_| {
                Err(EngineError::SpawnFailed(
                    "its shim does not answer".to_owned(),
                ))
            });
            if let Err(error) = &found {
                tracing::info!(slot = %id, "a slot of an earlier daemon is of no use: {error}");
                log_last_words(&dir);
            }
            engine.settle(&id, found.ok()).await;
        });
        true
    }
}

fn slot_spec(target: &Target) -> spec::Slot {
    let (wait, programs) = match target.kind {
        Kind::Warm => (Wait::Warm, WARM_UP.as_slice()),
        Kind::Bound => (Wait::Bound, [].as_slice()),
        Kind::Generic => (Wait::Generic, [].as_slice()),
    };
    let programs = programs.iter();
    spec::Slot {
        wait,
        key: target.key.clone(),
        warm_up: programs
            .map(|argv| argv.iter().map(ToString::to_string).collect())
            .collect(),
    }
}

/// Waits until a slot waits.
async fn waits(shim: Shim) -> Result<Shim, EngineError> {
    let ready = shim.ready().await?;
    if ready.state == ShimState::STATE_WAITING {
        return Ok(shim);
    }
    let cause = match ready.cause.as_str() {
        "" => "it does not wait",
        cause => cause,
    };
    Err(EngineError::SpawnFailed(cause.to_owned()))
}

/// What the spec in a directory says of the slot there.
fn slot_of(dir: &SandboxDir) -> Option<Target> {
    let text = std::fs::read(dir.spec()).ok()?;
    let spec: ShimSpec = serde_json::from_slice(&text).ok()?;
    let slot = spec.slot?;
    Some(Target {
        key: slot.key,
        kind: match slot.wait {
            Wait::Warm => Kind::Warm,
            Wait::Bound => Kind::Bound,
            Wait::Generic => Kind::Generic,
        },
    })
}

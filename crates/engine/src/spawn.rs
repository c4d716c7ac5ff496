//! Making sandboxes run, and noticing when they no longer do.

use crate::admission::{Admitted, Ask};
use crate::bake::{Ingredients, Plan, TIMER_TOLERANCE_PPM};
use crate::engine::Engine;
use crate::groups;
use crate::lifecycle::Operation;
use crate::limits::{check_limits, limits_json, spec_of};
use crate::network::egress_json;
use crate::pool::Wanted;
use crate::request::{Caller, CreateSandbox, Start};
use crate::sandboxes::{Entry, IsolationJson};
use crate::shims::{Shim, ShimProcess, log_last_words, no_space_or};
use crate::source::{Source, boot_plan, lay_out_boot, lay_out_start};
use crate::trace;
use crate::{EngineError, Interruption, identity, ids};
use pando_shim::spec::ShimSpec;
use pando_store::{
    IndexError, LifetimeRow, NewEvent, SandboxDir, SandboxRow, SavedState, Snapshot, read_untrusted,
};
use pando_sys::spawn::Identity;
use pando_types::{SandboxId, SandboxState, Size, TemplateRef, limits};
use pando_wire::shim::{ReadyResponse, State, StopRequest, WatchRequest};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// Time that user processes get between SIGTERM and SIGKILL at a stop.
const STOP_GRACE_MS: u32 = 5_000;

/// What a caller wants.
pub(crate) struct Wish<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) request: &'a CreateSandbox,
    pub(crate) template: &'a TemplateRef,
    pub(crate) ingredients: &'a Ingredients,
    /// As the index keeps it.
    pub(crate) egress: &'a str,
    pub(crate) admitted: &'a Admitted,
}

impl Engine {
    /// Makes a sandbox; on an error nothing is left of it.
    pub(crate) async fn spawn_new(
        &self,
        caller: &Caller,
        request: CreateSandbox,
    ) -> Result<Arc<Entry>, EngineError> {
        if request.from.is_some() {
            return self.spawn_from(caller, request).await;
        }
        if request.disk_only {
            return Err(EngineError::Invalid(
                "`disk_only` goes with `from`".to_owned(),
            ));
        }
        check_maps(&request)?;
        let size = size(&request)?;
        check_limits(&request)?;
        let pool = &self.inner.pool;
        let forgets = pool.forgets();
        let template = request.template.clone().unwrap_or_else(default_template);
        let ingredients = self.ingredients(caller, &template, size).await?;
        let egress = match &request.egress {
            Some(policy) => egress_json(policy)?,
            None => self.template_row(caller, &template).await?.egress,
        };
        let admitted = self.admit(Ask::for_new(caller, size)).await?;
        let _spawning = pool.spawning();
        if request.start != Start::Boot {
            // Others' starts do not wait for it.
            self.ensure_baked(&ingredients).await?;
        }
        let _turn = admitted.turn().await?;
        let wish = Wish {
            caller,
            request: &request,
            template: &template,
            ingredients: &ingredients,
            egress: &egress,
            admitted: &admitted,
        };
        match request.start {
            Start::Boot => self.boot(&wish).await,
            Start::Snapshot => self.load(&wish).await,
            Start::Auto => {
                let keys = self.inner.bakery.keys(&ingredients);
                let entry = match self.claim(&keys, &wish).await? {
                    Some(entry) => entry,
                    None => self.load(&wish).await?,
                };
                let wanted = Wanted {
                    keys: &keys,
                    template: &template,
                    ingredients: &ingredients,
                };
                pool.asked(&wanted, forgets);
                Ok(entry)
            }
        }
    }

    /// Spawns from the template's snapshot, baked now if it must be.
    async fn load(&self, wish: &Wish<'_>) -> Result<Arc<Entry>, EngineError> {
        let ingredients = wish.ingredients;
        let bakery = &self.inner.bakery;
        let snapshot = bakery.ensure(ingredients, SavedState::Ready).await?;
        let source = Source::bake(snapshot);
        self.first_start(wish, &source.plan(), |dir| source.lay_out(dir))
            .await
    }

    /// Boots a kernel that is nobody else's.
    async fn boot(&self, wish: &Wish<'_>) -> Result<Arc<Entry>, EngineError> {
        let ingredients = wish.ingredients;
        let machine = self.inner.bakery.machine(ingredients);
        let base = ids::snapshot().to_string();
        let plan = boot_plan(machine.clone(), &base);
        self.first_start(wish, &plan, |dir| {
            lay_out_boot(dir, ingredients, &machine, &base)
        })
        .await
    }

    pub(crate) async fn first_start(
        &self,
        wish: &Wish<'_>,
        plan: &Plan,
        lay_out: impl FnOnce(&SandboxDir) -> Result<(), EngineError>,
    ) -> Result<Arc<Entry>, EngineError> {
        let id = ids::sandbox();
        wish.admitted.becomes(&id);
        let entry = self.insert(self.new_row(&id, wish)?, None).await?;
        let _turn = entry.turn.lock().await;
        let started = async {
            let dir = self.new_dir(&entry.id)?;
            lay_out(&dir)?;
            self.run(&entry, &dir, plan).await
        };
        match started.await {
            Ok(()) => {
                self.inner.pool.count_claim("none");
                entry.set_made_from("none");
                Ok(Arc::clone(&entry))
            }
            Err(error) => {
                log_last_words(&self.dir_of(&entry));
                self.erase(&entry, &format!("creation failed: {error}"))
                    .await?;
                Err(error)
            }
        }
    }

    /// Where a sandbox's files are.
    pub(crate) fn dir_of(&self, entry: &Entry) -> SandboxDir {
        self.inner.dirs.get(&entry.home())
    }

    pub(crate) fn new_dir(&self, id: &SandboxId) -> Result<SandboxDir, EngineError> {
        let made = self.inner.dirs.create(id);
        made.map_err(|error| no_space_or(&error, "cannot make the sandbox's directory"))
    }

    pub(crate) fn new_row(
        &self,
        id: &SandboxId,
        wish: &Wish<'_>,
    ) -> Result<SandboxRow, EngineError> {
        let Wish {
            caller,
            request,
            template,
            ingredients,
            egress,
            admitted: _,
        } = wish;
        let root = ingredients.base.content_hash.clone();
        Ok(SandboxRow {
            id: id.to_string(),
            name: request.name.as_ref().map(ToString::to_string),
            template: template.to_string(),
            env: to_json(&request.env)?,
            labels: to_json(&request.labels)?,
            egress: (*egress).to_owned(),
            limits: limits_json(&request.limits.or(&self.inner.config.limits))?,
            lifetime: request.lifetime.row(),
            ..self.blank_row(&caller.tenant, root, ingredients.size)?
        })
    }

    /// The row of a new sandbox that nothing else is said of.
    pub(crate) fn blank_row(
        &self,
        tenant: &str,
        root: String,
        size: Size,
    ) -> Result<SandboxRow, EngineError> {
        Ok(SandboxRow {
            id: ids::sandbox().to_string(),
            tenant: tenant.to_owned(),
            name: None,
            state: SandboxState::Creating,
            state_reason: None,
            template: String::new(),
            root,
            cpus: size.cpus(),
            memory_mib: size.memory_mib(),
            env: String::new(),
            labels: String::new(),
            isolation: self.isolation_json(Vec::new())?,
            created_at: SystemTime::now(),
            started_at: None,
            boot_id: self.inner.host.boot_id.clone(),
            parent: None,
            home: None,
            paused_in: None,
            egress: String::new(),
            limits: "{}".to_owned(),
            lifetime: LifetimeRow::default(),
        })
    }

    pub(crate) async fn insert(
        &self,
        row: SandboxRow,
        shim: Option<Arc<Shim>>,
    ) -> Result<Arc<Entry>, EngineError> {
        let id = row
            .id
            .parse()
            .map_err(|_| EngineError::Internal("a new sandbox has a malformed id".to_owned()))?;
        let inserted = row.clone();
        let added = self.aside(move |inner| {
            let event = |kind, detail| NewEvent {
                tenant: &inserted.tenant,
                kind,
                subject: &inserted.id,
                detail,
            };
            let mut events = vec![event("sandbox.creating", inserted.template.as_str())];
            if inserted.state == SandboxState::Running {
                events.push(event("sandbox.running", ""));
            }
            inner.index.add_sandbox(&inserted, &events)
        });
        match added.await? {
            Err(IndexError::NameTaken) => {
                return Err(EngineError::NameTaken(row.name.unwrap_or_default()));
            }
            other => other.map_err(|error| EngineError::index(&error))?,
        }
        let entry = Arc::new(Entry::new(id, row));
        // Before anybody can find it.
        entry.set_shim(shim);
        self.inner.sandboxes.insert(Arc::clone(&entry));
        self.inner.lifetimes.have_changed();
        Ok(entry)
    }

    /// Starts the shim of a sandbox whose slot is laid out, and waits for the agent.
    async fn run(
        &self,
        entry: &Arc<Entry>,
        dir: &SandboxDir,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        let (shim, ready) = self.bring_up(entry, dir, plan).await?;
        entry.set_shim(Some(Arc::clone(&shim)));
        let identity = identity::for_sandbox(dir, self.inner.host.accelerator);
        self.now_running(entry, &ready, &shim, identity).await
    }

    /// Starts a shim in a directory that is laid out for this sandbox, and waits for the
    /// agent. Whose VM the sandbox's is does not change.
    pub(crate) async fn bring_up(
        &self,
        entry: &Entry,
        dir: &SandboxDir,
        plan: &Plan,
    ) -> Result<(Arc<Shim>, ReadyResponse), EngineError> {
        let row = entry.row();
        let size =
            Size::new(row.cpus, row.memory_mib).map_err(|error| EngineError::internal(&error))?;
        let spec = ShimSpec {
            env: env_of(&row)?,
            network: Some(self.network_spec(&row.egress)?),
            limits: spec_of(&row)?,
            ..self.inner.bakery.spec(&entry.id, size, plan)
        };
        let identity = identity::for_sandbox(dir, self.inner.host.accelerator);
        let starter = &self.inner.bakery.starter;
        let spawning = async {
            let from = SystemTime::now();
            let shim = Arc::new(starter.start(dir, &spec, identity).await?);
            let ready = shim.ready().await?;
            match ready.state == State::STATE_RUNNING {
                true => {
                    trace::ready(from, &ready);
                    Ok((shim, ready))
                }
                false => Err(EngineError::not_spawned(ready.cause)),
            }
        };
        self.observed(crate::observe::Operation::Spawn, &entry.id, spawning)
            .await
    }

    async fn now_running(
        &self,
        entry: &Arc<Entry>,
        ready: &ReadyResponse,
        shim: &Arc<Shim>,
        identity: Option<Identity>,
    ) -> Result<(), EngineError> {
        self.log_ready(entry, ready);
        let isolation = self.isolation_of(ready, identity)?;
        self.set_state(entry, SandboxState::Running, None, Some(isolation))
            .await?;
        self.watch(entry, shim);
        Ok(())
    }

    pub(crate) fn log_ready(&self, entry: &Entry, ready: &ReadyResponse) {
        for warning in &ready.warnings {
            tracing::warn!(sandbox = %entry.id, "{warning}");
        }
        if ready.timer_error_ppm > TIMER_TOLERANCE_PPM {
            tracing::warn!(
                sandbox = %entry.id,
                error_ppm = ready.timer_error_ppm,
                "the guest's kernel measured its timer wrongly"
            );
        }
        tracing::debug!(sandbox = %entry.id, timing_ms = ?ready.timing_ms, "spawned");
    }

    pub(crate) fn isolation_of(
        &self,
        ready: &ReadyResponse,
        identity: Option<Identity>,
    ) -> Result<String, EngineError> {
        let mut layers = ready.layers.clone();
        layers.extend(self.inner.bakery.starter.layers());
        layers.extend(identity.map(|identity| format!("account {}", identity.uid)));
        layers.extend(pando_sys::cgroup::ours().map(|_| "cgroup".to_owned()));
        self.isolation_json(layers)
    }

    /// Follows a running sandbox in the background until its VM ends.
    pub(crate) fn watch(&self, entry: &Arc<Entry>, shim: &Arc<Shim>) {
        self.watch_refusals(entry, shim);
        self.limit_cpu(entry);
        let (engine, entry, shim) = (self.clone(), Arc::clone(entry), Arc::clone(shim));
        tokio::spawn(async move {
            let told = |cause: String| {
                let current = entry.shim();
                let current = current.is_some_and(|current| Arc::ptr_eq(&current, &shim));
                // Only in memory: why a sandbox stands still may be that nothing can be written.
                if current && entry.state() == SandboxState::Running {
                    let reason = Some(cause).filter(|cause| !cause.is_empty());
                    entry.update(|row| row.state_reason = reason);
                }
            };
            let dir = engine.dir_of(&entry);
            let (state, cause) = end_of(&shim, &dir, told).await;
            let cause = groups::explain(&dir, cause);
            let _turn = entry.turn.lock().await;
            let current = entry
                .shim()
                .is_some_and(|current| Arc::ptr_eq(&current, &shim));
            // A stop, a start or a removal that held the turn has dealt with it.
            if !current || entry.state() != SandboxState::Running {
                return;
            }
            tracing::info!(sandbox = %entry.id, %state, "{cause}");
            if state == SandboxState::Stopped {
                engine.sync_disk(&entry).await;
            }
            if let Err(error) = engine.set_state(&entry, state, Some(cause), None).await {
                tracing::error!(sandbox = %entry.id, "cannot write the end of a sandbox: {error}");
            }
            engine.end_shim(&entry).await;
        });
    }

    fn limit_cpu(&self, entry: &Entry) {
        let percent = spec_of(&entry.row()).map(|limits| limits.cpu_percent);
        groups::limit_cpu(&self.dir_of(entry), percent.unwrap_or_default());
    }

    /// Powers off in order; the disk stays.
    pub(crate) async fn power_off(&self, entry: &Arc<Entry>) -> Result<(), EngineError> {
        let _turn = entry.turn.lock().await;
        entry.check(Operation::Stop)?;
        let shim = entry.in_use()?;
        self.set_state(entry, SandboxState::Stopping, None, None)
            .await?;
        shim.interrupt(Interruption::Stopped);
        // An error means that it went away meanwhile, which is what was asked for.
        drop(
            shim.client
                .rpc
                .stop(StopRequest {
                    grace_ms: STOP_GRACE_MS,
                    ..StopRequest::default()
                })
                .await,
        );
        self.end_shim(entry).await;
        self.sync_disk(entry).await;
        self.set_state(entry, SandboxState::Stopped, None, None)
            .await
    }

    /// A disk that is kept survives a power cut from now on.
    async fn sync_disk(&self, entry: &Entry) {
        let dir = self.dir_of(entry);
        if let Err(error) = self.blocking(move |_| dir.sync()).await {
            tracing::warn!(sandbox = %entry.id, "its disk may not survive a power cut: {error}");
        }
    }

    /// Spawns a stopped sandbox again, on its disk.
    pub(crate) async fn power_on(&self, entry: &Arc<Entry>) -> Result<(), EngineError> {
        let _turn = entry.turn.lock().await;
        entry.check(Operation::Start)?;
        let before = entry.row();
        let size = Size::new(before.cpus, before.memory_mib)
            .map_err(|error| EngineError::internal(&error))?;
        let admitted = self
            .admit(Ask::for_own(&before.tenant, size, &entry.id))
            .await?;
        let _spawning = self.inner.pool.spawning();
        // Others' starts do not wait for it.
        let bake = self.pre_mount(&before.root, size).await;
        let _turn = admitted.turn().await?;
        self.end_shim(entry).await;
        let started = match bake {
            Ok(bake) => self.start_again(entry, bake).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &started {
            self.end_shim(entry).await;
            let reason = Some(format!("it could not be started: {error}"));
            self.set_state(entry, SandboxState::Failed, reason, None)
                .await?;
            tracing::warn!(sandbox = %before.id, "{error}");
        }
        started
    }

    async fn start_again(&self, entry: &Arc<Entry>, bake: Snapshot) -> Result<(), EngineError> {
        let dir = self.dir_of(entry);
        let laid_out = dir.clone();
        let plan = self
            .aside(move |_| lay_out_start(&laid_out, &bake))
            .await??;
        self.set_state(entry, SandboxState::Creating, None, None)
            .await?;
        self.run(entry, &dir, &plan).await
    }

    /// Ends a sandbox for good.
    pub(crate) async fn destroy(&self, entry: &Arc<Entry>, why: &str) -> Result<(), EngineError> {
        let _turn = entry.turn.lock().await;
        entry.check(Operation::Remove)?;
        if self
            .inner
            .sandboxes
            .find(
                &Caller {
                    tenant: entry.row().tenant,
                },
                entry.id.as_str(),
            )
            .is_err()
        {
            return Err(EngineError::SandboxNotFound(entry.id.to_string()));
        }
        self.erase(entry, why).await
    }

    /// Shim, files, row, in that order: what a crash leaves is found by the next start.
    pub(crate) async fn erase(&self, entry: &Arc<Entry>, why: &str) -> Result<(), EngineError> {
        if let Some(shim) = entry.shim() {
            shim.interrupt(Interruption::Removed);
        }
        self.end_shim(entry).await;
        let _cleared = entry.clearing.lock().await;
        let (dir, id, why) = (self.dir_of(entry), entry.id.clone(), why.to_owned());
        let SandboxRow {
            tenant, paused_in, ..
        } = entry.row();
        self.blocking(move |inner| {
            if let Some(snapshot) = paused_in {
                let removed = inner.snapshots.remove(&snapshot);
                removed.map_err(|error| EngineError::internal(&error))?;
            }
            dir.remove().map_err(|error| {
                EngineError::Internal(format!("cannot remove the sandbox's files: {error}"))
            })?;
            let event = NewEvent {
                tenant: &tenant,
                kind: "sandbox.removed",
                subject: id.as_str(),
                detail: &why,
            };
            inner
                .index
                .remove_sandbox(id.as_str(), &event)
                .map_err(|error| EngineError::internal(&error))
        })
        .await?;
        self.inner.sandboxes.remove(&entry.id);
        self.inner.ports.forget(&entry.id);
        Ok(())
    }

    /// Kills the shim, and with it the VM, and waits until both are gone.
    pub(crate) async fn end_shim(&self, entry: &Arc<Entry>) {
        entry.set_shim(None);
        ShimProcess::end(&self.dir_of(entry)).await;
    }

    pub(crate) fn isolation_json(&self, layers: Vec<String>) -> Result<String, EngineError> {
        let host = &self.inner.host;
        let isolation = IsolationJson {
            vmm: host.vmm(),
            accelerator: host.accelerator.to_string(),
            reason: host.reason.clone(),
            layers,
        };
        serde_json::to_string(&isolation).map_err(|error| EngineError::internal(&error))
    }
}

/// A shim's last words are a sentence or two.
const CAUSE_BYTES: u64 = 4 << 10;
const CAUSE_CHARS: usize = 1 << 10;

/// Waits for a VM's end and says what it means. While it lives, `told` is given what there
/// is to say of it: nothing, or why it stands still.
pub(crate) async fn end_of(
    shim: &Shim,
    dir: &SandboxDir,
    told: impl Fn(String),
) -> (SandboxState, String) {
    if let Ok(mut states) = shim.client.rpc.watch(WatchRequest::default()).await {
        while let Ok(Some(message)) = states.message().await {
            let message = message.to_owned_message();
            match message.state.as_known() {
                Some(State::STATE_STOPPED) => {
                    return (SandboxState::Stopped, bounded(&message.cause));
                }
                Some(State::STATE_FAILED) => {
                    return (SandboxState::Failed, bounded(&message.cause));
                }
                Some(State::STATE_RUNNING) => told(bounded(&message.cause)),
                _ => {}
            }
        }
    }
    match last_words(dir) {
        Some(words) => words,
        None => (SandboxState::Failed, shim.how_it_died().await),
    }
}

/// What a shim wrote before it left.
pub(crate) fn last_words(dir: &SandboxDir) -> Option<(SandboxState, String)> {
    let text = read_untrusted(&dir.ended(), CAUSE_BYTES).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (word, cause) = text.split_once('\n')?;
    Some((word.parse().ok()?, bounded(cause.trim())))
}

/// What a shim says of its end, as far as it is kept: a guest may have taken it over.
fn bounded(cause: &str) -> String {
    let plain = cause.chars().filter(|c| !c.is_control());
    plain.take(CAUSE_CHARS).collect()
}

/// Environment or labels as a row keeps them.
pub(crate) fn to_json(map: &BTreeMap<String, String>) -> Result<String, EngineError> {
    serde_json::to_string(map).map_err(|error| EngineError::internal(&error))
}

/// The environment that a sandbox was given.
pub(crate) fn env_of(row: &SandboxRow) -> Result<BTreeMap<String, String>, EngineError> {
    serde_json::from_str(&row.env).map_err(|error| EngineError::internal(&error))
}

fn default_template() -> TemplateRef {
    "base".parse().expect("`base` is a name")
}

fn size(request: &CreateSandbox) -> Result<Size, EngineError> {
    let cpus = request.cpus.unwrap_or(Size::DEFAULT.cpus());
    let memory_mib = request.memory_mib.unwrap_or(Size::DEFAULT.memory_mib());
    Size::new(cpus, memory_mib).map_err(|error| EngineError::Invalid(error.to_string()))
}

/// Refuses what is too much, or what no process can be given.
pub(crate) fn check_maps(request: &CreateSandbox) -> Result<(), EngineError> {
    check_bytes("env", &request.env)?;
    check_labels(&request.labels)?;
    crate::usage::check_env(&request.env)
}

/// Refuses labels that are too much.
pub(crate) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), EngineError> {
    check_bytes("labels", labels)
}

fn check_bytes(what: &str, map: &BTreeMap<String, String>) -> Result<(), EngineError> {
    let bytes = map.iter().map(|(key, value)| key.len() + value.len());
    if bytes.sum::<usize>() <= limits::ENV_BYTES {
        return Ok(());
    }
    Err(EngineError::Invalid(format!(
        "`{what}` has more than {} KiB",
        limits::ENV_BYTES >> 10
    )))
}

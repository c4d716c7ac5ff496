//! What is spawned from a snapshot: new sandboxes, children of a fork, a sandbox that is put
//! back or goes on.
//!
//! All of them bring a VM up in a directory of its own first, which nobody knows. Then one
//! transaction says that it is the sandbox's, and what was there before goes. A crash before
//! it leaves the sandbox as it was; after it, as it is to be; the next start removes the
//! directory that no row names.

use super::take::Taken;
use crate::admission::{Admitted, Ask};
use crate::bake::Ingredients;
use crate::engine::{Change, Engine, Moved};
use crate::lifecycle::Operation;
use crate::limits::{check_limits, limits_json, limits_of};
use crate::network::egress_json;
use crate::request::{
    Caller, CreateSandbox, Fork, Forked, Lifetime, Sandbox, Snapshot, Start, TakeSnapshot,
};
use crate::sandboxes::Entry;
use crate::shims::{Shim, ShimProcess, log_last_words};
use crate::source::{Source, lay_out_disk};
use crate::spawn::{check_maps, env_of, to_json};
use crate::{EngineError, Interruption, identity, ids};
use pando_store::{SandboxDir, SandboxRow, SavedState, Snapshot as Stored, SnapshotRow, fault};
use pando_types::{Name, SandboxId, SandboxState, Size, SnapshotId, SnapshotKind, limits};
use pando_wire::shim::ReadyResponse;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::Semaphore;
use tracing::Instrument as _;

/// What a VM goes on from.
#[derive(Clone, Debug)]
enum Origin {
    /// Memory and disk.
    Whole(Box<Source>),
    /// The disk, and a bake that mounts it.
    Disk(Box<Stored>, Box<Stored>),
}

/// A VM that is up and nobody's yet.
struct Up {
    home: SandboxId,
    shim: Arc<Shim>,
    ready: ReadyResponse,
}

/// Why a VM becomes a sandbox's.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// The sandbox is new.
    Created,
    /// It was put back.
    RolledBack,
    /// It goes on.
    Resumed,
}

impl Why {
    /// What the event is called, where the state does not say it.
    fn event(self) -> Option<&'static str> {
        match self {
            Self::Created => None,
            Self::RolledBack => Some("sandbox.rolled_back"),
            Self::Resumed => Some("sandbox.resumed"),
        }
    }

    /// The fault point after the one transaction.
    fn point(self) -> &'static str {
        match self {
            Self::Created | Self::RolledBack => "rollback.indexed",
            Self::Resumed => "resume.indexed",
        }
    }
}

/// A snapshot without a row, gone when it is dropped.
struct Unlisted {
    engine: Engine,
    id: SnapshotId,
}

impl Drop for Unlisted {
    fn drop(&mut self) {
        let (engine, id) = (self.engine.clone(), self.id.clone());
        tokio::spawn(async move { engine.drop_snapshot(&id).await });
    }
}

impl Engine {
    /// Makes a sandbox from a snapshot; on an error nothing is left of it.
    pub(crate) async fn spawn_from(
        &self,
        caller: &Caller,
        request: CreateSandbox,
    ) -> Result<Arc<Entry>, EngineError> {
        check_maps(&request)?;
        let reference = request.from.clone().unwrap_or_default();
        if request.template.is_some() || request.start != Start::Auto {
            return Err(EngineError::Invalid(
                "`from` names what the sandbox is made from: give neither `template` nor `start` with it"
                    .to_owned(),
            ));
        }
        let row = self.inner.kept.find(caller, &reference)?;
        check_size(&row, &request)?;
        check_limits(&request)?;
        let size = Size::new(row.cpus, row.memory_mib);
        let size = size.map_err(|error| EngineError::internal(&error))?;
        let admitted = self.admit(Ask::for_new(caller, size)).await?;
        let _spawning = self.inner.pool.spawning();
        let stored = self.short(&row.id).await?;
        let disk_only = request.disk_only || row.kind == SnapshotKind::Disk;
        let origin = self.origin(&stored, disk_only).await?;
        let _turn = admitted.turn().await?;
        let child = SandboxRow {
            name: request.name.as_ref().map(ToString::to_string),
            env: to_json(&request.env)?,
            labels: to_json(&request.labels)?,
            parent: Some(row.id.clone()),
            template: row.template.clone(),
            egress: match &request.egress {
                Some(policy) => egress_json(policy)?,
                None => row.egress.clone(),
            },
            limits: limits_json(&request.limits.or(&limits_of(&row.limits)?))?,
            lifetime: request.lifetime.row(),
            ..self.child_row(caller, &stored)?
        };
        let made = self.make_child(child, &origin, &admitted).await?;
        self.materialize_later(stored);
        Ok(made)
    }

    /// A new sandbox of a snapshot's size.
    fn child_row(&self, caller: &Caller, stored: &Stored) -> Result<SandboxRow, EngineError> {
        self.blank_row(
            &caller.tenant,
            stored.manifest.root.clone(),
            size_of(stored)?,
        )
    }

    async fn make_child(
        &self,
        row: SandboxRow,
        origin: &Origin,
        admitted: &Admitted,
    ) -> Result<Arc<Entry>, EngineError> {
        let parent = row.parent.clone();
        if let Ok(id) = row.id.parse() {
            admitted.becomes(&id);
        }
        let entry = self.insert(row, None).await?;
        let _turn = entry.turn.lock().await;
        let up = async {
            let up = self.bring_up_origin(&entry, origin).await?;
            self.move_in(&entry, up, parent, Why::Created).await
        };
        match up.await {
            Ok(()) => Ok(Arc::clone(&entry)),
            Err(error) => {
                self.erase(&entry, &format!("creation failed: {error}"))
                    .await?;
                Err(error)
            }
        }
    }

    /// Takes one snapshot and makes children of it, as many at once as there are cores.
    pub(super) async fn fork_entry(
        &self,
        entry: &Arc<Entry>,
        request: Fork,
    ) -> Result<Forked, EngineError> {
        if !(1..=limits::FORK_CHILDREN).contains(&request.count) {
            return Err(EngineError::Invalid(format!(
                "`count` is from 1 to {}, not {}",
                limits::FORK_CHILDREN,
                request.count
            )));
        }
        let row = entry.row();
        let mut env = env_of(&row)?;
        env.extend(request.env);
        // As a creation would refuse them.
        let checked = CreateSandbox {
            env,
            labels: request.labels,
            ..CreateSandbox::default()
        };
        check_maps(&checked)?;
        let _spawning = self.inner.pool.spawning();
        let (unlisted, taken) = self.take_for_fork(entry).await?;
        let cost = taken.cost();
        let stored = &self.shortened(taken.stored).await?;
        fault::point("fork.taken");
        self.materialize_for(stored, request.count).await?;
        let origin = self.origin(stored, false).await?;
        let child = SandboxRow {
            env: to_json(&checked.env)?,
            labels: to_json(&checked.labels)?,
            parent: entry.row().parent,
            template: row.template.clone(),
            egress: row.egress.clone(),
            limits: row.limits.clone(),
            lifetime: Lifetime::of(&row.lifetime).with(request.lifetime).row(),
            ..self.child_row(&Caller { tenant: row.tenant }, stored)?
        };
        let children = self
            .make_children(request.count, &entry.id, child, &origin)
            .await;
        drop(unlisted);
        Ok(Forked { cost, children })
    }

    async fn take_for_fork(&self, entry: &Arc<Entry>) -> Result<(Unlisted, Taken), EngineError> {
        let _turn = entry.turn.lock().await;
        entry.check(Operation::Fork)?;
        let id = ids::snapshot();
        let taken = self.take(entry, &id, SnapshotKind::Full, false).await?;
        let unlisted = Unlisted {
            engine: self.clone(),
            id,
        };
        // The next fork is compared with this one.
        self.follow_on(entry, &taken).await;
        self.shorten_parent_later(entry, &taken.stored);
        Ok((unlisted, taken))
    }

    async fn make_children(
        &self,
        count: u32,
        parent: &SandboxId,
        child: SandboxRow,
        origin: &Origin,
    ) -> Vec<Result<Sandbox, EngineError>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = Arc::new(Semaphore::new(cores));
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let (engine, origin, turns) = (self.clone(), origin.clone(), Arc::clone(&turns));
                let parent = parent.clone();
                let row = SandboxRow {
                    id: ids::sandbox().to_string(),
                    created_at: SystemTime::now(),
                    ..child.clone()
                };
                let making = async move {
                    // Never closed.
                    let _turn = turns.acquire().await;
                    let made = engine.make_admitted_child(row, &origin).await?;
                    if let Err(error) = engine.inherit_access(&parent, &made).await {
                        drop(engine.destroy(&made, "its fork failed").await);
                        return Err(error);
                    }
                    made.describe()
                };
                tokio::spawn(making.in_current_span())
            })
            .collect();
        let mut children = Vec::with_capacity(tasks.len());
        for task in tasks {
            let child = task.await.map_err(|error| EngineError::internal(&error));
            children.push(child.and_then(|child| child));
        }
        children
    }

    /// One of many children: each counts for itself, and has its turn as it comes.
    async fn make_admitted_child(
        &self,
        row: SandboxRow,
        origin: &Origin,
    ) -> Result<Arc<Entry>, EngineError> {
        let size = Size::new(row.cpus, row.memory_mib);
        let size = size.map_err(|error| EngineError::internal(&error))?;
        let tenant = row.tenant.clone();
        let ask = Ask {
            tenant: &tenant,
            size,
            sandbox: None,
            patient: true,
        };
        let admitted = self.admit(ask).await?;
        let _turn = admitted.turn().await?;
        self.make_child(row, origin, &admitted).await
    }

    /// Puts a sandbox back into a kept state. The caller has its turn.
    pub(super) async fn put_back(
        &self,
        entry: &Arc<Entry>,
        snapshot: &SnapshotRow,
        save: Option<Name>,
    ) -> Result<Option<Snapshot>, EngineError> {
        entry.check(Operation::RollBack)?;
        let row = entry.row();
        let admitted = self.admit_own(entry).await?;
        let _spawning = self.inner.pool.spawning();
        let stored = self.short(&snapshot.id).await?;
        check_same(&row, snapshot, &stored)?;
        let origin = self
            .origin(&stored, snapshot.kind == SnapshotKind::Disk)
            .await?;
        let _turn = admitted.turn().await?;
        let saved = match save {
            Some(name) => {
                let request = TakeSnapshot {
                    name: Some(name),
                    ..TakeSnapshot::default()
                };
                Some(self.take_and_keep(entry, request).await?)
            }
            None => None,
        };
        let up = self.bring_up_origin(entry, &origin).await?;
        fault::point("rollback.spawned");
        let parent = Some(snapshot.id.clone());
        self.move_in(entry, up, parent, Why::RolledBack).await?;
        self.materialize_later(stored);
        Ok(saved)
    }

    /// Lets a paused sandbox go on. The caller has its turn.
    pub(crate) async fn take_off_disk(&self, entry: &Arc<Entry>) -> Result<(), EngineError> {
        if entry.state() == SandboxState::Running {
            // Somebody was quicker: it does what was asked for.
            return Ok(());
        }
        entry.check(Operation::Resume)?;
        let row = entry.row();
        let paused_in = row.paused_in.clone().unwrap_or_default();
        let admitted = self.admit_own(entry).await?;
        let _spawning = self.inner.pool.spawning();
        let stored = self.short(&paused_in).await?;
        let origin = self.origin(&stored, false).await?;
        let _turn = admitted.turn().await?;
        let up = self.bring_up_origin(entry, &origin).await?;
        fault::point("resume.spawned");
        self.move_in(entry, up, row.parent, Why::Resumed).await
    }

    /// Lets a VM come up for a sandbox that exists.
    async fn admit_own(&self, entry: &Arc<Entry>) -> Result<Admitted, EngineError> {
        let row = entry.row();
        let size = Size::new(row.cpus, row.memory_mib);
        let size = size.map_err(|error| EngineError::internal(&error))?;
        self.admit(Ask::for_own(&row.tenant, size, &entry.id)).await
    }

    /// The VM that is up is the sandbox's from now on; what it had before goes.
    async fn move_in(
        &self,
        entry: &Arc<Entry>,
        up: Up,
        parent: Option<String>,
        why: Why,
    ) -> Result<(), EngineError> {
        let before = entry.row();
        let old_home = self.dir_of(entry);
        let identity =
            identity::for_sandbox(&self.inner.dirs.get(&up.home), self.inner.host.accelerator);
        self.log_ready(entry, &up.ready);
        let change = Change {
            state: SandboxState::Running,
            reason: None,
            isolation: Some(self.isolation_of(&up.ready, identity)?),
            place: Some(Moved {
                home: Some(up.home.to_string()),
                parent,
                paused_in: None,
                event: why.event(),
            }),
        };
        if let Err(error) = self.change(entry, change).await {
            self.discard(&up.home).await;
            return Err(error);
        }
        fault::point(why.point());
        if let Some(old) = entry.shim() {
            old.interrupt(Interruption::RolledBack);
        }
        entry.set_shim(Some(Arc::clone(&up.shim)));
        self.watch(entry, &up.shim);
        let engine = self.clone();
        let clearing = Arc::clone(&entry.clearing).lock_owned().await;
        // Nobody waits for the end of what nobody can reach any more.
        tokio::spawn(async move {
            engine.clear_up(&before, old_home).await;
            drop(clearing);
        });
        Ok(())
    }

    /// Ends and removes what a sandbox had before it moved.
    async fn clear_up(&self, before: &SandboxRow, old_home: SandboxDir) {
        ShimProcess::end(&old_home).await;
        let paused_in = before.paused_in.clone();
        let cleared = self.blocking(move |inner| {
            old_home
                .remove()
                .map_err(|error| EngineError::internal(&error))?;
            match paused_in {
                Some(snapshot) => inner.snapshots.remove(&snapshot),
                None => Ok(()),
            }
            .map_err(|error| EngineError::internal(&error))
        });
        if let Err(error) = cleared.await {
            // The next start finds what no row names.
            tracing::warn!(sandbox = %before.id, "files of the state before are left: {error}");
        }
    }

    /// Brings a VM up for a sandbox, in a directory that is nobody's yet; on an error nothing
    /// is left of it.
    async fn bring_up_origin(&self, entry: &Entry, origin: &Origin) -> Result<Up, EngineError> {
        if let Origin::Whole(source) = origin
            && let Some((home, shim, ready)) = self.claim_any(entry, source).await?
        {
            return Ok(Up { home, shim, ready });
        }
        let home = ids::sandbox();
        let dir = self.new_dir(&home)?;
        let up = async {
            let (laid_out, origin) = (dir.clone(), origin.clone());
            let plan = self.aside(move |_| match origin {
                Origin::Whole(source) => {
                    source.lay_out(&laid_out)?;
                    Ok(source.plan())
                }
                Origin::Disk(snapshot, bake) => lay_out_disk(&laid_out, &snapshot, &bake),
            });
            let plan = plan
                .await
                .map_err(|error| EngineError::internal(&error))??;
            self.bring_up(entry, &dir, &plan).await
        };
        match up.await {
            Ok((shim, ready)) => Ok(Up { home, shim, ready }),
            Err(error) => {
                log_last_words(&dir);
                self.discard(&home).await;
                Err(error)
            }
        }
    }

    /// A snapshot's files.
    pub(super) async fn stored(&self, id: &str) -> Result<Stored, EngineError> {
        let key = id.to_owned();
        let found = self.aside(move |inner| inner.snapshots.get(&key)).await?;
        let corrupt = |reason: String| EngineError::Corrupt {
            id: id.to_owned(),
            reason,
        };
        match found {
            Ok(Some(stored)) => Ok(stored),
            Ok(None) => Err(corrupt("its files are gone".to_owned())),
            Err(error) => Err(corrupt(pando_shim::error_chain(&error))),
        }
    }

    /// What a VM goes on from, once every layer was compared with its checksum and the
    /// machine with this host's.
    async fn origin(&self, stored: &Stored, disk_only: bool) -> Result<Origin, EngineError> {
        let manifest = &stored.manifest;
        let checked = stored.clone();
        let verified = self.aside(move |inner| inner.snapshots.verify(&checked));
        verified.await?.map_err(|error| EngineError::Corrupt {
            id: manifest.id.clone(),
            reason: pando_shim::error_chain(&error),
        })?;
        if disk_only {
            let bake = self.pre_mount_of(stored).await?;
            return Ok(Origin::Disk(Box::new(stored.clone()), Box::new(bake)));
        }
        let differences = self.inner.bakery.differences(&manifest.machine);
        if !differences.is_empty() {
            return Err(EngineError::Incompatible {
                id: manifest.id.clone(),
                differences: differences.join("; "),
            });
        }
        let source = Source::new(stored.clone(), self.inner.materialized.source(stored));
        if manifest.root_image.is_some() {
            return Ok(Origin::Whole(Box::new(source)));
        }
        let ingredients = self.ingredients_of_snapshot(stored).await?;
        let source = source.with_root(ingredients.base.root);
        Ok(Origin::Whole(Box::new(source)))
    }

    async fn ingredients_of_snapshot(&self, stored: &Stored) -> Result<Ingredients, EngineError> {
        self.ingredients_of(&stored.manifest.root, size_of(stored)?)
            .await
    }

    async fn pre_mount_of(&self, stored: &Stored) -> Result<Stored, EngineError> {
        let ingredients = self.ingredients_of_snapshot(stored).await?;
        let bakery = &self.inner.bakery;
        bakery.ensure(&ingredients, SavedState::PreMount).await
    }

    /// Puts a snapshot's memory together in the background: it was spawned from once, and may
    /// be again.
    fn materialize_later(&self, stored: Stored) {
        if stored.manifest.kind != SavedState::Running {
            return;
        }
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = inner.materialized.make(&stored) {
                tracing::debug!("a memory is not put together: {error}");
            }
        });
    }

    /// Puts a snapshot's memory together now, if that is less work than to write its pages
    /// into each of so many children.
    async fn materialize_for(&self, stored: &Stored, children: u32) -> Result<(), EngineError> {
        let source = self.inner.materialized.source(stored);
        let one_file = source.file.as_deref().map(pando_sys::file::allocated_bytes);
        let copied = one_file.and_then(Result::ok).unwrap_or(0) + source.pages_bytes;
        if self.inner.materialized.shares() || u64::from(children) * source.pages_bytes < copied {
            return Ok(());
        }
        let stored = stored.clone();
        let made = self.blocking(move |inner| inner.materialized.make(&stored));
        if let Err(error) = made.await {
            // Writing the pages into each child does as well.
            tracing::debug!("a memory is not put together: {error}");
        }
        Ok(())
    }
}

/// The size that its memory is of.
fn size_of(stored: &Stored) -> Result<Size, EngineError> {
    let machine = &stored.manifest.machine;
    Size::new(machine.cpus, machine.memory_mib).map_err(|error| EngineError::internal(&error))
}

/// From a snapshot the size is the snapshot's.
fn check_size(row: &SnapshotRow, request: &CreateSandbox) -> Result<(), EngineError> {
    for (what, asked, has) in [
        ("cpus", request.cpus, row.cpus),
        ("memory_mib", request.memory_mib, row.memory_mib),
    ] {
        if let Some(asked) = asked.filter(|asked| *asked != has) {
            return Err(EngineError::Invalid(format!(
                "snapshot `{}` has `{what}` {has}, not {asked}: what is made from it has its size",
                row.id
            )));
        }
    }
    Ok(())
}

/// A sandbox keeps its size and its root image.
fn check_same(
    row: &SandboxRow,
    snapshot: &SnapshotRow,
    stored: &Stored,
) -> Result<(), EngineError> {
    let mut differences = Vec::new();
    let mut compare = |what: &str, snapshot: String, sandbox: String| {
        if snapshot != sandbox {
            differences.push(format!(
                "{what}: {snapshot} in the snapshot, {sandbox} in the sandbox"
            ));
        }
    };
    compare("CPUs", snapshot.cpus.to_string(), row.cpus.to_string());
    let memory = |mib: u32| format!("{mib} MiB of memory");
    compare(
        "memory",
        memory(snapshot.memory_mib),
        memory(row.memory_mib),
    );
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    compare("root image", short(&stored.manifest.root), short(&row.root));
    match differences.is_empty() {
        true => Ok(()),
        false => Err(EngineError::Incompatible {
            id: snapshot.id.clone(),
            differences: differences.join("; "),
        }),
    }
}

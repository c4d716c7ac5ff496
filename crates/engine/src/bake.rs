//! Bakes: a template booted once at a size, made ready, frozen and kept.
//!
//! A bake is keyed by everything that went into it, so any daemon with the same
//! cache finds it; the first who needs one makes it, others wait for it.

use crate::EngineError;
use crate::host::Host;
use crate::pool::Keys;
use crate::shims::{Shim, ShimStarter, no_space_or, went_away};
use pando_image::{BaseImage, Initrd};
use pando_shim::host::machine_identity;
use pando_shim::spec::{self, Begin, ShimSpec};
use pando_store::{
    Machine, Manifest, SandboxDir, SandboxDirs, SavedState, Snapshot, Snapshots, Staging,
    StoreError,
};
use pando_types::{SandboxId, Size};
use pando_wire::shim::{BakeRequest, BakeResponse, Command, ExecRequest, State};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Raised when a bake made by older code must not be used by newer.
const BAKE_FORMAT: u32 = 3;

/// Bakes in the cache: eight sizes, both kinds. About 150 MiB each. A sandbox keeps what
/// it was made from by its own links, so none in use is lost.
const BAKES_KEPT: usize = 16;

/// What is run before a guest is saved. It must leave no trace on the disk.
const WARM_UP: [&[&str]; 3] = [
    &["/bin/true"],
    &["/bin/sh", "-c", "ls -l / && cat /etc/hostname && sleep 0"],
    &["python3", "-c", "import json, re, asyncio"],
];

/// Of each. Python's first start takes a second without KVM on an idle machine.
const WARM_UP_TIMEOUT_MS: u64 = 30_000;

/// How far apart two measurements of one host's clock rate are, at most; a guest that is told
/// a rate that is wrong by as much is 0.3 % off.
const TSC_TOLERANCE_KHZ: u64 = 10_000;

/// Where bakes come from and go to.
#[derive(Debug)]
pub(crate) struct Bakery {
    pub(crate) host: Arc<Host>,
    pub(crate) starter: ShimStarter,
    pub(crate) bakes: Snapshots,
    pub(crate) dirs: SandboxDirs,
    /// Of each sandbox's network, each way; `None` is as much as there is.
    pub(crate) bandwidth_bytes_per_second: Option<u64>,
    /// One lock for each key that is being made: the second caller waits for the first.
    pub(crate) under_way: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Layers of the disk of what boots a kernel: the template's empty one, its own.
pub(crate) const DISKS_OF_A_BOOT: usize = 2;

/// How a VM begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) begin: Begin,
    /// What runs it.
    pub(crate) machine: Machine,
    /// Layers of its disk, its own included.
    pub(crate) disks: usize,
    /// What its first snapshot is compared with.
    pub(crate) base: String,
    /// How many of the disk's layers that has.
    pub(crate) kept_disks: usize,
    /// Layers of pages that are written over its memory.
    pub(crate) pages: usize,
}

/// What a bake is made of.
#[derive(Clone, Debug)]
pub(crate) struct Ingredients {
    pub(crate) base: BaseImage,
    pub(crate) initrd: Initrd,
    pub(crate) size: Size,
}

impl Bakery {
    /// The key of a bake.
    pub(crate) fn key(&self, ingredients: &Ingredients, kind: SavedState) -> String {
        let machine = self.machine(ingredients);
        let mut hasher = blake3::Hasher::new();
        let mut part = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        part(&BAKE_FORMAT.to_string());
        part(&ingredients.base.content_hash);
        part(if kind == SavedState::Ready {
            "ready"
        } else {
            "pre-mount"
        });
        // The measured clock rate differs in its last digits each time.
        part(&machine.tsc_khz.div_ceil(10_000).to_string());
        let machine = Machine {
            tsc_khz: 0,
            ..machine
        };
        part(&format!("{machine:?}"));
        hasher.finalize().to_hex()[..40].to_owned()
    }

    /// The keys by which slots for a new sandbox are known.
    pub(crate) fn keys(&self, ingredients: &Ingredients) -> Keys {
        Keys {
            snapshot: self.key(ingredients, SavedState::Ready),
            shape: self.shape(ingredients),
        }
    }

    /// The key of all snapshots that a waiting VMM of this size fits.
    fn shape(&self, ingredients: &Ingredients) -> String {
        Self::shape_of(self.machine(ingredients))
    }

    /// The same, of what a snapshot is tied to.
    pub(crate) fn shape_of(machine: Machine) -> String {
        let machine = Machine {
            tsc_khz: 0,
            kernel: String::new(),
            initrd: String::new(),
            ..machine
        };
        blake3::hash(format!("{machine:?}").as_bytes()).to_hex()[..40].to_owned()
    }

    /// What a bake on this host is tied to.
    pub(crate) fn machine(&self, ingredients: &Ingredients) -> Machine {
        Machine {
            kernel: ingredients.base.content_hash.clone(),
            initrd: ingredients.initrd.content_hash.clone(),
            ..self.host_machine(ingredients.size)
        }
    }

    /// What this host runs, without a kernel.
    fn host_machine(&self, size: Size) -> Machine {
        let host = &self.host;
        let identity = machine_identity(&host.qemu, host.accelerator, host.tsc_khz, size);
        Machine {
            vmm: identity.vmm,
            machine: identity.machine,
            accelerator: identity.accelerator.to_string(),
            cpu_model: identity.cpu_model,
            tsc_khz: identity.tsc_khz.unwrap_or(0).into(),
            cpus: size.cpus(),
            memory_mib: size.memory_mib(),
            devices: identity.devices,
            kernel: String::new(),
            initrd: String::new(),
        }
    }

    /// In what a saved machine differs from what this host runs, for a person; empty where
    /// it can go on here.
    pub(crate) fn differences(&self, machine: &Machine) -> Vec<String> {
        let size = match Size::new(machine.cpus, machine.memory_mib) {
            Ok(size) => size,
            Err(error) => return vec![error.to_string()],
        };
        let host = self.host_machine(size);
        // Measured anew at each start of the daemon, it differs in its last digits.
        let close = host.tsc_khz.abs_diff(machine.tsc_khz) <= TSC_TOLERANCE_KHZ;
        let host = Machine {
            // Kernel and agent are in the memory.
            kernel: machine.kernel.clone(),
            initrd: machine.initrd.clone(),
            tsc_khz: if close { machine.tsc_khz } else { host.tsc_khz },
            ..host
        };
        machine.differences(&host)
    }

    /// What a shim of this size is told, but for whose it is.
    pub(crate) fn spec(&self, id: &SandboxId, size: Size, plan: &Plan) -> ShimSpec {
        ShimSpec {
            sandbox_id: id.to_string(),
            qemu: self.starter.qemu.clone(),
            accelerator: plan.machine.accelerator.clone(),
            tsc_khz: u32::try_from(plan.machine.tsc_khz)
                .ok()
                .filter(|khz| *khz > 0),
            cpus: size.cpus(),
            memory_mib: size.memory_mib(),
            begin: plan.begin,
            disks: plan.disks,
            base: plan.base.clone(),
            kept_disks: plan.kept_disks,
            pages: plan.pages,
            hostname: id.to_string(),
            machine_id: crate::ids::machine_id(id),
            env: BTreeMap::new(),
            network: None,
            bandwidth_bytes_per_second: self.bandwidth_bytes_per_second,
            limits: pando_shim::spec::Limits::default(),
            slot: None,
            preload: self.starter.preload.clone(),
            loosened: self.starter.loosened(),
        }
    }

    /// The bake, if it is there and usable.
    pub(crate) fn find(&self, ingredients: &Ingredients, kind: SavedState) -> Option<Snapshot> {
        self.get(&self.key(ingredients, kind))
    }

    /// The bake of this key, if it is there and usable.
    pub(crate) fn get(&self, key: &str) -> Option<Snapshot> {
        self.bakes.get(key).ok().flatten()
    }

    /// The bake, made now if it must be.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) async fn ensure(
        &self,
        ingredients: &Ingredients,
        kind: SavedState,
    ) -> Result<Snapshot, EngineError> {
        let key = self.key(ingredients, kind);
        let lock = {
            let mut under_way = self
                .under_way
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(under_way.entry(key.clone()).or_default())
        };
        let _turn = lock.lock().await;
        match self.whole(&key).await {
            Ok(Some(snapshot)) => {
                self.bakes.mark_used(&key);
                return Ok(snapshot);
            }
            Ok(None) => {}
            // A damaged bake is made anew: it is only a cache.
            Err(error) => {
                tracing::warn!(%error, "a bake cannot be used and is made anew");
                self.bakes
                    .remove(&key)
                    .map_err(|error| EngineError::internal(&error))?;
            }
        }
        self.bake(ingredients, kind, &key).await
    }

    /// The bake of this key, if it is there, its layers compared with their checksums.
    async fn whole(&self, key: &str) -> Result<Option<Snapshot>, StoreError> {
        let (bakes, key) = (self.bakes.clone(), key.to_owned());
        let found = tokio::task::spawn_blocking(move || {
            let found = bakes.get(&key)?;
            if let Some(snapshot) = &found {
                let checked = bakes.verify(snapshot);
                checked.map_err(|error| StoreError::Layer(key, error))?;
            }
            Ok(found)
        });
        // A thread that died has found nothing.
        found.await.unwrap_or(Ok(None))
    }

    /// Boots until the guest's kernel has measured its timer well: what it measures once,
    /// every clone has for good.
    async fn boot_well(
        &self,
        ingredients: &Ingredients,
        kind: SavedState,
    ) -> Result<Oven, EngineError> {
        let mut boots = 1;
        loop {
            let (mut oven, error_ppm) = self.boot(ingredients, kind).await?;
            if error_ppm <= TIMER_TOLERANCE_PPM {
                return Ok(oven);
            }
            tracing::warn!(
                error_ppm,
                boots,
                "the guest's kernel measured its timer wrongly"
            );
            if boots == BOOTS {
                return Ok(oven);
            }
            boots += 1;
            oven.succeeded = true;
            // Where the layers had to be copied, the next one needs the room.
            oven.end().await;
        }
    }

    async fn boot(
        &self,
        ingredients: &Ingredients,
        kind: SavedState,
    ) -> Result<(Oven, u32), EngineError> {
        let id = crate::ids::sandbox();
        let dir = self.dirs.create(&id);
        let dir = dir.map_err(|error| no_space_or(&error, "cannot make the bake's directory"))?;
        let mut oven = Oven {
            id,
            dir,
            shim: None,
            succeeded: false,
            cleared: false,
        };
        let error_ppm = oven.boot(self, ingredients, kind).await?;
        Ok((oven, error_ppm))
    }

    async fn bake(
        &self,
        ingredients: &Ingredients,
        kind: SavedState,
        key: &str,
    ) -> Result<Snapshot, EngineError> {
        let failed = |reason: String| EngineError::BakeFailed {
            template: "base".to_owned(),
            reason,
        };
        let saved = async { self.boot_well(ingredients, kind).await?.save(kind).await };
        let (oven, taken) = saved.await.map_err(|error| match error {
            EngineError::SpawnFailed(reason) => failed(reason),
            other => other,
        })?;
        let machine = self.machine(ingredients);
        let (bakes, key, ingredients) = (self.bakes.clone(), key.to_owned(), ingredients.clone());
        // Hashing and copying some hundred MiB: not on the runtime's threads.
        let published = tokio::task::spawn_blocking(move || {
            let staging = bakes.stage(oven.id.as_str())?;
            let ready = Ready {
                key: &key,
                machine,
                kind,
            };
            let manifest = gather(&oven.dir, &staging, &taken, &ingredients, ready)?;
            let published = bakes.publish(staging, &key, &manifest);
            drop(oven);
            bakes.evict(BAKES_KEPT)?;
            published
        });
        let published = published
            .await
            .map_err(|error| EngineError::internal(&error))?;
        published.map_err(|error| {
            if error.is_no_space() {
                EngineError::NoSpace(error.to_string())
            } else {
                EngineError::internal(&error)
            }
        })
    }
}

/// How wrong a kernel's idea of its timer may be: a sleep of a second ends 10 ms late.
pub(crate) const TIMER_TOLERANCE_PPM: u32 = 10_000;

/// Boots of one bake. One in three is worse on a busy host; the last is taken as it is.
const BOOTS: u32 = 4;

/// A bake under way: dropped, it leaves nothing behind.
struct Oven {
    id: SandboxId,
    dir: SandboxDir,
    shim: Option<Shim>,
    /// Its logs are of no interest.
    succeeded: bool,
    /// See [`Self::clear`].
    cleared: bool,
}

impl Oven {
    /// Boots the guest and waits for its agent; says how wrong its timer is, in ppm.
    async fn boot(
        &mut self,
        bakery: &Bakery,
        ingredients: &Ingredients,
        kind: SavedState,
    ) -> Result<u32, EngineError> {
        link_boot(&self.dir, ingredients)
            .map_err(|error| no_space_or(&error, "cannot lay out the bake"))?;
        let plan = Plan {
            begin: match kind {
                SavedState::Ready => Begin::BakeReady,
                _ => Begin::BakePreMount,
            },
            machine: bakery.machine(ingredients),
            disks: DISKS_OF_A_BOOT,
            base: String::new(),
            kept_disks: 0,
            pages: 0,
        };
        let spec = ShimSpec {
            hostname: "baking".to_owned(),
            machine_id: "0".repeat(32),
            ..bakery.spec(&self.id, ingredients.size, &plan)
        };
        let identity = crate::identity::for_sandbox(&self.dir, bakery.host.accelerator);
        let shim = bakery.starter.start(&self.dir, &spec, identity).await?;
        let shim = self.shim.insert(shim);
        let ready = shim.ready().await?;
        if ready.state != State::STATE_RUNNING {
            return Err(EngineError::not_spawned(ready.cause));
        }
        Ok(ready.timer_error_ppm)
    }

    /// Ends it; when this returns, what it took is free again.
    async fn end(mut self) {
        let cleared = self.clear();
        let joined =
            tokio::task::spawn_blocking(move || cleared.map(std::thread::JoinHandle::join));
        drop(joined.await);
    }

    /// Kills what runs and removes what lies there, once, in a thread: killing waits, and
    /// the last reference may be dropped anywhere.
    fn clear(&mut self) -> Option<std::thread::JoinHandle<()>> {
        if std::mem::replace(&mut self.cleared, true) {
            return None;
        }
        if !self.succeeded {
            crate::shims::log_last_words(&self.dir);
        }
        let (dir, process) = (
            self.dir.clone(),
            self.shim.as_ref().and_then(|shim| shim.process),
        );
        Some(std::thread::spawn(move || {
            if let Some(process) = process {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build();
                if let Ok(runtime) = runtime {
                    runtime.block_on(process.kill());
                    runtime.block_on(crate::groups::remove(&dir));
                }
            }
            drop(dir.remove());
        }))
    }

    /// Saves the guest and ends it.
    async fn save(mut self, kind: SavedState) -> Result<(Self, BakeResponse), EngineError> {
        let gone = || EngineError::SpawnFailed("nothing was booted".to_owned());
        let shim = self.shim.as_ref().ok_or_else(gone)?;
        // Before the root is there nothing can be run.
        if kind == SavedState::Ready {
            warm_up(shim).await;
        }
        let taken = shim.client.rpc.bake(BakeRequest::default()).await;
        let taken = taken.map_err(went_away)?;
        self.succeeded = true;
        Ok((self, taken.into_owned()))
    }
}

/// Does what every sandbox will do first once before the guest is saved. What the kernel
/// reads from the disk and looks up then is in the memory that all sandboxes share, and
/// none of them does it again.
async fn warm_up(shim: &Shim) {
    for argv in WARM_UP {
        let command = Command {
            argv: argv.iter().copied().map(str::to_owned).collect(),
            timeout_ms: WARM_UP_TIMEOUT_MS,
            ..Command::default()
        };
        let request = ExecRequest {
            command: command.into(),
            ..ExecRequest::default()
        };
        // An image without the program is as good an image.
        if let Err(error) = shim.client.rpc.exec(request).await {
            tracing::debug!(%error, program = argv[0], "not warmed up");
        }
    }
}

impl Drop for Oven {
    fn drop(&mut self) {
        drop(self.clear());
    }
}

/// A bake whose guest was saved.
struct Ready<'a> {
    key: &'a str,
    machine: Machine,
    kind: SavedState,
}

/// Makes the daemon's own inodes of what a jailed shim wrote, and describes those.
fn gather(
    dir: &SandboxDir,
    staging: &Staging,
    taken: &BakeResponse,
    ingredients: &Ingredients,
    ready: Ready<'_>,
) -> Result<Manifest, StoreError> {
    let base = &ingredients.base;
    // The VM has ended. Where these had to be copied, what follows needs their room.
    for name in [spec::ROOT, spec::KERNEL, spec::INITRD] {
        drop(dir.unlink(name));
    }
    let adopt = |found: &str, name: &str| staging.adopt(&untrusted(dir, found)?, name);
    let mut disks = vec![staging.adopt(&base.disk, &spec::disk(0))?];
    if ready.kind == SavedState::Ready {
        disks.push(adopt(&taken.disk_file, &spec::disk(1))?);
    }
    Ok(Manifest {
        id: ready.key.to_owned(),
        kind: ready.kind,
        machine: ready.machine,
        created_at_ms: now_ms(),
        root: base.content_hash.clone(),
        root_image: Some(staging.share(&base.root, spec::ROOT)?),
        disks,
        memory: Some(adopt(&taken.memory_file, spec::MEMORY)?),
        pages: Vec::new(),
        device_state: Some(adopt(&taken.device_state_file, spec::DEVICE_STATE)?),
        network: None,
        clean_barrier: !taken.forced,
    })
}

/// A file in the slot that a shim named: a plain name, or an error.
pub(crate) fn untrusted(dir: &SandboxDir, name: &str) -> Result<PathBuf, StoreError> {
    match is_plain(name) {
        true => Ok(dir.slot().join(name)),
        false => Err(StoreError::Key(name.chars().take(100).collect())),
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

fn is_plain(name: &str) -> bool {
    !name.starts_with('.')
        && !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
}

/// Puts what a kernel boots from into a slot.
pub(crate) fn link_boot(dir: &SandboxDir, ingredients: &Ingredients) -> std::io::Result<()> {
    let base = &ingredients.base;
    for (path, name) in [
        (&base.root, spec::ROOT.to_owned()),
        (&base.kernel, spec::KERNEL.to_owned()),
        (&ingredients.initrd.path, spec::INITRD.to_owned()),
        (&base.disk, spec::disk(0)),
    ] {
        dir.link(path, &name)?;
    }
    Ok(())
}

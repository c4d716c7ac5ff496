//! The engine: opened once per daemon, then asked.

use crate::admission::{Admission, AdmissionConfig};
use crate::bake::Bakery;
use crate::ending::Ending;
use crate::headroom::headroom;
use crate::host::Host;
use crate::journal::Journal;
use crate::lifetime::{Lifetimes, deadline};
use crate::observe::{Observed, Operation};
use crate::pool::{Pool, PoolConfig};
use crate::ports::{Ports, PortsConfig};
use crate::request::{Adoption, Caller, CreateSandbox, Sandbox, Status};
use crate::sandboxes::{Entry, Sandboxes};
use crate::shims::ShimStarter;
use crate::snapshots::Kept;
use crate::{EngineError, keys};
use pando_image::Initrd;
use pando_shim::host::AcceleratorWish;
use pando_store::{Index, LAYOUT, Materialized, NewEvent, Place, SandboxDirs, Snapshots, Verified};
use pando_sys::jail::Layers;
use pando_types::{Lifespan, SandboxLimits, SandboxState};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Instant, SystemTime};
use tracing::Instrument as _;

/// Where the engine keeps its things and what it uses.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Sandboxes and the index.
    pub state_dir: PathBuf,
    /// Images and bakes; may be shared by several daemons.
    pub cache_dir: PathBuf,
    /// The admin key's file, made at the first start.
    pub admin_key: PathBuf,
    /// Tenants that are there from the start beside the one that runs the daemon, each with
    /// its key's file, made at the first start.
    pub tenants: Vec<(&'static str, PathBuf)>,
    /// `qemu-system-x86_64`.
    pub qemu: PathBuf,
    /// Which accelerator to use.
    pub accelerator: AcceleratorWish,
    /// The program with the `shim` command.
    pub shim_program: PathBuf,
    /// The guest agent's program.
    pub agent: &'static [u8],
    /// The library of `crates/preload` for QEMU; empty where there is none, which makes
    /// snapshots of running sandboxes slower.
    pub preload: &'static [u8],
    /// Where Debian packages come from; `None` is the host's own mirror.
    pub debian_mirror: Option<String>,
    /// How much is done ahead of requests.
    pub pool: PoolConfig,
    /// Who may start, and when.
    pub admission: AdmissionConfig,
    /// What sandboxes may use that do not say it.
    pub limits: SandboxLimits,
    /// The most that whole memory files, put together from snapshots' layers, may take.
    pub materialized_mib: u64,
    /// What each sandbox may send and receive by its network; `None` is as much as there is.
    pub bandwidth_bytes_per_second: Option<u64>,
    /// Where sandboxes' names are asked; empty for the host's name servers.
    pub dns: Vec<std::net::SocketAddr>,
    /// How ports of sandboxes are offered.
    pub ports: PortsConfig,
}

/// Why the engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another daemon has the state directory.
    #[error("a daemon already runs with the state directory `{0}`")]
    AlreadyRunning(PathBuf),
    /// A directory cannot be made or used.
    #[error("cannot use `{path}`")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The index cannot be used.
    #[error(transparent)]
    Index(#[from] pando_store::IndexError),
    /// The cache cannot be used.
    #[error("the cache cannot be used")]
    Cache(#[from] pando_store::StoreError),
    /// QEMU is missing or too old.
    #[error(transparent)]
    Qemu(#[from] pando_shim::host::VersionError),
    /// The accelerator that was asked for does not work.
    #[error(transparent)]
    Accelerator(#[from] pando_shim::host::DetectError),
    /// The admin key or a sandbox of an earlier daemon cannot be dealt with.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The engine of one daemon; cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: EngineConfig,
    pub(crate) host: Arc<Host>,
    pub(crate) index: Index,
    pub(crate) journal: Journal,
    pub(crate) ending: Ending,
    pub(crate) observed: Observed,
    /// What was taken over at the start.
    pub(crate) adoption: OnceLock<Adoption>,
    pub(crate) dirs: SandboxDirs,
    pub(crate) bakery: Bakery,
    pub(crate) sandboxes: Sandboxes,
    /// The files of kept states.
    pub(crate) snapshots: Snapshots,
    /// Their rows, by id.
    pub(crate) kept: Kept,
    /// Whole memory files for them.
    pub(crate) materialized: Materialized,
    pub(crate) pool: Pool,
    pub(crate) admission: Admission,
    pub(crate) ports: Ports,
    pub(crate) lifetimes: Lifetimes,
    /// Held while layers are merged: that is done for one snapshot at a time.
    pub(crate) flattening: tokio::sync::Mutex<()>,
    /// The initrd with this daemon's agent, by root image: packing and hashing one takes
    /// longer than a claim.
    pub(crate) initrds: Mutex<HashMap<String, Initrd>>,
    pub(crate) started: Instant,
    /// Hash and tenant of every key: each request compares with them.
    keys: Vec<([u8; 32], String)>,
    /// Locked as long as the daemon lives.
    _lock: File,
}

impl Engine {
    /// Opens the state, finds out about the host, and takes over the sandboxes that an
    /// earlier daemon left running.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(config: EngineConfig) -> Result<Self, OpenError> {
        let inner = tokio::task::spawn_blocking(move || Inner::open(config)).await;
        let inner = inner.map_err(|error| EngineError::internal(&error))??;
        let engine = Self {
            inner: Arc::new(inner),
        };
        engine.stand_templates().await?;
        engine.adopt_all().await?;
        engine.listen_again().await;
        tokio::spawn(engine.clone().keep_pool());
        tokio::spawn(engine.clone().keep_lifetimes());
        tokio::spawn(engine.clone().flatten_all());
        tokio::spawn(engine.clone().follow_resolvers());
        Ok(engine)
    }

    /// Who holds this API key; compares hashes in constant time.
    pub fn authenticate(&self, key: &str) -> Option<Caller> {
        // Every request passes here, but for those of [`Self::came_without_key`].
        self.inner.pool.request_came();
        keys::find(&self.inner.keys, key)
    }

    /// A request came that a door lets in without a key: it goes before work ahead of requests.
    pub fn came_without_key(&self) {
        self.inner.pool.request_came();
    }

    /// Makes a sandbox and answers when it does. A caller that goes away before the
    /// answer gets no sandbox.
    ///
    /// # Errors
    /// The request is malformed, the template is missing, or the VM does not come up; nothing is left then.
    pub async fn create(
        &self,
        caller: &Caller,
        request: CreateSandbox,
    ) -> Result<Sandbox, EngineError> {
        let (engine, caller) = (self.clone(), caller.clone());
        let (answer, answered) = tokio::sync::oneshot::channel();
        // Its own task: a caller that hangs up must not leave half a sandbox.
        let creating = async move {
            let watch = engine.begin(Operation::Create, None);
            let creating = engine.spawn_new(&caller, request).instrument(watch.span());
            let created = creating.await;
            if let Ok(entry) = &created {
                watch.span().record("pando.sandbox.id", entry.id.as_str());
            }
            watch.end(
                created.as_ref().map_or("", |entry| entry.made_from()),
                &created,
            );
            if let Err(Ok(entry)) = answer.send(created) {
                drop(engine.destroy(&entry, "its creator went away").await);
            }
        };
        tokio::spawn(creating.in_current_span());
        let entry = answered
            .await
            .map_err(|error| EngineError::internal(&error))??;
        entry.describe()
    }

    /// A sandbox's description.
    ///
    /// # Errors
    /// There is none that the caller may see.
    pub async fn get(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let mut described = entry.describe()?;
        if described.state == SandboxState::Failed {
            described.last_console = self.last_console(&entry).await?;
        }
        Ok(described)
    }

    /// The caller's sandboxes, oldest first.
    ///
    /// # Errors
    /// The index is damaged.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<Sandbox>, EngineError> {
        self.inner
            .sandboxes
            .of(caller)
            .iter()
            .map(|entry| entry.describe())
            .collect()
    }

    /// Destroys a sandbox, whatever it does.
    ///
    /// # Errors
    /// There is none, or its files cannot be removed.
    pub async fn remove(&self, caller: &Caller, sandbox: &str) -> Result<(), EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.detached(move |engine| async move {
            let removing = engine.destroy(&entry, "");
            engine
                .observed(Operation::Remove, &entry.id, removing)
                .await
        })
        .await
    }

    /// Powers a sandbox off in order; its disk is kept.
    ///
    /// # Errors
    /// It does not run.
    pub async fn stop(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.detached(move |engine| async move {
            let stopping = engine.power_off(&entry);
            engine
                .observed(Operation::Stop, &entry.id, stopping)
                .await?;
            entry.describe()
        })
        .await
    }

    /// Powers a stopped or failed sandbox on again, on its kept disk.
    ///
    /// # Errors
    /// It runs already, or its VM does not come up.
    pub async fn start(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.detached(move |engine| async move {
            let starting = engine.power_on(&entry);
            engine
                .observed(Operation::Start, &entry.id, starting)
                .await?;
            entry.describe()
        })
        .await
    }

    /// What the daemon says of itself.
    ///
    /// # Errors
    /// None so far.
    pub async fn status(&self, caller: &Caller) -> Result<Status, EngineError> {
        let mut sandboxes: BTreeMap<&'static str, u64> = SandboxState::ALL
            .iter()
            .map(|state| (state.as_str(), 0))
            .collect();
        for entry in self.inner.sandboxes.of(caller) {
            *sandboxes.entry(entry.state().as_str()).or_default() += 1;
        }
        let headroom = self.aside(headroom).await?;
        Ok(Status {
            headroom,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            accelerator: self.inner.host.accelerator,
            accelerator_reason: self.inner.host.reason.clone(),
            vmm: self.inner.host.vmm(),
            sandboxes,
            uptime: self.inner.started.elapsed(),
            adoption: self.inner.adoption.get().copied().unwrap_or_default(),
            pool: self.inner.pool.status(),
            starts_under_way: self.inner.admission.under_way(),
            starts_refused: self.inner.admission.refused(),
        })
    }

    /// Runs work that must not be cut off when its caller goes away.
    pub(crate) async fn detached<R, F>(
        &self,
        work: impl FnOnce(Self) -> F,
    ) -> Result<R, EngineError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, EngineError>> + Send + 'static,
    {
        tokio::spawn(work(self.clone()).in_current_span())
            .await
            .map_err(|error| EngineError::internal(&error))?
    }

    /// Runs work that waits for the disk; whatever goes wrong is a fault of ours.
    pub(crate) async fn blocking<R, E>(
        &self,
        work: impl FnOnce(&Inner) -> Result<R, E> + Send + 'static,
    ) -> Result<R, EngineError>
    where
        R: Send + 'static,
        E: std::error::Error + Send + 'static,
    {
        let done = self.aside(work).await?;
        done.map_err(|error| EngineError::internal(&error))
    }

    /// Runs work that waits for the disk; what its errors mean is the caller's to say.
    pub(crate) async fn aside<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> R + Send + 'static,
    ) -> Result<R, EngineError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.map_err(|error| EngineError::internal(&error))
    }

    /// Writes a sandbox's new state to the index and then to its entry.
    pub(crate) async fn set_state(
        &self,
        entry: &Arc<Entry>,
        state: SandboxState,
        reason: Option<String>,
        isolation: Option<String>,
    ) -> Result<(), EngineError> {
        let change = Change {
            state,
            reason,
            isolation,
            place: None,
        };
        self.change(entry, change).await
    }

    /// Writes what became of a sandbox to the index, in one transaction, and then to its entry.
    pub(crate) async fn change(
        &self,
        entry: &Arc<Entry>,
        change: Change,
    ) -> Result<(), EngineError> {
        let row = entry.row();
        let expires_at = deadline(
            change.state,
            row.lifetime.expires_at,
            row.lifetime.timeout.map(Lifespan::get),
            SystemTime::now(),
        );
        let (id, tenant, boot_id) = (row.id, row.tenant, self.inner.host.boot_id.clone());
        let written = change.clone();
        let wrote = self.aside(move |inner| {
            let kind = format!("sandbox.{}", written.state);
            let moved = written.place.as_ref();
            let event = NewEvent {
                tenant: &tenant,
                kind: moved.and_then(|moved| moved.event).unwrap_or(&kind),
                subject: &id,
                detail: written.reason.as_deref().unwrap_or_default(),
            };
            let change = pando_store::StateChange {
                id: &id,
                state: written.state,
                reason: written.reason.as_deref(),
                isolation: written.isolation.as_deref(),
                place: moved.map(Moved::place),
                expires_at,
            };
            inner.index.set_state(&change, &boot_id, &event)
        });
        wrote.await?.map_err(|error| EngineError::index(&error))?;
        entry.update(|row| {
            row.state = change.state;
            row.state_reason = change.reason;
            row.lifetime.expires_at = expires_at;
            if let Some(isolation) = change.isolation {
                row.isolation = isolation;
            }
            if let Some(moved) = change.place {
                (row.home, row.parent, row.paused_in) = (moved.home, moved.parent, moved.paused_in);
            }
            if change.state == SandboxState::Running {
                row.started_at = Some(SystemTime::now());
                row.boot_id.clone_from(&self.inner.host.boot_id);
                entry.activity.touch();
            }
        });
        self.inner.lifetimes.have_changed();
        Ok(())
    }
}

/// What becomes of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) state: SandboxState,
    pub(crate) reason: Option<String>,
    pub(crate) isolation: Option<String>,
    pub(crate) place: Option<Moved>,
}

/// Where a sandbox lives from now on, and what it came from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) home: Option<String>,
    pub(crate) parent: Option<String>,
    pub(crate) paused_in: Option<String>,
    /// What the event is called, where the state does not say it.
    pub(crate) event: Option<&'static str>,
}

impl Moved {
    fn place(&self) -> Place<'_> {
        Place {
            home: self.home.as_deref(),
            parent: self.parent.as_deref(),
            paused_in: self.paused_in.as_deref(),
        }
    }
}

impl Inner {
    fn open(config: EngineConfig) -> Result<Self, OpenError> {
        let started = Instant::now();
        make_dir(&config.state_dir, 0o711)?;
        make_dir(&config.cache_dir, 0o755)?;
        // Whoever made it: its names are nobody else's business.
        set_mode(&config.state_dir, 0o711)?;
        let lock = lock(&config.state_dir)?;
        let index = Index::open(&config.state_dir.join("pando.db"))?;
        keys::ensure(&index, &config.admin_key, keys::DEFAULT_TENANT)?;
        for (tenant, path) in &config.tenants {
            keys::ensure(&index, path, tenant)?;
        }
        let keys = index.keys()?;
        let host = Arc::new(Host::probe(&config)?);
        let layout = config.state_dir.join(LAYOUT);
        let sandboxes = layout.join("sandboxes");
        let dirs = SandboxDirs::open(&sandboxes).map_err(|source| OpenError::Directory {
            path: sandboxes,
            source,
        })?;
        let program = shim_program(&config).map_err(|source| OpenError::Directory {
            path: config.shim_program.clone(),
            source,
        })?;
        let verified = Verified::default();
        let snapshots = Snapshots::open_private(&layout.join("snapshots"), &verified)?;
        let materialized = materialized(&config, &host)?;
        let bakes = bakes_dir(&config);
        let preload = preload(&config).map_err(|source| OpenError::Directory {
            path: config.state_dir.join(LAYOUT),
            source,
        })?;
        let starter = ShimStarter {
            program,
            qemu: config.qemu.clone(),
            preload,
            jail: Layers::ALL,
        };
        let bakery = Bakery {
            host: Arc::clone(&host),
            starter,
            bakes: Snapshots::open(&bakes, &verified)?,
            dirs: dirs.clone(),
            bandwidth_bytes_per_second: config.bandwidth_bytes_per_second,
            under_way: Mutex::new(HashMap::new()),
        };
        let pool = Pool::new(config.pool);
        let admission = Admission::new(config.admission);
        let ports = Ports::open(&index)?;
        let kept = Kept::new(index.snapshots()?);
        let journal = Journal::of(&index)?;
        Ok(Self {
            config,
            host,
            index,
            journal,
            ending: Ending::default(),
            observed: Observed::default(),
            adoption: OnceLock::new(),
            dirs,
            bakery,
            sandboxes: Sandboxes::default(),
            kept,
            snapshots,
            materialized,
            pool,
            admission,
            ports,
            lifetimes: Lifetimes::default(),
            flattening: tokio::sync::Mutex::default(),
            initrds: Mutex::default(),
            started,
            keys,
            _lock: lock,
        })
    }
}

fn make_dir(path: &Path, mode: u32) -> Result<(), OpenError> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|source| OpenError::Directory {
        path: path.to_path_buf(),
        source,
    })
}

fn set_mode(path: &Path, mode: u32) -> Result<(), OpenError> {
    let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set.map_err(|source| OpenError::Directory {
        path: path.to_path_buf(),
        source,
    })
}

/// The program that shims are started from. As root that is a copy in the state
/// directory: a sandbox's account may not reach ours, in a home directory say. Shims that
/// run keep the copy they were started from.
fn shim_program(config: &EngineConfig) -> io::Result<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        return Ok(config.shim_program.clone());
    }
    let directory = config.state_dir.join(LAYOUT);
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(&directory)?;
    let (program, fresh) = (directory.join("pando"), directory.join("pando.new"));
    // Left by a daemon that was killed here.
    drop(fs::remove_file(&fresh));
    let (from, to) = (File::open(&config.shim_program)?, File::create_new(&fresh)?);
    pando_sys::file::share_or_copy(&from, &to)?;
    to.set_permissions(fs::Permissions::from_mode(0o755))?;
    // An open file that may be written cannot be run.
    drop(to);
    fs::rename(&fresh, &program)?;
    Ok(program)
}

/// Where bakes are: on the file system of the sandboxes, which hold them by hard links. A
/// cache elsewhere keeps the images only.
fn bakes_dir(config: &EngineConfig) -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let same = device(&config.cache_dir) == device(&config.state_dir);
    let dir = if same {
        &config.cache_dir
    } else {
        &config.state_dir
    };
    dir.join(LAYOUT).join("bakes")
}

fn materialized(config: &EngineConfig, host: &Host) -> Result<Materialized, OpenError> {
    let dir = config.state_dir.join(LAYOUT).join("materialized");
    let limit = config.materialized_mib << 20;
    let opened = Materialized::open(&dir, &host.boot_id, limit);
    opened.map_err(|source| OpenError::Directory { path: dir, source })
}

/// Puts the library for QEMU into the state directory, whose layout is there, and returns
/// where it is. The loader looks from another directory, hence the absolute path.
fn preload(config: &EngineConfig) -> io::Result<Option<PathBuf>> {
    if config.preload.is_empty() {
        return Ok(None);
    }
    let directory = std::path::absolute(config.state_dir.join(LAYOUT))?;
    let (library, fresh) = (directory.join("preload.so"), directory.join("preload.new"));
    // A QEMU may have the old one mapped: it is replaced, never written.
    fs::write(&fresh, config.preload)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644))?;
    fs::rename(&fresh, &library)?;
    Ok(Some(library))
}

/// One daemon per state directory: the lock goes with the process, however it ends.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join("daemon.lock");
    let failed = |source| OpenError::Directory {
        path: path.clone(),
        source,
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {
            // For a person who looks which process it is.
            drop(fs::write(&path, format!("{}\n", std::process::id())));
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => Err(OpenError::AlreadyRunning(dir.to_path_buf())),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

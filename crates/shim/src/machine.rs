//! The VM of this sandbox, from nothing to an agent that answers.

use crate::chain::Chain;
use crate::error_chain::error_chain;
use crate::failure::{self, OomKills};
use crate::network;
use crate::ports::Ports;
use crate::processes::Processes;
use crate::slot::{ClaimBox, Identity};
use crate::spec::{self, Begin, ShimSpec, Wait};
use crate::stall::{NO_SPACE, until_no_space};
use pando_net::{Gateway, GatewayConfig, GatewayHandle, GatewayLimits};
use pando_sys::jail::seccomp::{self, FilterError};
use pando_types::{Accelerator, Size, limits};
use pando_vmm::qemu::{BakePoint, CommandLine, TB_SIZE_MIB, TIMER_MULT};
use pando_vmm::{Channels, LaunchError, Qemu, QemuConfig, Start, Vmm as _, qcow2};
use pando_wire::Steps;
use pando_wire::channel::{Channel, Connection, OpenOptions, base_uri};
use pando_wire::guest::{GuestClient, Resume};
use pando_wire::process::ProcessClient;
use pando_wire::shim::State;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// A cold boot under TCG takes 5 to 15 s on two idle cores; a busy machine may be ten times slower.
const BAKE_TIMEOUT: Duration = Duration::from_secs(240);

/// A load answers in well under a second; mounting a disk with a long journal takes a few.
const SPAWN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a guest that has answered may take to say something of itself.
const INFO_TIMEOUT: Duration = Duration::from_secs(10);

/// How long QEMU may take to leave after it was told to.
const QUIT_GRACE: Duration = Duration::from_secs(3);

/// Frames of the guest that may wait: a dozen of the longest.
const NIC_BUFFER_BYTES: usize = 1 << 20;

/// Bytes of entropy for the guest; the size of the kernel's input pool.
const ENTROPY_BYTES: usize = 64;

/// Steps that a guest may tell of; the agent has five.
const AGENT_STEPS: usize = 32;

/// What is known of the VM, for those who watch.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) state: State,
    pub(crate) cause: String,
}

/// A VM that answered once.
pub(crate) struct Running {
    pub(crate) qemu: Qemu,
    pub(crate) channel: Channel,
    pub(crate) processes: Arc<Processes<Connection>>,
    pub(crate) guest: GuestClient<Connection>,
    pub(crate) ports: Ports,
    pub(crate) warnings: Vec<String>,
    pub(crate) timing_ms: HashMap<String, f64>,
    /// What the guest says of its own steps.
    pub(crate) agent_ms: HashMap<String, f64>,
    /// See `ReadyResponse`.
    pub(crate) timer_error_ppm: u32,
}

/// The machine and what happens to it.
pub(crate) struct Machine {
    pub(crate) spec: ShimSpec,
    pub(crate) dir: PathBuf,
    pub(crate) running: OnceLock<Running>,
    pub(crate) status: watch::Sender<Status>,
    /// Requests that are being answered.
    pub(crate) requests: watch::Sender<usize>,
    /// Locked while a snapshot is taken.
    pub(crate) chain: tokio::sync::Mutex<Chain>,
    /// Of the guest's network card, once there is one.
    pub(crate) gateway: OnceLock<GatewayHandle>,
    /// Where a claim goes, while this is a slot that waits.
    pub(crate) claim: ClaimBox,
}

/// Why a VM did not come up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("cannot make a socket pair")]
    Socket(#[source] std::io::Error),
    #[error("the host gives no entropy")]
    Entropy(#[source] std::io::Error),
    #[error("the disk cannot be made")]
    Disk(#[source] std::io::Error),
    #[error("the spec is malformed: {0}")]
    Spec(String),
    #[error("QEMU did not start")]
    Launch(#[from] LaunchError),
    #[error("QEMU refused")]
    Vmm(#[from] pando_vmm::VmmError),
    #[error("the agent did not answer")]
    Channel(#[from] pando_wire::channel::OpenError),
    #[error("a layer of pages cannot be used")]
    Pages(#[from] crate::restore::WritePagesError),
    #[error("what is known of names cannot be read")]
    Network(#[source] std::io::Error),
    #[error("what it may reach cannot be read")]
    Egress(#[from] pando_types::EgressError),
    #[error("its limits cannot be put on")]
    Limit(#[source] std::io::Error),
    #[error("its jail cannot be put on")]
    Jail(#[from] FilterError),
    #[error("{NO_SPACE}")]
    NoSpace,
    #[error("the warm-up failed: {0}")]
    WarmUp(String),
    #[error("{0}")]
    Exited(String),
}

impl Machine {
    pub(crate) fn new(spec: ShimSpec, dir: PathBuf) -> Self {
        let status = watch::Sender::new(Status {
            state: State::STATE_STARTING,
            cause: String::new(),
        });
        let chain = Chain::new(spec.disks, spec.kept_disks, spec.base.clone());
        Self {
            spec,
            dir,
            running: OnceLock::new(),
            status,
            requests: watch::Sender::new(0),
            chain: tokio::sync::Mutex::new(chain),
            gateway: OnceLock::new(),
            claim: ClaimBox::default(),
        }
    }

    /// Brings the VM up and follows it to its end.
    pub(crate) async fn run(self: Arc<Self>) {
        let oom_kills = OomKills::so_far();
        let running = match self.start().await {
            Ok(running) => running,
            Err(error) => {
                self.set(State::STATE_FAILED, error_chain(&error));
                return;
            }
        };
        let running = self.running.get_or_init(|| running);
        self.set(State::STATE_RUNNING, String::new());
        let stalls = self.follow_stalls(&running.qemu);
        let exit = tokio::select! {
            exit = running.qemu.exited() => exit,
            () = stalls => running.qemu.exited().await,
        };
        let (state, cause) = failure::judge(&exit, oom_kills);
        self.set(state, cause);
    }

    pub(crate) fn set(&self, state: State, cause: String) {
        self.status.send_replace(Status { state, cause });
    }

    async fn start(&self) -> Result<Running, StartError> {
        let mut steps = Steps::begin();
        let (config, (ctl, data), nic) = self.config()?;
        let gateway = self.gateway_of(nic)?;
        let qemu = Qemu::launch(config).await?;
        seccomp::keep_to_limits_of(qemu.pid())?;
        steps.mark("launched");
        let mut identity = Identity::of(&self.spec);
        let mut begin = self.spec.begin;
        let mut pages = self.spec.pages;
        let wait = self.spec.slot.as_ref().map(|slot| slot.wait);
        if let Some(Wait::Generic | Wait::Bound) = wait {
            let claim = self.claimed(&qemu).await?;
            steps = Steps::begin();
            if wait == Some(Wait::Generic) {
                (begin, pages) = self.bind(&qemu, &claim).await?;
                steps.mark("bound");
            }
            network::apply(&gateway, &claim.network)?;
            identity = claim.identity;
        }
        if let Begin::Spawn { .. } = begin {
            if pages > 0 {
                self.write_pages(&qemu, pages).await?;
                steps.mark("written");
            }
            qemu.load(&self.slot().join(spec::DEVICE_STATE)).await?;
            steps.mark("loaded");
        }
        if wait != Some(Wait::Warm) {
            self.limit(&qemu, &gateway, &identity.limits).await?;
        }
        qemu.cont().await?;
        let options = greeting(&identity, begin, wait == Some(Wait::Warm))?;
        let open = Channel::open(ctl, data, options);
        let (mut channel, mut resumed) = unless_ended(&qemu, open).await?;
        if let Some(Wait::Warm) = wait {
            unless_ended(&qemu, self.warm_up(&channel)).await?;
            qemu.stop().await?;
            let claim = self.claimed(&qemu).await?;
            network::apply(&gateway, &claim.network)?;
            identity = claim.identity;
            steps = Steps::begin();
            self.limit(&qemu, &gateway, &identity.limits).await?;
            qemu.cont().await?;
            let options = greeting(&identity, begin, false)?;
            let again = channel.again(options);
            (channel, resumed) = unless_ended(&qemu, again).await?;
        }
        steps.mark("answered");
        self.restore_network(&gateway)?;
        let config = connectrpc::client::ClientConfig::new(base_uri());
        let processes = Processes::new(ProcessClient::new(channel.ctl().clone(), config.clone()));
        let guest = GuestClient::new(channel.ctl().clone(), config);
        let ports = Ports::new(channel.data().clone());
        let timer_error_ppm = match begin {
            Begin::Spawn { .. } => 0,
            _ => unless_ended(&qemu, self.timer_error_ppm(&guest)).await?,
        };
        Ok(Running {
            qemu,
            channel,
            processes: Arc::new(processes),
            guest,
            ports,
            warnings: resumed.warnings,
            timing_ms: steps.done,
            agent_ms: resumed.timing_ms.into_iter().take(AGENT_STEPS).collect(),
            timer_error_ppm,
        })
    }

    /// A kernel measures its timer's rate once, in 100 ms of its boot; where the host is
    /// busy, the translator may stand still in the middle of it.
    async fn timer_error_ppm(&self, guest: &GuestClient<Connection>) -> Result<u32, StartError> {
        if self.spec.accelerator != "tcg" {
            return Ok(0);
        }
        let info = guest.info(pando_wire::guest::InfoRequest::default());
        let info = tokio::time::timeout(INFO_TIMEOUT, info).await;
        // A kernel that does not say is taken at its word.
        let mult = info.map_or(0, |info| {
            info.map_or(0, |info| info.into_owned().timer_mult)
        });
        Ok(match mult {
            0 => 0,
            mult => error_ppm(mult, TIMER_MULT),
        })
    }

    fn config(&self) -> Result<(QemuConfig, (UnixStream, UnixStream), OwnedFd), StartError> {
        let spec = &self.spec;
        let accelerator = match spec.accelerator.as_str() {
            "kvm" => Accelerator::Kvm,
            "tcg" => Accelerator::Tcg,
            other => return Err(StartError::Spec(format!("no accelerator `{other}`"))),
        };
        let size = Size::new(spec.cpus, spec.memory_mib)
            .map_err(|error| StartError::Spec(error.to_string()))?;
        let (ctl, ctl_vmm) = stream_pair()?;
        let (data, data_vmm) = stream_pair()?;
        let (nic, nic_vmm) = card_pair()?;
        // The VMM's end is its own to fill; where the host allows less, it waits more often.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&nic_vmm, NIC_BUFFER_BYTES);
        let slot = self.slot();
        let config = QemuConfig {
            binary: spec.qemu.clone(),
            accelerator,
            size,
            tsc_khz: spec.tsc_khz,
            start: self.vm_start(accelerator),
            root: slot.join(spec::ROOT),
            disk: self.disks()?,
            channels: Channels {
                ctl: ctl_vmm,
                data: data_vmm,
                nic: nic_vmm,
            },
            slot,
            console: self.dir.join(pando_store::SHIM).join("console.log"),
            jail: spec.jail().map_err(StartError::Spec)?,
            preload: spec.preload.clone(),
            tb_size_mib: TB_SIZE_MIB,
        };
        Ok((config, (ctl, data), nic))
    }

    /// Starts the gateway at this process's end of the network card.
    fn gateway_of(&self, card: OwnedFd) -> Result<GatewayHandle, StartError> {
        let network = self.spec.network.as_ref();
        let policy = network.map_or_else(|| Ok(network::nothing()), network::policy_of)?;
        let config = GatewayConfig {
            card,
            policy,
            resolvers: network
                .map(|network| network.resolvers.clone())
                .unwrap_or_default(),
            names: Vec::new(),
            // See `Machine::limit`.
            limits: GatewayLimits::default(),
        };
        let (gateway, handle) = Gateway::new(config).map_err(StartError::Socket)?;
        tokio::spawn(gateway.run());
        Ok(self.gateway.get_or_init(|| handle).clone())
    }

    fn is_generic(&self) -> bool {
        let slot = self.spec.slot.as_ref();
        slot.is_some_and(|slot| slot.wait == Wait::Generic)
    }

    fn vm_start(&self, accelerator: Accelerator) -> Start {
        let slot = self.slot();
        if self.is_generic() {
            return Start::Unbound;
        }
        let bake = match self.spec.begin {
            Begin::Spawn { .. } => {
                return Start::Load {
                    memory: slot.join(spec::MEMORY),
                };
            }
            Begin::BakeReady | Begin::Boot => BakePoint::Ready,
            Begin::BakePreMount => BakePoint::PreMount,
        };
        Start::Cold {
            kernel: slot.join(spec::KERNEL),
            initrd: slot.join(spec::INITRD),
            command_line: CommandLine {
                accelerator,
                tsc_khz: self.spec.tsc_khz,
                bake,
            }
            .to_string(),
            memory: slot.join(spec::MEMORY),
            keep: self.spec.begin != Begin::Boot,
        }
    }

    /// The disk's layers; the last, writable one is made when it is not there yet.
    fn disks(&self) -> Result<Vec<PathBuf>, StartError> {
        let slot = self.slot();
        let disks: Vec<PathBuf> = match self.is_generic() {
            true => vec![slot.join(spec::OWN_DISK)],
            false => (0..self.spec.disks)
                .map(|index| slot.join(spec::disk(index)))
                .collect(),
        };
        let top = disks
            .last()
            .ok_or_else(|| StartError::Spec("the disk has no layers".to_owned()))?;
        if !top.exists() {
            make_overlay(top).map_err(StartError::Disk)?;
        }
        Ok(disks)
    }

    pub(crate) fn slot(&self) -> PathBuf {
        self.dir.join(pando_store::SLOT)
    }

    /// Ends the VM at once.
    pub(crate) async fn quit(&self) {
        if let Some(running) = self.running.get() {
            running.qemu.quit(QUIT_GRACE).await;
        }
    }

    pub(crate) fn console(&self) -> String {
        match self.running.get() {
            Some(running) => running.qemu.console_tail(),
            None => std::fs::read_to_string(self.dir.join(pando_store::SHIM).join("console.log"))
                .unwrap_or_default(),
        }
    }
}

/// What HELLO says.
fn greeting(identity: &Identity, begin: Begin, warm: bool) -> Result<OpenOptions, StartError> {
    let (clean, timeout) = match begin {
        Begin::Spawn { clean_barrier, .. } => (clean_barrier, SPAWN_TIMEOUT),
        // A cold boot's channel is empty: nothing can be in the way.
        Begin::BakeReady | Begin::BakePreMount | Begin::Boot => (true, BAKE_TIMEOUT),
    };
    let mut entropy = vec![0; ENTROPY_BYTES];
    pando_sys::random::fill(&mut entropy).map_err(StartError::Entropy)?;
    let mut resume = Resume {
        entropy,
        sandbox_id: identity.sandbox_id.clone(),
        hostname: identity.hostname.clone(),
        machine_id: identity.machine_id.clone(),
        env: identity.env.clone().into_iter().collect(),
        mount: matches!(begin, Begin::Spawn { mount: true, .. }),
        ..Resume::default()
    };
    identity.limits.tell(&mut resume);
    Ok(OpenOptions {
        resume,
        resync: !clean,
        timeout,
        warm,
    })
}

/// Work on a VM that comes up; that it dies meanwhile, or stands still since the host's disk
/// is full, is noticed at once.
pub(crate) async fn unless_ended<R, E: Into<StartError>>(
    qemu: &Qemu,
    work: impl Future<Output = Result<R, E>>,
) -> Result<R, StartError> {
    tokio::select! {
        done = work => done.map_err(Into::into),
        exit = qemu.exited() => Err(StartError::Exited(failure::judge(&exit, OomKills::UNKNOWN).1)),
        () = until_no_space(qemu) => Err(StartError::NoSpace),
    }
}

fn error_ppm(found: u64, right: u64) -> u32 {
    let error = found.abs_diff(right).saturating_mul(1_000_000) / right;
    u32::try_from(error).unwrap_or(u32::MAX)
}

/// An empty writable layer of the disk's size.
pub(crate) fn make_overlay(path: &Path) -> std::io::Result<()> {
    qcow2::create(path, limits::DISK_GIB << 30)
}

/// The network card's pair, of packets in order. A socket for datagrams would take an address
/// with each of them, and so send to any such socket of the host that may be written to.
fn card_pair() -> Result<(OwnedFd, OwnedFd), StartError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let pair = socketpair(family, kind, SocketFlags::CLOEXEC, None);
    pair.map_err(|error| StartError::Socket(error.into()))
}

fn stream_pair() -> Result<(UnixStream, OwnedFd), StartError> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(StartError::Socket)?;
    ours.set_nonblocking(true).map_err(StartError::Socket)?;
    let ours = UnixStream::from_std(ours).map_err(StartError::Socket)?;
    Ok((ours, theirs.into()))
}

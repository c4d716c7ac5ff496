//! A slot: a shim that did its work before anybody asked for a sandbox, and waits.
//!
//! ```text
//!   generic: launch unbound ─────────────────── WAITING ─ claim ─> bind, load, cont, HELLO
//!   bound:  launch ──────────────────────────── WAITING ─ claim ─> load, cont, HELLO
//!   warm:   launch, load, cont, HELLO (warm),
//!           warm-up programs, stop ──────────── WAITING ─ claim ─> cont, HELLO
//! ```
//! A warm clone's user processes have been frozen since the bake. Its clock, entropy and
//! environment come with the claim's HELLO, as a fresh clone's do. While it waits its VM is
//! stopped, and the guest's own time with it: hours later no timer of it is overdue.

use crate::chain::Chain;
use crate::machine::{Machine, StartError, unless_ended};
use crate::network::network_of;
use crate::processes::Processes;
use crate::spec::{self, Begin, Limits, Network, ShimSpec};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use pando_vmm::{Binding, Qemu};
use pando_wire::channel::{BoxError, Channel, base_uri};
use pando_wire::process::ProcessClient;
use pando_wire::shim::{self, Bind, ClaimRequest, State};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// All warm-up programs together. Without KVM they take half a second on an idle machine.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(60);

/// What a warm-up program says is of no interest.
const WARM_UP_OUTPUT_BYTES: usize = 4 << 10;

/// What makes the VM this sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) sandbox_id: String,
    pub(crate) hostname: String,
    pub(crate) machine_id: String,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) limits: Limits,
}

impl Identity {
    pub(crate) fn of(spec: &ShimSpec) -> Self {
        Self {
            sandbox_id: spec.sandbox_id.clone(),
            hostname: spec.hostname.clone(),
            machine_id: spec.machine_id.clone(),
            env: spec.env.clone(),
            limits: spec.limits,
        }
    }
}

/// What the daemon says when it makes a slot a sandbox.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) identity: Identity,
    pub(crate) network: Network,
    /// For a slot that fits any snapshot.
    bind: Option<Bind>,
}

impl Claim {
    fn read(request: ClaimRequest) -> Result<Self, String> {
        let network = request.network.into_option().unwrap_or_default();
        Ok(Self {
            identity: Identity {
                sandbox_id: request.sandbox_id,
                hostname: request.hostname,
                machine_id: request.machine_id,
                env: request.env.into_iter().collect(),
                limits: Limits::of(request.limits.into_option().unwrap_or_default()),
            },
            network: network_of(network)?,
            bind: request.bind.into_option(),
        })
    }
}

/// Takes the one claim of a slot that waits.
#[derive(Debug, Default)]
pub(crate) struct ClaimBox(Mutex<Option<oneshot::Sender<Claim>>>);

impl ClaimBox {
    fn set(&self, sender: oneshot::Sender<Claim>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    fn take(&self) -> Option<oneshot::Sender<Claim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Machine {
    /// Waits to be claimed, as long as the VM lives.
    pub(crate) async fn claimed(&self, qemu: &Qemu) -> Result<Claim, StartError> {
        let (sender, claim) = oneshot::channel();
        self.claim.set(sender);
        self.set(State::STATE_WAITING, String::new());
        let claim = async {
            let gone = |_| StartError::Spec("nobody can claim it".to_owned());
            claim.await.map_err(gone)
        };
        unless_ended(qemu, claim).await
    }

    /// Hands a waiting slot over; false when it does not wait.
    pub(crate) fn hand_over(&self, request: ClaimRequest) -> bool {
        // Only a daemon of another version says what cannot be read.
        let Ok(claim) = Claim::read(request) else {
            return false;
        };
        let Some(sender) = self.claim.take() else {
            return false;
        };
        // Before it goes: who asks for the state from now on waits for the outcome. A VM that
        // has died meanwhile stays failed.
        let waits = self.status.send_if_modified(|status| {
            let waits = status.state == State::STATE_WAITING;
            if waits {
                status.state = State::STATE_STARTING;
            }
            waits
        });
        waits && sender.send(claim).is_ok()
    }

    /// Binds a VM that fits any snapshot to the one whose layers are in the slot.
    pub(crate) async fn bind(
        &self,
        qemu: &Qemu,
        claim: &Claim,
    ) -> Result<(Begin, usize), StartError> {
        let missing = || StartError::Spec("the claim names no snapshot".to_owned());
        let bind = claim.bind.as_ref().ok_or_else(missing)?;
        let count = usize::try_from(bind.disks).unwrap_or_default();
        let no_disk = || StartError::Spec("the claim names no disk".to_owned());
        let below = count.checked_sub(1).ok_or_else(no_disk)?;
        let slot = self.slot();
        let binding = Binding {
            memory: slot.join(spec::MEMORY),
            root: slot.join(spec::ROOT),
            lower: (0..below)
                .map(|index| slot.join(spec::disk(index)))
                .collect(),
            top: slot.join(spec::disk(below)),
        };
        std::fs::rename(slot.join(spec::OWN_DISK), &binding.top).map_err(StartError::Disk)?;
        qemu.bind(&binding).await?;
        let kept = usize::try_from(bind.kept_disks).unwrap_or_default();
        *self.chain.lock().await = Chain::new(count, kept, bind.base.clone());
        let begin = Begin::Spawn {
            clean_barrier: bind.clean_barrier,
            mount: bind.mount,
        };
        Ok((begin, usize::try_from(bind.pages).unwrap_or_default()))
    }

    /// Runs the warm-up programs, and one request on the port that clients reach.
    pub(crate) async fn warm_up(&self, channel: &Channel) -> Result<(), StartError> {
        let programs = self.spec.slot.iter().flat_map(|slot| &slot.warm_up);
        let config = connectrpc::client::ClientConfig::new(base_uri());
        let processes = Processes::new(ProcessClient::new(channel.ctl().clone(), config));
        let warm = async {
            for argv in programs {
                let command = shim::Command {
                    argv: argv.clone(),
                    ..shim::Command::default()
                };
                let ran = processes.exec(command, WARM_UP_OUTPUT_BYTES).await;
                match ran {
                    Ok(ran) if ran.exit.exit_code == Some(0) => {}
                    Ok(ran) => {
                        return Err(format!("`{}` ended with {:?}", argv.join(" "), ran.exit));
                    }
                    Err(error) => return Err(error.message.unwrap_or_default()),
                }
            }
            answer_health(channel).await
        };
        match tokio::time::timeout(WARM_UP_TIMEOUT, warm).await {
            Ok(done) => done.map_err(StartError::WarmUp),
            Err(_) => Err(StartError::WarmUp(format!(
                "it took more than {WARM_UP_TIMEOUT:?}"
            ))),
        }
    }
}

async fn answer_health(channel: &Channel) -> Result<(), String> {
    let uri = format!("{}health", base_uri());
    let body = Empty::<Bytes>::new().map_err(|never: Infallible| -> BoxError { match never {} });
    let request = http::Request::get(uri).body(body.boxed_unsync());
    let request = request.map_err(|error| error.to_string())?;
    let answer = channel.data().request(request).await;
    answer.map(drop).map_err(|error| error.to_string())
}

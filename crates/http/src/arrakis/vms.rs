//! VMs: started, listed, put into another state, destroyed, kept.

use super::shapes::{
    ChangeVm, Health, KeepVm, KeptVm, PortForward, StartVm, Vm, VmList, VmStatus, Wanted,
};
use super::{Door, answer, done, invalid};
use crate::error::ApiError;
use crate::json::{JsonBody, Target};
use crate::to_the_end::to_the_end;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use pando_engine::request::{Caller, CreateSandbox, Rollback, Sandbox, TakeSnapshot};
use pando_engine::{EngineError, OpenPort};
use pando_types::{Name, SandboxState, TemplateRef};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::Error as NoSuchWord;

/// The ports that a VM has on the host from its start, with what they are for. The first is
/// offered where the template has a desktop.
const FORWARDS: [(u16, &str); 6] = [
    (5901, "gui"),
    (5736, "code"),
    (5737, "code"),
    (5738, "code"),
    (5739, "code"),
    (5740, "code"),
];

/// The template whose VMs have a desktop, on the first of [`FORWARDS`]; what VMs are made from
/// where it was baked and nothing else was said.
const DESKTOP: &str = "desktop";

/// What they are made from otherwise.
const BASE: &str = "base";

/// A guest's address, the same in each; the network ends in its gateway.
const INSIDE: &str = "10.0.2.15/24";

impl Door {
    /// The caller's VMs: sandboxes with a name, since this API knows them by nothing else.
    async fn all(&self, caller: &Caller) -> Result<Vec<Sandbox>, ApiError> {
        let mut all = self.engine.list(caller).await?;
        all.retain(|vm| vm.name.is_some());
        Ok(all)
    }

    /// The VM of this name, and nothing that merely begins like it.
    pub(super) async fn find(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<Option<Sandbox>, ApiError> {
        let all = self.all(caller).await?;
        let named = |vm: &Sandbox| vm.name.as_ref().is_some_and(|own| own.as_str() == name);
        Ok(all.into_iter().find(named))
    }

    /// The VM of this name, which must be there.
    pub(super) async fn get(&self, caller: &Caller, name: &str) -> Result<Sandbox, ApiError> {
        let found = self.find(caller, name).await?;
        found.ok_or_else(|| {
            let shown = name.chars().take(128).collect();
            EngineError::SandboxNotFound(shown).into()
        })
    }

    fn describe(&self, caller: &Caller, vm: &Sandbox) -> Result<Vm, ApiError> {
        let ports = self.engine.offered_ports(caller, vm.id.as_str())?;
        let forwards = FORWARDS.iter().filter_map(|(port, description)| {
            let offered = ports.iter().find(|offered| offered.port == *port)?;
            Some(PortForward {
                description,
                guest_port: port.to_string(),
                host_port: offered.raw?.port().to_string(),
            })
        });
        Ok(Vm {
            ip: INSIDE,
            port_forwards: forwards.collect(),
            status: status(vm.state),
            tap_device_name: "",
            vm_name: vm.name.as_ref().map(Name::to_string).unwrap_or_default(),
        })
    }

    /// Offers a new VM's ports; without them there is no VM.
    async fn offer(&self, caller: &Caller, vm: Sandbox) -> Result<Sandbox, ApiError> {
        let (engine, caller) = (self.engine.clone(), caller.clone());
        let desktop = vm.template.name.as_str() == DESKTOP;
        to_the_end(async move {
            let offered = FORWARDS
                .iter()
                .filter(|(_, what)| desktop || *what != "gui");
            for (port, _) in offered {
                let request = OpenPort {
                    port: *port,
                    raw: true,
                    access: None,
                };
                let opened = engine.open_port(&caller, vm.id.as_str(), request).await;
                if let Err(error) = opened {
                    engine.remove(&caller, vm.id.as_str()).await?;
                    return Err(error);
                }
            }
            Ok(vm)
        })
        .await
    }

    /// What a new VM is made from.
    async fn template(&self, caller: &Caller) -> Result<TemplateRef, ApiError> {
        if let Some(said) = &self.template {
            return Ok(said.clone());
        }
        let reference = |name: &str| {
            let parsed = name.parse::<TemplateRef>();
            parsed.map_err(|error| ApiError::Internal(error.to_string()))
        };
        let desktop = reference(DESKTOP)?;
        match self.engine.has_template(caller, &desktop).await? {
            true => Ok(desktop),
            false => reference(BASE),
        }
    }

    async fn create(
        &self,
        caller: &Caller,
        name: Name,
        snapshot: Option<String>,
    ) -> Result<Sandbox, ApiError> {
        let request = CreateSandbox {
            template: match snapshot {
                Some(_) => None,
                None => Some(self.template(caller).await?),
            },
            from: snapshot,
            name: Some(name),
            ..CreateSandbox::default()
        };
        let made = self.engine.create(caller, request).await?;
        self.offer(caller, made).await
    }

    /// The id of the snapshot of this name, which must be there: no prefix of one.
    async fn snapshot_id(&self, caller: &Caller, name: &str) -> Result<String, ApiError> {
        let all = self.engine.snapshots(caller).await?;
        let named = all
            .into_iter()
            .find(|kept| kept.name.as_ref().is_some_and(|own| own.as_str() == name));
        let found = named.map(|kept| kept.id.to_string());
        found.ok_or_else(|| {
            let shown = name.chars().take(128).collect();
            EngineError::SnapshotNotFound(shown).into()
        })
    }
}

/// This API's word for a state. What failed is off: `start` brings it back on its disk.
fn status(state: SandboxState) -> VmStatus {
    match state {
        SandboxState::Creating => VmStatus::Created,
        SandboxState::Running | SandboxState::Stopping => VmStatus::Running,
        SandboxState::Stopped | SandboxState::Failed => VmStatus::Stopped,
        SandboxState::Paused => VmStatus::Paused,
    }
}

fn name_of(text: &str) -> Result<Name, ApiError> {
    if text.is_empty() {
        return Err(invalid("Empty vm name"));
    }
    text.parse()
        .map_err(|error| invalid(format!("`vmName`: {error}")))
}

/// Whether the daemon answers.
pub(super) async fn health() -> Response {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    answer(&Health {
        status: "healthy",
        timestamp: now.to_string(),
    })
}

/// Starts a VM: a new one, a known one that is off or paused, or either from a snapshot.
pub(super) async fn start(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    JsonBody(request): JsonBody<StartVm>,
) -> Result<Response, ApiError> {
    let name = name_of(&request.vm_name)?;
    for (field, path) in [
        ("kernel", &request.kernel),
        ("initramfs", &request.initramfs),
        ("rootfs", &request.rootfs),
    ] {
        if !path.is_empty() && request.snapshot_id.is_empty() {
            return Err(invalid(format!(
                "`{field}` names a file of the host, which no client may choose: VMs are made from a template"
            )));
        }
    }
    let snapshot = match request.snapshot_id.as_str() {
        "" => None,
        named => Some(door.snapshot_id(&caller, named).await?),
    };
    let known = door.find(&caller, name.as_str()).await?;
    let vm = match (known, snapshot) {
        (None, snapshot) => door.create(&caller, name, snapshot).await?,
        (Some(vm), Some(snapshot)) => {
            let back = Rollback {
                snapshot,
                save: None,
            };
            let id = vm.id.as_str();
            door.engine.roll_back(&caller, id, back).await?.sandbox
        }
        // Its Python client has no other word to let a paused one go on.
        (Some(vm), None) if vm.state == SandboxState::Paused => {
            door.engine.resume(&caller, vm.id.as_str()).await?
        }
        (Some(vm), None) => door.engine.start(&caller, vm.id.as_str()).await?,
    };
    Ok(answer(&door.describe(&caller, &vm)?))
}

/// Lists the VMs.
pub(super) async fn list(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let all = door.all(&caller).await?;
    let described = all.iter().map(|vm| door.describe(&caller, vm));
    let vms = described.collect::<Result<Vec<_>, _>>()?;
    Ok(answer(&VmList { vms }))
}

/// Describes one.
pub(super) async fn info(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
) -> Result<Response, ApiError> {
    let vm = door.get(&caller, &name).await?;
    Ok(answer(&door.describe(&caller, &vm)?))
}

fn wanted(word: &str) -> Result<Wanted, ApiError> {
    Wanted::deserialize(word.into_deserializer()).map_err(|_: NoSuchWord| {
        let shown: String = word.chars().take(64).collect();
        invalid(format!("Invalid status value: {shown}"))
    })
}

/// Stops, pauses or resumes one. One that is so already is left alone.
pub(super) async fn change(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    JsonBody(request): JsonBody<ChangeVm>,
) -> Result<Response, ApiError> {
    use {SandboxState as S, Wanted as W};
    let vm = door.get(&caller, &name).await?;
    let (engine, id) = (&door.engine, vm.id.as_str());
    match (wanted(&request.status)?, vm.state) {
        (W::Stopped, S::Stopped | S::Failed) | (W::Paused, S::Paused) | (W::Resume, S::Running) => {
        }
        (W::Stopped, S::Paused) => {
            let (engine, id) = (engine.clone(), vm.id.clone());
            to_the_end(async move {
                engine.resume(&caller, id.as_str()).await?;
                engine.stop(&caller, id.as_str()).await
            })
            .await?;
        }
        (W::Stopped, _) => drop(engine.stop(&caller, id).await?),
        (W::Paused, _) => drop(engine.pause(&caller, id).await?),
        (W::Resume, _) => drop(engine.resume(&caller, id).await?),
    }
    Ok(done())
}

/// Destroys one.
pub(super) async fn destroy(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
) -> Result<Response, ApiError> {
    let vm = door.get(&caller, &name).await?;
    door.engine.remove(&caller, vm.id.as_str()).await?;
    Ok(done())
}

/// Destroys the caller's, all of them. One that somebody else destroys meanwhile is gone
/// as well.
pub(super) async fn destroy_all(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let all = door.all(&caller).await?;
    let removals = all
        .iter()
        .map(|vm| door.engine.remove(&caller, vm.id.as_str()));
    for removed in futures::future::join_all(removals).await {
        match removed {
            Ok(()) | Err(EngineError::SandboxNotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done())
}

/// Keeps a VM's state under a name.
pub(super) async fn snapshot(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    Target(name): Target,
    JsonBody(request): JsonBody<KeepVm>,
) -> Result<Response, ApiError> {
    let vm = door.get(&caller, &name).await?;
    let wanted = match request.snapshot_id.as_str() {
        "" => name_of_the_moment(&name),
        named => named.to_owned(),
    };
    let parsed: Name = wanted
        .parse()
        .map_err(|error| invalid(format!("`snapshotId`: {error}")))?;
    let take = TakeSnapshot {
        name: Some(parsed),
        ..TakeSnapshot::default()
    };
    door.engine.snapshot(&caller, vm.id.as_str(), take).await?;
    Ok(answer(&KeptVm {
        snapshot_id: wanted,
    }))
}

/// What a snapshot is called that was given no name: as this API's Python client names its own.
fn name_of_the_moment(vm: &str) -> String {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    // As much of a long name as leaves the whole a name: 9 characters before, 16 behind.
    let vm: String = vm.chars().take(100).collect();
    format!("snapshot-{vm}-{now}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_without_a_name_gets_one() {
        let longest = "x".repeat(128);
        for vm in ["one", longest.as_str()] {
            let name = name_of_the_moment(vm);
            assert!(name.starts_with("snapshot-"), "{name}");
            assert!(name.parse::<Name>().is_ok(), "{name}");
        }
    }

    #[test]
    fn every_state_has_one_of_the_words_that_clients_know() {
        for state in SandboxState::ALL {
            let known = ["CREATED", "RUNNING", "STOPPED", "PAUSED", "UNKNOWN"];
            let word = serde_json::to_value(status(state)).unwrap();
            assert!(known.contains(&word.as_str().unwrap()), "{state}");
        }
    }

    #[test]
    fn a_state_is_asked_for_by_three_words() {
        for (word, state) in [
            ("stopped", Wanted::Stopped),
            ("paused", Wanted::Paused),
            ("resume", Wanted::Resume),
        ] {
            assert_eq!(wanted(word).unwrap(), state);
        }
        for other in ["", "STOPPED", "running", "stopped "] {
            let refused = wanted(other).unwrap_err();
            assert_eq!(refused.status().as_u16(), 400);
            assert_eq!(
                refused.to_string(),
                format!("Invalid status value: {other}")
            );
        }
    }

    #[test]
    fn names_never_leave_their_place() {
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "snapshots/../x",
            "a b",
            "ls",
            "\0",
        ] {
            assert!(name_of(bad).is_err(), "{bad:?}");
        }
        assert_eq!(name_of("my-vm_1.2").unwrap().as_str(), "my-vm_1.2");
    }
}

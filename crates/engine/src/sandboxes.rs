//! The sandboxes that exist: one entry each, in memory, mirrored from the index.

use crate::EngineError;
use crate::lifecycle::{self, Operation};
use crate::lifetime::{Activity, Waking};
use crate::limits::limits_of;
use crate::network::egress_of;
use crate::reference;
use crate::request::{Caller, Lifetime, Sandbox};
use crate::shims::Shim;
use pando_store::{LifetimeRow, SandboxRow};
use pando_types::{Isolation, SandboxId, SandboxState, Size};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

/// A sandbox. Its changes are made by whoever holds `turn`, one at a time; reading
/// and using it needs no turn.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SandboxId,
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Held while what it had before it moved is removed, which nobody else waits for.
    pub(crate) clearing: Arc<tokio::sync::Mutex<()>>,
    /// Who uses it.
    pub(crate) activity: Arc<Activity>,
    /// What those who need it awake wait for.
    waking: Mutex<Option<Waking>>,
    row: Mutex<SandboxRow>,
    shim: Mutex<Option<Arc<Shim>>>,
    /// The kind of slot that it was made from, or `none`; empty for one that was taken over.
    made_from: OnceLock<&'static str>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Sandboxes {
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
}

/// `Isolation` as the index keeps it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IsolationJson {
    pub(crate) vmm: String,
    pub(crate) accelerator: String,
    pub(crate) reason: String,
    pub(crate) layers: Vec<String>,
}

impl Entry {
    pub(crate) fn new(id: SandboxId, row: SandboxRow) -> Self {
        Self {
            id,
            turn: tokio::sync::Mutex::new(()),
            clearing: Arc::default(),
            activity: Activity::new(),
            waking: Mutex::new(None),
            row: Mutex::new(row),
            shim: Mutex::new(None),
            made_from: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SandboxRow> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Name of its directory.
    pub(crate) fn home(&self) -> SandboxId {
        let home = self.lock().home.as_deref().map(str::parse);
        // Only parsed ids are written.
        home.and_then(Result::ok).unwrap_or_else(|| self.id.clone())
    }

    /// Its row as last written.
    pub(crate) fn row(&self) -> SandboxRow {
        self.lock().clone()
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.lock().state
    }

    /// What it does, and how long it is there.
    pub(crate) fn life(&self) -> (SandboxState, LifetimeRow) {
        let row = self.lock();
        (row.state, row.lifetime)
    }

    pub(crate) fn waking(&self) -> MutexGuard<'_, Option<Waking>> {
        self.waking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut SandboxRow)) {
        change(&mut self.lock());
    }

    pub(crate) fn set_shim(&self, shim: Option<Arc<Shim>>) {
        *self.shim.lock().unwrap_or_else(PoisonError::into_inner) = shim;
    }

    pub(crate) fn shim(&self) -> Option<Arc<Shim>> {
        self.shim
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// It was made from this kind of slot; the first time is its creation.
    pub(crate) fn set_made_from(&self, kind: &'static str) {
        let _ = self.made_from.set(kind);
    }

    pub(crate) fn made_from(&self) -> &'static str {
        self.made_from.get().copied().unwrap_or_default()
    }

    /// Whether `operation` is legal now.
    pub(crate) fn check(&self, operation: Operation) -> Result<(), EngineError> {
        let state = self.state();
        if lifecycle::allows(state, operation) {
            return Ok(());
        }
        Err(EngineError::WrongState {
            id: self.id.to_string(),
            state,
            operation: operation.verb(),
        })
    }

    /// Its shim, while it runs.
    pub(crate) fn in_use(&self) -> Result<Arc<Shim>, EngineError> {
        self.check(Operation::Use)?;
        self.shim().ok_or_else(|| self.gone())
    }

    /// The error of a request that the sandbox's end cut off.
    pub(crate) fn gone(&self) -> EngineError {
        let reason = self
            .lock()
            .state_reason
            .clone()
            .unwrap_or_else(|| "its VM ended".to_owned());
        EngineError::SandboxGone {
            id: self.id.to_string(),
            reason,
        }
    }

    /// As callers see it.
    pub(crate) fn describe(&self) -> Result<Sandbox, EngineError> {
        let row = self.row();
        let malformed =
            |what: &str| EngineError::Internal(format!("the index holds a malformed {what}"));
        Ok(Sandbox {
            id: self.id.clone(),
            name: row
                .name
                .as_deref()
                .map(str::parse)
                .transpose()
                .map_err(|_| malformed("name"))?,
            state: row.state,
            state_reason: row.state_reason,
            last_console: Vec::new(),
            template: row.template.parse().map_err(|_| malformed("template"))?,
            parent: row
                .parent
                .as_deref()
                .map(str::parse)
                .transpose()
                .map_err(|_| malformed("parent"))?,
            size: Size::new(row.cpus, row.memory_mib).map_err(|_| malformed("size"))?,
            isolation: isolation(&row.isolation).ok_or_else(|| malformed("isolation"))?,
            env: serde_json::from_str(&row.env).map_err(|_| malformed("environment"))?,
            labels: serde_json::from_str(&row.labels).map_err(|_| malformed("label set"))?,
            egress: egress_of(&row.egress)?,
            limits: limits_of(&row.limits)?,
            usage: None,
            created_at: row.created_at,
            started_at: row.started_at,
            lifetime: Lifetime::of(&row.lifetime),
            expires_at: row.lifetime.expires_at,
            last_used_at: SystemTime::now() - self.activity.idle().unwrap_or_default(),
        })
    }
}

fn isolation(text: &str) -> Option<Isolation> {
    let json: IsolationJson = serde_json::from_str(text).ok()?;
    let accelerator = match json.accelerator.as_str() {
        "kvm" => pando_types::Accelerator::Kvm,
        "tcg" => pando_types::Accelerator::Tcg,
        _ => return None,
    };
    Some(Isolation {
        vmm: json.vmm,
        accelerator,
        reason: json.reason,
        layers: json.layers,
    })
}

impl Sandboxes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, entry: Arc<Entry>) {
        self.lock().insert(entry.id.to_string(), entry);
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        self.lock().remove(id.as_str());
    }

    /// The sandbox that `reference` names for this caller: id, name, or the beginning of one id.
    pub(crate) fn find(&self, caller: &Caller, reference: &str) -> Result<Arc<Entry>, EngineError> {
        let entries = self.lock();
        let found = reference::find(
            &entries,
            reference,
            |entry| entry.lock().tenant == caller.tenant,
            |entry| entry.lock().name.as_deref() == Some(reference),
        )?;
        let not_found = || EngineError::SandboxNotFound(reference.chars().take(128).collect());
        found.cloned().ok_or_else(not_found)
    }

    /// Every sandbox of every tenant.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.lock().values().cloned().collect()
    }

    /// The sandbox with this id, whoever's it is.
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.lock().get(id.as_str()).cloned()
    }

    /// Whether this sandbox has not been removed.
    pub(crate) fn has(&self, entry: &Arc<Entry>) -> bool {
        let entries = self.lock();
        let found = entries.get(entry.id.as_str());
        found.is_some_and(|found| Arc::ptr_eq(found, entry))
    }

    /// The snapshots that hold paused sandboxes.
    pub(crate) fn paused_in(&self) -> BTreeSet<String> {
        let entries = self.lock();
        let held = entries.values().filter_map(|entry| entry.row().paused_in);
        held.collect()
    }

    /// Whether one of the caller's sandboxes has this name.
    pub(crate) fn is_named(&self, caller: &Caller, name: &str) -> bool {
        self.lock().values().any(|entry| {
            let row = entry.lock();
            row.tenant == caller.tenant && row.name.as_deref() == Some(name)
        })
    }

    /// A caller's sandboxes, oldest first.
    pub(crate) fn of(&self, caller: &Caller) -> Vec<Arc<Entry>> {
        let mut entries: Vec<_> = self
            .lock()
            .values()
            .filter(|entry| entry.lock().tenant == caller.tenant)
            .cloned()
            .collect();
        entries.sort_by_key(|entry| (entry.lock().created_at, entry.id.clone()));
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, tenant: &str, name: Option<&str>) -> Arc<Entry> {
        let id = SandboxId::from_random([number; 19]);
        let row = SandboxRow {
            id: id.to_string(),
            tenant: tenant.into(),
            name: name.map(Into::into),
            state: SandboxState::Running,
            state_reason: None,
            template: "base".into(),
            root: "r".into(),
            cpus: 1,
            memory_mib: 512,
            env: "{}".into(),
            labels: "{}".into(),
            isolation: r#"{"vmm":"qemu","accelerator":"tcg","reason":"","layers":[]}"#.into(),
            created_at: SystemTime::UNIX_EPOCH,
            started_at: None,
            boot_id: String::new(),
            parent: None,
            home: None,
            paused_in: None,
            egress: r#"{"default":"allow","rules":[]}"#.into(),
            limits: "{}".into(),
            lifetime: LifetimeRow::default(),
        };
        Arc::new(Entry::new(id, row))
    }

    #[test]
    fn a_reference_finds_what_the_caller_may_see_and_nothing_else() {
        let sandboxes = Sandboxes::default();
        let ours = Caller {
            tenant: "us".into(),
        };
        let theirs = Caller {
            tenant: "them".into(),
        };
        let one = entry(1, "us", Some("web"));
        sandboxes.insert(Arc::clone(&one));
        sandboxes.insert(entry(37, "us", None));
        sandboxes.insert(entry(2, "them", Some("web")));
        // 1 and 37 give the same letters: the later one replaced the earlier.
        assert_eq!(sandboxes.of(&ours).len(), 1);
        sandboxes.insert(Arc::clone(&one));
        assert_eq!(sandboxes.find(&ours, "web").unwrap().id, one.id);
        assert_eq!(
            sandboxes.find(&ours, &one.id.as_str()[..6]).unwrap().id,
            one.id
        );
        assert!(matches!(
            sandboxes.find(&theirs, one.id.as_str()),
            Err(EngineError::SandboxNotFound(_))
        ));
        assert!(matches!(
            sandboxes.find(&ours, "s"),
            Err(EngineError::SandboxNotFound(_))
        ));
        assert_eq!(sandboxes.find(&theirs, "web").unwrap().row().tenant, "them");
    }
}

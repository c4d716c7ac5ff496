//! A slot becomes a sandbox.

use super::{Keys, Kind, Taken};
use crate::bake::Bakery;
use crate::engine::Engine;
use crate::limits::message_of;
use crate::sandboxes::Entry;
use crate::shims::{Shim, log_last_words};
use crate::source::Source;
use crate::spawn::{Wish, env_of};
use crate::{EngineError, identity, ids, lifetime};
use pando_store::fault;
use pando_types::{Lifespan, SandboxId, SandboxState};
use pando_wire::shim::{Bind, ClaimRequest, ReadyResponse};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// A claim is some ms of work; a template's own hooks may take ten seconds of it. For all
/// slots that are tried together: a host on which one hangs has no use for the next.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(15);

impl Engine {
    /// Turns a slot that waits into the sandbox; `None` if there is none. A slot that is
    /// not what it seemed is thrown away and costs the caller nothing but time.
    pub(crate) async fn claim(
        &self,
        keys: &Keys,
        wish: &Wish<'_>,
    ) -> Result<Option<Arc<Entry>>, EngineError> {
        self.check_name(wish)?;
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        while Instant::now() < deadline
            && let Some(taken) = self.take_slot(keys)
        {
            let error = match self.hand_over(&taken, keys, wish, deadline).await {
                Ok(entry) => {
                    self.inner.pool.count_claim(taken.kind.as_str());
                    entry.set_made_from(taken.kind.as_str());
                    return Ok(Some(entry));
                }
                Err(error) => error,
            };
            self.discard_later(&taken.id);
            match error {
                EngineError::SpawnFailed(cause) => {
                    tracing::warn!(slot = %taken.id, "a slot could not be claimed: {cause}");
                }
                // The next slot would fare no better.
                error => return Err(error),
            }
        }
        Ok(None)
    }

    fn take_slot(&self, keys: &Keys) -> Option<Taken> {
        let pool = &self.inner.pool;
        pool.take(&keys.snapshot).or_else(|| {
            // Of no use before there is a snapshot to load into it.
            let baked = self.inner.bakery.get(&keys.snapshot);
            baked.and_then(|_| pool.take(&keys.shape))
        })
    }

    /// Puts the snapshot into a slot that fits any, and says so in the claim.
    fn bind(&self, taken: &Taken, keys: &Keys) -> Result<Option<Bind>, EngineError> {
        if taken.kind != Kind::Generic {
            return Ok(None);
        }
        let snapshot = self.inner.bakery.get(&keys.snapshot);
        let gone = || EngineError::SpawnFailed("its snapshot is gone".to_owned());
        let source = Source::bake(snapshot.ok_or_else(gone)?);
        self.bind_to(taken, &source).map(Some)
    }

    /// Lays a source out in a slot that fits any.
    fn bind_to(&self, taken: &Taken, source: &Source) -> Result<Bind, EngineError> {
        source.lay_out(&self.inner.dirs.get(&taken.id))?;
        let plan = source.plan();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(Bind {
            clean_barrier: source.snapshot.manifest.clean_barrier,
            mount: false,
            disks: number(plan.disks),
            base: plan.base,
            kept_disks: number(plan.kept_disks),
            pages: number(plan.pages),
            ..Bind::default()
        })
    }

    /// The claim comes before the row: without a row a slot that was claimed is thrown
    /// away by the next daemon, since its shim no longer says that it waits.
    async fn hand_over(
        &self,
        taken: &Taken,
        keys: &Keys,
        wish: &Wish<'_>,
        deadline: Instant,
    ) -> Result<Arc<Entry>, EngineError> {
        let mut row = self.new_row(&taken.id, wish)?;
        let request = ClaimRequest {
            limits: message_of(&row)?.into(),
            network: self.network_policy(wish.egress)?.into(),
            hostname: taken.id.to_string(),
            machine_id: ids::machine_id(&taken.id),
            env: wish.request.env.clone().into_iter().collect(),
            bind: self.bind(taken, keys)?.into(),
            sandbox_id: taken.id.to_string(),
            ..ClaimRequest::default()
        };
        let ready = tokio::time::timeout_at(deadline, taken.shim.claim(request)).await;
        let ready = ready
            .map_err(|_| EngineError::SpawnFailed("it did not answer in time".to_owned()))??;
        fault::point("sandbox.claimed");
        let dir = self.inner.dirs.get(&taken.id);
        let identity = identity::for_sandbox(&dir, self.inner.host.accelerator);
        row.isolation = self.isolation_of(&ready, identity)?;
        row.state = SandboxState::Running;
        let now = SystemTime::now();
        row.started_at = Some(now);
        row.lifetime.expires_at = lifetime::deadline(
            row.state,
            None,
            row.lifetime.timeout.map(Lifespan::get),
            now,
        );
        wish.admitted.becomes(&taken.id);
        let entry = self.insert(row, Some(Arc::clone(&taken.shim))).await?;
        self.log_ready(&entry, &ready);
        self.watch(&entry, &taken.shim);
        Ok(entry)
    }

    /// Brings a VM up in a slot that fits any snapshot, for a sandbox that exists; `None` if
    /// none waits. The slot's directory is the caller's then.
    pub(crate) async fn claim_any(
        &self,
        entry: &Entry,
        source: &Source,
    ) -> Result<Option<(SandboxId, Arc<Shim>, ReadyResponse)>, EngineError> {
        let shape = Bakery::shape_of(source.snapshot.manifest.machine.clone());
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        while Instant::now() < deadline
            && let Some(taken) = self.inner.pool.take(&shape)
        {
            let request = ClaimRequest {
                limits: message_of(&entry.row())?.into(),
                network: self.network_policy(&entry.row().egress)?.into(),
                sandbox_id: entry.id.to_string(),
                hostname: entry.id.to_string(),
                machine_id: ids::machine_id(&entry.id),
                env: env_of(&entry.row())?.into_iter().collect(),
                ..ClaimRequest::default()
            };
            let claimed = async {
                let request = ClaimRequest {
                    bind: Some(self.bind_to(&taken, source)?).into(),
                    ..request
                };
                let claimed = tokio::time::timeout_at(deadline, taken.shim.claim(request)).await;
                claimed
                    .map_err(|_| EngineError::SpawnFailed("it did not answer in time".to_owned()))?
            };
            match claimed.await {
                Ok(ready) => {
                    self.inner.pool.count_claim(taken.kind.as_str());
                    entry.set_made_from(taken.kind.as_str());
                    return Ok(Some((taken.id, taken.shim, ready)));
                }
                Err(EngineError::SpawnFailed(cause)) => {
                    tracing::warn!(slot = %taken.id, "a slot could not be claimed: {cause}");
                    self.discard_later(&taken.id);
                }
                Err(error) => {
                    self.discard_later(&taken.id);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Not while the caller waits: what hangs may take its time to end.
    fn discard_later(&self, id: &SandboxId) {
        log_last_words(&self.inner.dirs.get(id));
        let (engine, id) = (self.clone(), id.clone());
        tokio::spawn(async move { engine.discard(&id).await });
    }

    /// A name that is taken costs no slot.
    fn check_name(&self, wish: &Wish<'_>) -> Result<(), EngineError> {
        match &wish.request.name {
            Some(name) if self.inner.sandboxes.is_named(wish.caller, name.as_str()) => {
                Err(EngineError::NameTaken(name.to_string()))
            }
            _ => Ok(()),
        }
    }
}

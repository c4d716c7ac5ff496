//! What sandboxes may reach: kept in the index, told to their shims.
//!
//! A policy is the sandbox's own, not its state's: a rollback or a pause leaves it as it is. A
//! fork's children have their parent's, and what is made from a snapshot has the one that its
//! sandbox had then, unless the request says otherwise.

use crate::EngineError;
use crate::engine::Engine;
use crate::request::{Caller, NetworkReport, Sandbox, Template};
use crate::sandboxes::Entry;
use crate::shims::{Shim, went_away};
use pando_shim::spec::Network;
use pando_store::NewEvent;
use pando_types::{EgressAction, EgressError, EgressPolicy, SandboxState, TemplateRef};
use pando_wire::shim::{
    NetworkPolicy, NetworkRequest, Refusal, SetNetworkRequest, WatchRefusalsRequest,
};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the C library of the host finds name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The port of name servers.
const DNS_PORT: u16 = 53;

/// Name servers that are asked; the C library asks as many.
const RESOLVERS: usize = 3;

/// How often the host's name servers are looked up: a laptop changes networks.
const RESOLVERS_LOOKED_UP: Duration = Duration::from_secs(5);

/// Events of refusals that one sandbox may cause in each [`REFUSALS_WINDOW`]; a guest that
/// knocks on every door is not to fill the index.
const REFUSAL_EVENTS: usize = 30;

/// See [`REFUSAL_EVENTS`].
const REFUSALS_WINDOW: Duration = Duration::from_secs(60);

/// `EgressPolicy` as the index keeps it.
#[derive(Debug, Serialize, Deserialize)]
struct EgressJson {
    default: String,
    rules: Vec<String>,
}

/// A policy as the index keeps it.
pub(crate) fn egress_json(policy: &EgressPolicy) -> Result<String, EngineError> {
    let json = EgressJson {
        default: policy.default.to_string(),
        rules: policy.rules.iter().map(ToString::to_string).collect(),
    };
    serde_json::to_string(&json).map_err(|error| EngineError::internal(&error))
}

/// Reads a policy of the index.
pub(crate) fn egress_of(text: &str) -> Result<EgressPolicy, EngineError> {
    let malformed =
        || EngineError::Internal("the index holds a malformed egress policy".to_owned());
    let json: EgressJson = serde_json::from_str(text).map_err(|_| malformed())?;
    let read = || {
        let rules: Result<_, EgressError> = json.rules.iter().map(|rule| rule.parse()).collect();
        EgressPolicy::ordered(rules?, json.default.parse()?)
    };
    read().map_err(|_| malformed())
}

impl Engine {
    /// Changes what a sandbox may reach, at once: what is no longer allowed is cut.
    ///
    /// # Errors
    /// There is no such sandbox, or it does not take it.
    pub async fn set_egress(
        &self,
        caller: &Caller,
        sandbox: &str,
        policy: EgressPolicy,
    ) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let _turn = entry.turn.lock().await;
        let text = egress_json(&policy)?;
        let (row, written) = (entry.row(), text.clone());
        let (id, tenant) = (row.id, row.tenant);
        let detail = summary(&policy);
        let wrote = self.aside(move |inner| {
            let event = NewEvent {
                tenant: &tenant,
                kind: "sandbox.egress",
                subject: &id,
                detail: &detail,
            };
            inner.index.set_sandbox_egress(&id, &written, &event)
        });
        wrote.await?.map_err(|error| EngineError::index(&error))?;
        entry.update(|row| row.egress = text);
        if entry.state() == SandboxState::Running
            && let Some(shim) = entry.shim()
        {
            self.tell_network(&entry, &shim).await?;
        }
        entry.describe()
    }

    /// Changes what a template's future sandboxes may reach, where they do not say it.
    ///
    /// # Errors
    /// There is no such template.
    pub async fn set_template_egress(
        &self,
        caller: &Caller,
        template: &TemplateRef,
        policy: &EgressPolicy,
    ) -> Result<Template, EngineError> {
        let (tenant, reference) = (caller.tenant.clone(), template.clone());
        let (text, detail) = (egress_json(policy)?, summary(policy));
        let changed = self.blocking(move |inner| {
            let (name, tag) = (reference.name.as_str(), reference.tag.as_str());
            let event = NewEvent {
                tenant: &tenant,
                kind: "template.egress",
                subject: name,
                detail: &detail,
            };
            inner
                .index
                .set_template_egress((&tenant, name, tag), &text, &event)
        });
        match changed.await? {
            true => self.template(caller, template).await,
            false => Err(EngineError::TemplateNotFound(template.to_string())),
        }
    }

    /// What a sandbox may reach, what it is connected with, and what was refused. One that
    /// does not run has no connections.
    ///
    /// # Errors
    /// There is no such sandbox, or its shim went away.
    pub async fn network(
        &self,
        caller: &Caller,
        sandbox: &str,
    ) -> Result<NetworkReport, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let egress = egress_of(&entry.row().egress)?;
        let shim = entry.shim();
        let Some(shim) = shim.filter(|_| entry.state() == SandboxState::Running) else {
            return Ok(NetworkReport::of(egress));
        };
        let told = shim.client.rpc.network(NetworkRequest::default()).await;
        let told = told.map_err(went_away)?.into_owned();
        Ok(crate::convert::network_report(egress, told))
    }

    /// What a shim is to be told of a policy in the index.
    pub(crate) fn network_spec(&self, egress: &str) -> Result<Network, EngineError> {
        let policy = egress_of(egress)?;
        Ok(Network {
            rules: policy.rules.iter().map(ToString::to_string).collect(),
            allow_rest: policy.default == EgressAction::Allow,
            resolvers: self.resolvers(),
        })
    }

    /// The same as a message.
    pub(crate) fn network_policy(&self, egress: &str) -> Result<NetworkPolicy, EngineError> {
        let network = self.network_spec(egress)?;
        Ok(NetworkPolicy {
            rules: network.rules,
            allow_rest: network.allow_rest,
            resolvers: network.resolvers.iter().map(ToString::to_string).collect(),
            ..NetworkPolicy::default()
        })
    }

    async fn tell_network(&self, entry: &Entry, shim: &Shim) -> Result<(), EngineError> {
        let request = SetNetworkRequest {
            network: self.network_policy(&entry.row().egress)?.into(),
            ..SetNetworkRequest::default()
        };
        let told = shim.client.rpc.set_network(request).await;
        told.map(drop).map_err(went_away)
    }

    /// Where sandboxes' names are asked.
    fn resolvers(&self) -> Vec<SocketAddr> {
        match self.inner.config.dns.is_empty() {
            true => host_resolvers(),
            false => self.inner.config.dns.clone(),
        }
    }

    /// Tells the sandboxes when the host's name servers have changed.
    pub(crate) async fn follow_resolvers(self) {
        let mut known = self.resolvers();
        loop {
            tokio::time::sleep(RESOLVERS_LOOKED_UP).await;
            let now = self.resolvers();
            if now == known {
                continue;
            }
            for entry in self.inner.sandboxes.all() {
                // Else a policy that changes meanwhile could be overtaken by the one before.
                let _turn = entry.turn.lock().await;
                let Some(shim) = entry.shim() else { continue };
                if let Err(error) = self.tell_network(&entry, &shim).await {
                    tracing::debug!(sandbox = %entry.id, %error, "not told of name servers");
                }
            }
            known = now;
        }
    }

    /// Makes events of what is refused, as long as the shim lives.
    pub(crate) fn watch_refusals(&self, entry: &Arc<Entry>, shim: &Arc<Shim>) {
        let (engine, entry, shim) = (self.clone(), Arc::clone(entry), Arc::clone(shim));
        tokio::spawn(async move {
            let watched = shim
                .client
                .rpc
                .watch_refusals(WatchRefusalsRequest::default());
            let Ok(mut refusals) = watched.await else {
                return;
            };
            let mut bucket = (Instant::now(), 0);
            while let Ok(Some(batch)) = refusals.message().await {
                for refusal in batch.to_owned_message().refusals {
                    if within(&mut bucket) {
                        engine.add_refusal(&entry, &refusal).await;
                    }
                }
            }
        });
    }

    async fn add_refusal(&self, entry: &Entry, refusal: &Refusal) {
        let row = entry.row();
        let detail = sentence(refusal);
        let added = self.aside(move |inner| {
            inner.index.add_event(&NewEvent {
                tenant: &row.tenant,
                kind: "network.refused",
                subject: &row.id,
                detail: &detail,
            })
        });
        if let Err(error) = added.await {
            tracing::debug!(%error, "a refusal was not written down");
        }
    }
}

/// Whether one more event may be written.
fn within(bucket: &mut (Instant, usize)) -> bool {
    if bucket.0.elapsed() > REFUSALS_WINDOW {
        *bucket = (Instant::now(), 0);
    }
    bucket.1 += 1;
    bucket.1 <= REFUSAL_EVENTS
}

/// `tcp 10.0.0.1:80 (db.example.org): protected range 10.0.0.0/8`.
fn sentence(refusal: &Refusal) -> String {
    let address = match refusal.address.parse::<IpAddr>() {
        Ok(address) if refusal.port > 0 => {
            let port = u16::try_from(refusal.port).unwrap_or_default();
            SocketAddr::from((address, port)).to_string()
        }
        _ => refusal.address.clone(),
    };
    let name = match refusal.name.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    format!("{} {address}{name}: {}", refusal.protocol, refusal.rule)
}

/// For an event.
fn summary(policy: &EgressPolicy) -> String {
    let rules = policy.rules.len();
    format!("default {}, rules: {rules}", policy.default)
}

/// The host's name servers, in their order; none where there is no such file.
fn host_resolvers() -> Vec<SocketAddr> {
    let text = std::fs::read(RESOLV_CONF).unwrap_or_default();
    let parsed = resolv_conf::Config::parse(text);
    let servers = parsed.map(|config| config.nameservers).unwrap_or_default();
    let servers = servers.into_iter().map(|server| match server {
        resolv_conf::ScopedIp::V4(address) => SocketAddr::from((address, DNS_PORT)),
        resolv_conf::ScopedIp::V6(address, _) => SocketAddr::from((address, DNS_PORT)),
    });
    servers.take(RESOLVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_the_same_after_the_index() {
        for text in [
            r#"{"default":"allow","rules":[]}"#,
            r#"{"default":"deny","rules":["deny evil.example.org","allow *.example.org:443/tcp","allow 10.1.0.0/16"]}"#,
        ] {
            assert_eq!(egress_json(&egress_of(text).unwrap()).unwrap(), text);
        }
        assert!(egress_of(r#"{"default":"maybe","rules":[]}"#).is_err());
        assert!(egress_of("").is_err());
    }

    #[test]
    fn a_refusal_is_a_sentence() {
        let refusal = Refusal {
            protocol: "tcp".into(),
            address: "2001:db8::1".into(),
            port: 80,
            name: "db.example.org".into(),
            rule: "default deny".into(),
            ..Refusal::default()
        };
        let said = "tcp [2001:db8::1]:80 (db.example.org): default deny";
        assert_eq!(sentence(&refusal), said);
    }

    #[test]
    fn a_guest_that_knocks_everywhere_fills_no_index() {
        let mut bucket = (Instant::now(), 0);
        let written = (0..1000).filter(|_| within(&mut bucket)).count();
        assert_eq!(written, REFUSAL_EVENTS);
    }
}

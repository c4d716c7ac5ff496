//! Ports of sandboxes: who may use one, which of the host's lead to them, what listens.
//!
//! By HTTP every port can be reached, by its host name; a row is kept for those whose access
//! is not the default, and for those that a port of the host leads to.

mod raw;

use crate::EngineError;
use crate::engine::Engine;
use crate::lifetime::{Activity, InUse, by_pieces};
use crate::request::Caller;
use crate::sandboxes::Entry;
use pando_shim::client::{Body, PortError, Protocol};
use pando_store::{Index, IndexError, NewEvent, PortRow};
use pando_types::{SandboxId, SandboxState};
use pando_wire::shim::{ListPortsRequest, ListeningPort};
use raw::{Listeners, bind};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;

/// The agent's own service, which is no TCP port.
pub const AGENT_PORT: u16 = 49983;

/// Rows of one sandbox.
const MAX_ROWS: usize = 128;

/// Characters of a process's name; the kernel has 15 bytes.
const NAME_CHARS: usize = 16;

/// How ports are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortsConfig {
    /// The host's address that ports of sandboxes are bound to.
    pub bind: IpAddr,
    /// The host's ports that are given out.
    pub range: RangeInclusive<u16>,
    /// Who may use a port by HTTP when nothing else was said of it.
    pub access: Access,
}

/// Who may use a port by HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever knows the sandbox's id.
    Public,
    /// Who has the tenant's API key, or the sandbox's traffic token.
    Token,
}

impl Access {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Token => "token",
        }
    }
}

impl std::str::FromStr for Access {
    type Err = EngineError;

    fn from_str(word: &str) -> Result<Self, EngineError> {
        match word {
            "public" => Ok(Self::Public),
            "token" => Ok(Self::Token),
            other => Err(EngineError::Invalid(format!(
                "`access` cannot be `{other}`: choose `public` or `token`"
            ))),
        }
    }
}

/// What a request shows at a port.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Who sends it, if an API key came with it.
    pub caller: Option<Caller>,
    /// Traffic tokens that came with it.
    pub tokens: Vec<String>,
}

/// Why a request does not get to a port.
#[derive(Clone, Debug)]
pub enum Refused {
    /// There is no such sandbox.
    Unknown,
    /// It shows neither key nor token, or the wrong ones.
    Forbidden,
    /// The sandbox does not run.
    Down(SandboxState),
    /// It sleeps and could not be woken.
    Failed(EngineError),
}

/// A port that a request may use. Its sandbox is used as long as this is there.
#[derive(Debug)]
pub struct GuestPort {
    shim: InUse,
    activity: Arc<Activity>,
    port: u16,
}

/// Change what is offered of a port. Legal in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPort {
    /// The port inside.
    pub port: u16,
    /// A port of the host leads to it from now on.
    pub raw: bool,
    /// Who may use it by HTTP; `None` leaves that as it is.
    pub access: Option<Access>,
}

/// What is known of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port inside.
    pub port: u16,
    /// The addresses inside at which something listens.
    pub addresses: Vec<String>,
    /// The process that does, where one was found.
    pub pid: Option<u32>,
    /// Its name.
    pub process: Option<String>,
    /// The host's address and port that lead to it.
    pub raw: Option<SocketAddr>,
    /// Who may use it by HTTP.
    pub access: Access,
}

/// What is kept of ports, beyond the index.
#[derive(Debug)]
pub(crate) struct Ports {
    /// Traffic tokens are made from it.
    secret: [u8; 32],
    rows: Mutex<BTreeMap<(String, u16), PortRow>>,
    listeners: Listeners,
    /// Held while a port of the host is looked for.
    searching: tokio::sync::Mutex<()>,
}

/// Where the secret is in the index.
const SECRET: &str = "port_secret";

impl Ports {
    /// Reads what is kept; makes the secret at the first start.
    pub(crate) fn open(index: &Index) -> Result<Self, IndexError> {
        let kept = index.value(SECRET)?;
        let secret = match kept.and_then(|hex| blake3::Hash::from_hex(hex).ok()) {
            Some(secret) => secret,
            None => {
                let secret = blake3::Hash::from_bytes(crate::ids::random());
                index.set_value(SECRET, &secret.to_hex())?;
                secret
            }
        };
        let rows = index.ports()?.into_iter();
        let rows = rows.map(|row| ((row.sandbox.clone(), row.port), row));
        Ok(Self {
            secret: *secret.as_bytes(),
            rows: Mutex::new(rows.collect()),
            listeners: Listeners::default(),
            searching: tokio::sync::Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u16), PortRow>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self, sandbox: &SandboxId, port: u16) -> Option<PortRow> {
        self.lock().get(&(sandbox.to_string(), port)).cloned()
    }

    fn rows_of(&self, sandbox: &SandboxId) -> Vec<PortRow> {
        let rows = self.lock();
        let from = (sandbox.to_string(), 0)..=(sandbox.to_string(), u16::MAX);
        rows.range(from).map(|(_, row)| row.clone()).collect()
    }

    /// The sandbox is gone, and so are its rows in the index.
    pub(crate) fn forget(&self, sandbox: &SandboxId) {
        for row in self.rows_of(sandbox) {
            self.drop_row(&row);
        }
    }

    fn drop_row(&self, row: &PortRow) {
        self.lock().remove(&(row.sandbox.clone(), row.port));
        if let Some(host_port) = row.host_port {
            self.listeners.end(host_port);
        }
    }

    fn token(&self, sandbox: &SandboxId) -> blake3::Hash {
        blake3::keyed_hash(&self.secret, sandbox.as_str().as_bytes())
    }

    /// Whether one of these is the sandbox's token; compares in constant time.
    fn is_token(&self, sandbox: &SandboxId, shown: &[String]) -> bool {
        let right = self.token(sandbox);
        let parsed = shown
            .iter()
            .filter_map(|text| blake3::Hash::from_hex(text).ok());
        // Each is compared, whatever came before.
        parsed.fold(false, |found, shown| (shown == right) | found)
    }
}

impl Engine {
    /// Lets a request to a port, if it may; a sandbox that sleeps is woken for it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub async fn guest_port(
        &self,
        sandbox: &SandboxId,
        port: u16,
        pass: &Pass,
    ) -> Result<GuestPort, Refused> {
        let entry = self.inner.sandboxes.get(sandbox).ok_or(Refused::Unknown)?;
        let tenant = entry.row().tenant;
        let is_owner = pass
            .caller
            .as_ref()
            .is_some_and(|caller| caller.tenant == tenant);
        let open = self.access(sandbox, port) == Access::Public || is_owner;
        if !open && !self.inner.ports.is_token(sandbox, &pass.tokens) {
            return Err(Refused::Forbidden);
        }
        match self.awake(&entry).await {
            Ok(shim) => Ok(GuestPort {
                shim,
                activity: Arc::clone(&entry.activity),
                port,
            }),
            Err(EngineError::SandboxNotFound(_)) => Err(Refused::Unknown),
            Err(EngineError::WrongState { .. } | EngineError::SandboxGone { .. }) => {
                Err(Refused::Down(entry.state()))
            }
            Err(error) => Err(Refused::Failed(error)),
        }
    }

    /// What a sandbox does; `None` if there is none.
    pub fn state_of(&self, sandbox: &SandboxId) -> Option<SandboxState> {
        Some(self.inner.sandboxes.get(sandbox)?.state())
    }

    /// What lets its holder use every port of the sandbox by HTTP. It is the same as long as
    /// the sandbox exists.
    ///
    /// # Errors
    /// There is none that the caller may see.
    pub fn traffic_token(&self, caller: &Caller, sandbox: &str) -> Result<String, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        Ok(self.inner.ports.token(&entry.id).to_hex().to_string())
    }

    /// Who may use a port by HTTP.
    fn access(&self, sandbox: &SandboxId, port: u16) -> Access {
        let row = self.inner.ports.row(sandbox, port);
        let kept = row.and_then(|row| row.access?.parse().ok());
        kept.unwrap_or(self.inner.config.ports.access)
    }

    /// The ports of a sandbox at which something listens, or of which something was said.
    ///
    /// # Errors
    /// There is no such sandbox, or it does not answer.
    pub async fn ports(&self, caller: &Caller, sandbox: &str) -> Result<Vec<Port>, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let mut ports: BTreeMap<u16, Port> = BTreeMap::new();
        for row in self.inner.ports.rows_of(&entry.id) {
            ports.insert(row.port, self.describe_port(&entry.id, row.port));
        }
        for found in self.listening(&entry).await? {
            let Ok(number) = u16::try_from(found.port) else {
                continue;
            };
            let described = ports.entry(number);
            let port = described.or_insert_with(|| self.describe_port(&entry.id, number));
            add(port, &found);
        }
        Ok(ports.into_values().collect())
    }

    /// The ports of a sandbox of which something was said. The guest is not asked.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn offered_ports(&self, caller: &Caller, sandbox: &str) -> Result<Vec<Port>, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let rows = self.inner.ports.rows_of(&entry.id).into_iter();
        Ok(rows
            .map(|row| self.describe_port(&entry.id, row.port))
            .collect())
    }

    async fn listening(&self, entry: &Arc<Entry>) -> Result<Vec<ListeningPort>, EngineError> {
        let _using = self.begin_use(entry).await?;
        if entry.state() != SandboxState::Running {
            return Ok(Vec::new());
        }
        let shim = entry.in_use()?;
        let listed = shim
            .client
            .rpc
            .list_ports(ListPortsRequest::default())
            .await;
        let listed = listed.map_err(|error| crate::usage::guest_error(entry, &shim, error))?;
        Ok(listed.into_owned().ports)
    }

    fn describe_port(&self, sandbox: &SandboxId, port: u16) -> Port {
        let row = self.inner.ports.row(sandbox, port);
        let host_port = row.and_then(|row| row.host_port);
        Port {
            port,
            addresses: Vec::new(),
            pid: None,
            process: None,
            raw: host_port
                .map(|host_port| SocketAddr::new(self.inner.config.ports.bind, host_port)),
            access: self.access(sandbox, port),
        }
    }

    /// Offers a port as it is asked for; asked again, it says the same.
    ///
    /// # Errors
    /// There is no such sandbox, or no port of the host is free.
    pub async fn open_port(
        &self,
        caller: &Caller,
        sandbox: &str,
        request: OpenPort,
    ) -> Result<Port, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        if request.port == AGENT_PORT {
            let what =
                format!("{AGENT_PORT} is the sandbox's own service: it needs an API key, always");
            return Err(EngineError::Invalid(what));
        }
        self.detached(move |engine| async move {
            // Not while the sandbox is being removed.
            let _turn = entry.turn.lock().await;
            engine.offer(&entry, request).await
        })
        .await
    }

    async fn offer(&self, entry: &Arc<Entry>, request: OpenPort) -> Result<Port, EngineError> {
        let ports = &self.inner.ports;
        let before = ports.row(&entry.id, request.port);
        if before.is_none() && ports.rows_of(&entry.id).len() >= MAX_ROWS {
            let what = format!("a sandbox can have {MAX_ROWS} ports of its own kind");
            return Err(EngineError::Invalid(what));
        }
        let mut row = before.clone().unwrap_or_else(|| PortRow {
            sandbox: entry.id.to_string(),
            port: request.port,
            host_port: None,
            access: None,
        });
        if let Some(access) = request.access {
            row.access = Some(access.as_str().to_owned());
        }
        let _searching = ports.searching.lock().await;
        let listener = match request.raw && row.host_port.is_none() {
            true => Some(self.free_port().await?),
            false => None,
        };
        if let Some((host_port, _)) = &listener {
            row.host_port = Some(*host_port);
        }
        if before.as_ref() != Some(&row) && (row.host_port.is_some() || row.access.is_some()) {
            self.keep_row(entry, row).await?;
        }
        if let Some((host_port, listener)) = listener {
            self.listen(&entry.id, request.port, host_port, Some(listener));
        }
        Ok(self.describe_port(&entry.id, request.port))
    }

    /// Who may use its ports, a child of a fork has from its parent: nothing becomes public
    /// by being copied. Ports of the host it has none of.
    pub(crate) async fn inherit_access(
        &self,
        parent: &SandboxId,
        child: &Entry,
    ) -> Result<(), EngineError> {
        for row in self.inner.ports.rows_of(parent) {
            if row.access.is_some() {
                let row = PortRow {
                    sandbox: child.id.to_string(),
                    host_port: None,
                    ..row
                };
                self.keep_row(child, row).await?;
            }
        }
        Ok(())
    }

    async fn keep_row(&self, entry: &Entry, row: PortRow) -> Result<(), EngineError> {
        let tenant = entry.row().tenant;
        let written = row.clone();
        let kept = self.aside(move |inner| {
            let access = written.access.as_deref().unwrap_or("default");
            let detail = match written.host_port {
                Some(host_port) => format!("{} at {host_port}, access {access}", written.port),
                None => format!("{}, access {access}", written.port),
            };
            let event = NewEvent {
                tenant: &tenant,
                kind: "port.opened",
                subject: &written.sandbox,
                detail: &detail,
            };
            inner.index.put_port(&written, &event)
        });
        match kept.await?.map_err(|error| EngineError::index(&error))? {
            true => drop(
                self.inner
                    .ports
                    .lock()
                    .insert((row.sandbox.clone(), row.port), row),
            ),
            false => return Err(EngineError::SandboxNotFound(entry.id.to_string())),
        }
        Ok(())
    }

    /// Takes back what was said of a port: no port of the host leads to it any more, and its
    /// access is the default again.
    ///
    /// # Errors
    /// There is no such sandbox, or nothing was said of the port.
    pub async fn close_port(
        &self,
        caller: &Caller,
        sandbox: &str,
        port: u16,
    ) -> Result<(), EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let Some(row) = self.inner.ports.row(&entry.id, port) else {
            return Err(EngineError::PortNotFound(port));
        };
        let tenant = caller.tenant.clone();
        self.detached(move |engine| async move {
            let _turn = entry.turn.lock().await;
            let removed = row.clone();
            let done = engine.aside(move |inner| {
                let event = NewEvent {
                    tenant: &tenant,
                    kind: "port.closed",
                    subject: &removed.sandbox,
                    detail: &removed.port.to_string(),
                };
                inner
                    .index
                    .remove_port(&removed.sandbox, removed.port, &event)
            });
            done.await?.map_err(|error| EngineError::index(&error))?;
            engine.inner.ports.drop_row(&row);
            Ok(())
        })
        .await
    }

    /// A port of the host that is free, and listened on from now on.
    async fn free_port(&self) -> Result<(u16, TcpListener), EngineError> {
        let config = &self.inner.config.ports;
        let taken: Vec<u16> = self
            .inner
            .ports
            .lock()
            .values()
            .filter_map(|row| row.host_port)
            .collect();
        let last_given = self.inner.ports.listeners.last_given();
        // One that was just given up is not given to another at once: somebody may still use it.
        let after = config.range.clone().filter(|port| *port > last_given);
        let before = config.range.clone().filter(|port| *port <= last_given);
        let mut why = "all are taken".to_owned();
        for port in after.chain(before).filter(|port| !taken.contains(port)) {
            match bind(SocketAddr::new(config.bind, port)).await {
                Ok(listener) => {
                    self.inner.ports.listeners.given(port);
                    return Ok((port, listener));
                }
                Err(error) => why = error.to_string(),
            }
        }
        let (first, last) = (config.range.start(), config.range.end());
        Err(EngineError::NoFreePort(format!(
            "no port of {first} to {last} at {} can be listened on: {why}",
            config.bind
        )))
    }
}

/// Adds what was found to what is known of a port. A guest says it: it is bounded.
fn add(port: &mut Port, found: &ListeningPort) {
    if let Ok(address) = found.address.parse::<IpAddr>() {
        port.addresses.push(address.to_string());
    }
    if port.pid.is_none() && found.pid > 0 {
        let name = found.process.chars().filter(|c| !c.is_control());
        port.pid = Some(found.pid);
        port.process = Some(name.take(NAME_CHARS).collect());
    }
}

impl GuestPort {
    /// Sends an HTTP request; `host` is what the server in the guest is to be told. An answer
    /// with status 101 means that the protocol was switched: the bodies are its bytes. Each
    /// piece of a body is a use of the sandbox; that it stands open is none.
    ///
    /// # Errors
    /// See [`PortError`].
    pub async fn request(
        &self,
        host: Option<http::HeaderValue>,
        protocol: Protocol,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, PortError> {
        let request = request.map(|body| by_pieces(body, &self.activity));
        let client = &self.shim.client;
        let answer = client.port(self.port, host, protocol, request).await?;
        Ok(answer.map(|body| by_pieces(body, &self.activity)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_sandboxs_and_outlives_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::open(&dir.path().join("pando.db")).unwrap();
        let ports = Ports::open(&index).unwrap();
        let (one, other) = (crate::ids::sandbox(), crate::ids::sandbox());
        let token = ports.token(&one).to_hex().to_string();
        let shown = [String::new(), "x".repeat(64), token];
        assert!(ports.is_token(&one, &shown));
        assert!(!ports.is_token(&other, &shown));
        assert!(!ports.is_token(&one, &shown[..2]));
        assert!(!ports.is_token(&one, &[]));
        let next = Ports::open(&index).unwrap();
        assert!(next.is_token(&one, &shown));
    }
}

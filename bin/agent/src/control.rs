//! What the agent does at the channel's control frames, and the service `Guest`.

use std::sync::Arc;
use std::time::Duration;

use buffa::Message;
use bytes::Bytes;
use connectrpc::{
    ConnectError, Encodable, RequestContext, Response, ServiceRequest, ServiceResult,
};
use pando_wire::channel::{PortControl, PortHandler};
use pando_wire::guest::{
    self as wire, Frozen, InfoResponse, ListPortsResponse, PingResponse, Resume, Resumed,
    ShutdownResponse, SyncResponse,
};

use crate::log::log;
use crate::metrics;
use crate::ports;
use crate::resume;
use crate::sandbox::Sandbox;
use crate::shutdown;

/// How long user processes may take to freeze before the snapshot is taken without
/// them: only what sleeps uninterruptibly takes longer.
const FREEZE_TIME: Duration = Duration::from_secs(2);

/// The `ctl` port: the one that has to do with the whole sandbox.
pub(crate) struct ControlHandler {
    /// The sandbox.
    pub sandbox: Arc<Sandbox>,
    /// The other port, thawed by a THAW on this one.
    pub data: PortControl,
}

impl PortHandler for ControlHandler {
    async fn hello(&mut self, resume: Bytes) -> Vec<u8> {
        let resumed = match Resume::decode_from_slice(&resume) {
            Ok(resume) => resume::apply(&self.sandbox, resume).await,
            Err(error) => Resumed {
                error: format!("the resume message can't be read: {error}"),
                ..Default::default()
            },
        };
        resumed.encode_to_vec()
    }

    async fn freeze(&mut self) -> Vec<u8> {
        let unfrozen_pids = match self.sandbox.cgroup.freeze(FREEZE_TIME).await {
            Ok(unfrozen) => unfrozen,
            Err(error) => {
                log!("cannot freeze the user's processes: {error}");
                Vec::new()
            }
        };
        let frozen = Frozen {
            unfrozen_pids,
            ..Default::default()
        };
        frozen.encode_to_vec()
    }

    async fn thaw(&mut self, sequence: u64, wall_clock_ns: u64) {
        // Before the processes: none of them sees the time that it did not have.
        if let Err(error) = resume::set_clock(wall_clock_ns) {
            log!("{error:#}");
        }
        if let Err(error) = self.sandbox.cgroup.thaw() {
            log!("cannot thaw the user's processes: {error}");
        }
        self.data.thaw(sequence);
    }
}

/// The `data` port: it has nothing to do but to come to rest.
pub(crate) struct DataHandler;

impl PortHandler for DataHandler {
    async fn hello(&mut self, _resume: Bytes) -> Vec<u8> {
        Vec::new()
    }

    async fn freeze(&mut self) -> Vec<u8> {
        Vec::new()
    }

    async fn thaw(&mut self, _sequence: u64, _wall_clock_ns: u64) {}
}

/// `pando.guest.v1.Guest`, on the `ctl` port only.
pub(crate) struct GuestService {
    sandbox: Arc<Sandbox>,
}

impl GuestService {
    /// A service over the sandbox.
    pub(crate) fn new(sandbox: Arc<Sandbox>) -> Self {
        Self { sandbox }
    }
}

impl wire::Guest for GuestService {
    async fn ping<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, wire::PingRequest>,
    ) -> ServiceResult<impl Encodable<PingResponse> + Send + use<'a>> {
        Response::ok(PingResponse::default())
    }

    async fn info<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, wire::InfoRequest>,
    ) -> ServiceResult<impl Encodable<InfoResponse> + Send + use<'a>> {
        let memory = metrics::memory();
        let disk = metrics::disk(&self.sandbox);
        let processes = self.sandbox.cgroup.process_ids().unwrap_or_default();
        Response::ok(InfoResponse {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: metrics::uptime_ms(),
            memory_total_bytes: memory.total_bytes,
            memory_available_bytes: memory.available_bytes,
            disk_total_bytes: disk.total_bytes,
            disk_free_bytes: disk.free_bytes,
            timer_mult: metrics::timer_mult(),
            processes: u32::try_from(processes.len()).unwrap_or(u32::MAX),
            ..Default::default()
        })
    }

    async fn sync<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, wire::SyncRequest>,
    ) -> ServiceResult<impl Encodable<SyncResponse> + Send + use<'a>> {
        // It waits for disks; a thread that dies has synced nothing.
        let synced = tokio::task::spawn_blocking(rustix::fs::sync).await;
        synced.map_err(|_| ConnectError::internal("the sync's thread died"))?;
        Response::ok(SyncResponse::default())
    }

    async fn list_ports<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, wire::ListPortsRequest>,
    ) -> ServiceResult<impl Encodable<ListPortsResponse> + Send + use<'a>> {
        // It reads many small files; other streams must not wait for them.
        let ports = tokio::task::spawn_blocking(ports::listening).await;
        Response::ok(ListPortsResponse {
            ports: ports.map_err(|_| ConnectError::internal("the search's thread died"))?,
            ..Default::default()
        })
    }

    async fn shutdown<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::ShutdownRequest>,
    ) -> ServiceResult<impl Encodable<ShutdownResponse> + Send + use<'a>> {
        let grace = Duration::from_millis(request.grace_ms.into());
        let sandbox = Arc::clone(&self.sandbox);
        tokio::spawn(async move { shutdown::power_off(&sandbox, grace).await });
        Response::ok(ShutdownResponse::default())
    }
}

//! `pando.shim.v1.Shim`: what the daemon may ask of this sandbox.

use crate::machine::{Machine, Running, Status};
use crate::network;
use crate::processes::{Executed, Followed, Process, Start};
use crate::replay::Stream as OutputStream;
use crate::snapshot;
use crate::stall::until_stalled;
use connectrpc::{
    ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::stream::{self, StreamExt as _};
use pando_types::limits;
use pando_vmm::Vmm as _;
use pando_wire::process::pty::Size as PtySize;
use pando_wire::shim::{
    self, AttachRequest, AttachResponse, BakeRequest, BakeResponse, ClaimRequest, ConsoleRequest,
    ConsoleResponse, ExecRequest, ExecResponse, InputRequest, InputResponse, ListPortsRequest,
    ListPortsResponse, ListProcessesRequest, ListProcessesResponse, NetworkRequest,
    NetworkResponse, PingRequest, PingResponse, ReadyRequest, ReadyResponse, ReleaseRequest,
    ReleaseResponse, RunResponse, SetNetworkRequest, SetNetworkResponse, SnapshotRequest,
    SnapshotResponse, StartProcessRequest, StartProcessResponse, State, StopRequest, StopResponse,
    WatchRefusalsRequest, WatchRefusalsResponse, WatchRequest, WatchResponse, attach_response,
    run_response,
};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::watch;

/// Beyond the time the guest was given to end its processes: sync and unmount.
const POWER_OFF_GRACE: Duration = Duration::from_secs(5);

/// A broken channel is seen before the VMM's end, which says why; it follows at once.
const CAUSE_WAIT: Duration = Duration::from_secs(1);

/// Ports in one answer, whatever the guest says.
const MAX_PORTS: usize = 1024;

/// The service over one machine.
pub(crate) struct Service {
    pub(crate) machine: Arc<Machine>,
}

impl Service {
    fn running(&self) -> Result<&Running, ConnectError> {
        let status = self.machine.status.borrow().clone();
        match (self.machine.running.get(), status.state) {
            (Some(running), State::STATE_RUNNING) => Ok(running),
            (_, State::STATE_STARTING) => {
                Err(ConnectError::failed_precondition("the sandbox is starting"))
            }
            (_, State::STATE_WAITING) => Err(ConnectError::failed_precondition(
                "it is nobody's sandbox yet",
            )),
            _ => Err(gone(&status)),
        }
    }

    /// What a start has come to, once it has.
    async fn outcome(&self) -> ServiceResult<ReadyResponse> {
        let mut receiver = self.machine.status.subscribe();
        let status = receiver
            .wait_for(|status| status.state != State::STATE_STARTING)
            .await;
        let status = status
            .map_err(|_| ConnectError::unavailable("the shim ends"))?
            .clone();
        let mut response = ReadyResponse {
            state: status.state.into(),
            cause: status.cause,
            ..ReadyResponse::default()
        };
        if let Some(running) = self.machine.running.get() {
            response.layers = running.qemu.layers().to_vec();
            response.vmm_pid = running.qemu.pid();
            response.warnings = running.warnings.clone();
            response.timer_error_ppm = running.timer_error_ppm;
            response.timing_ms = running.timing_ms.clone().into_iter().collect();
            response.agent_ms = running.agent_ms.clone().into_iter().collect();
        }
        Response::ok(response)
    }

    /// Runs work in a task of its own: a caller that goes away must not leave the VM stopped.
    async fn to_the_end<R, F>(
        &self,
        work: impl FnOnce(Arc<Machine>) -> F,
    ) -> Result<R, ConnectError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, ConnectError>> + Send + 'static,
    {
        let done = tokio::spawn(work(Arc::clone(&self.machine))).await;
        done.map_err(|_| ConnectError::internal("the request's task died"))?
    }

    /// Starts a process, or finds what this request started.
    async fn start(
        &self,
        request_id: String,
        start: Start,
        stdin: Vec<u8>,
    ) -> Result<Arc<Process>, ConnectError> {
        self.running()?;
        let begun = self.to_the_end(|machine| async move {
            let processes = &running_of(&machine)?.processes;
            processes.begin(&request_id, start, stdin).await
        });
        self.or_gone(begun).await
    }

    /// Starts what is to be run to its end.
    async fn begin(&self, request: ExecRequest) -> Result<Arc<Process>, ConnectError> {
        let limit = request.output_limit_bytes.min(limits::EXEC_OUTPUT_BYTES);
        let start = Start {
            command: required(request.command.into_option(), "command")?,
            tty: None,
            stdin: !request.stdin.is_empty(),
            capture_bytes: Some(usize::try_from(limit).unwrap_or(usize::MAX)),
        };
        self.start(request.request_id, start, request.stdin).await
    }

    /// Waits for its end.
    async fn result(&self, process: &Process) -> Result<ExecResponse, ConnectError> {
        let processes = &running_of(&self.machine)?.processes;
        let executed = self.or_gone(processes.result(process)).await?;
        Ok(exec_response(executed))
    }

    /// Runs a request, unless the VM ends first, or stands still for too long; what the
    /// request began in the guest goes on when the VM does.
    async fn or_gone<R>(
        &self,
        work: impl Future<Output = Result<R, ConnectError>>,
    ) -> Result<R, ConnectError> {
        let mut status = self.machine.status.subscribe();
        let mut ending = self.machine.status.subscribe();
        let mut stalling = self.machine.status.subscribe();
        tokio::select! {
            biased;
            result = work => match result {
                // A broken channel is how a dying VM looks from here: wait a moment for the reason.
                Err(error) if error.code == connectrpc::ErrorCode::Unavailable => {
                    let ended = tokio::time::timeout(CAUSE_WAIT, until_ended(&mut status));
                    Err(ended.await.map_or(error, |status| gone(&status)))
                }
                other => other,
            },
            status = until_ended_delayed(&mut ending) => Err(gone(&status)),
            cause = until_stalled(&mut stalling) => Err(ConnectError::aborted(cause)),
        }
    }
}

fn running_of(machine: &Machine) -> Result<&Running, ConnectError> {
    let running = machine.running.get();
    running.ok_or_else(|| ConnectError::failed_precondition("the sandbox is starting"))
}

fn gone(status: &Status) -> ConnectError {
    ConnectError::unavailable(status.cause.clone())
}

async fn until_ended(status: &mut watch::Receiver<Status>) -> Status {
    let ended = status
        .wait_for(|status| matches!(status.state, State::STATE_STOPPED | State::STATE_FAILED))
        .await;
    ended.map_or_else(
        |_| Status {
            state: State::STATE_FAILED,
            cause: "the shim ends".to_owned(),
        },
        |status| status.clone(),
    )
}

/// Lets answers that are on their way come first.
async fn until_ended_delayed(status: &mut watch::Receiver<Status>) -> Status {
    let status = until_ended(status).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    status
}

// The concrete types of the answers are nobody else's business: the trait is generated.
#[allow(refining_impl_trait)]
impl shim::Shim for Service {
    async fn ready(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, ReadyRequest>,
    ) -> ServiceResult<ReadyResponse> {
        self.outcome().await
    }

    async fn claim(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, ClaimRequest>,
    ) -> ServiceResult<ReadyResponse> {
        if !self.machine.hand_over(request.to_owned_message()) {
            return Err(ConnectError::failed_precondition(
                "it does not wait to be claimed",
            ));
        }
        self.outcome().await
    }

    async fn watch(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, WatchRequest>,
    ) -> ServiceResult<ServiceStream<WatchResponse>> {
        let mut receiver = self.machine.status.subscribe();
        receiver.mark_changed();
        Ok(Response::stream(stream::unfold(
            receiver,
            |mut receiver| async move {
                receiver.changed().await.ok()?;
                let status = receiver.borrow_and_update().clone();
                let message = WatchResponse {
                    state: status.state.into(),
                    cause: status.cause,
                    ..WatchResponse::default()
                };
                Some((Ok(message), receiver))
            },
        )))
    }

    async fn set_network(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, SetNetworkRequest>,
    ) -> ServiceResult<SetNetworkResponse> {
        let request = request.to_owned_message();
        let message = required(request.network.into_option(), "network")?;
        let network = network::network_of(message).map_err(ConnectError::invalid_argument)?;
        let applied = network::apply(self.machine.gateway()?, &network);
        applied.map_err(|error| ConnectError::invalid_argument(error.to_string()))?;
        Response::ok(SetNetworkResponse::default())
    }

    async fn network(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, NetworkRequest>,
    ) -> ServiceResult<NetworkResponse> {
        Response::ok(network::report(self.machine.gateway()?.report()))
    }

    async fn watch_refusals(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, WatchRefusalsRequest>,
    ) -> ServiceResult<ServiceStream<WatchRefusalsResponse>> {
        Ok(Response::stream(network::refusals(self.machine.gateway()?)))
    }

    async fn ping(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, PingRequest>,
    ) -> ServiceResult<PingResponse> {
        let guest = &self.running()?.guest;
        self.or_gone(guest.ping(pando_wire::guest::PingRequest::default()))
            .await?;
        Response::ok(PingResponse::default())
    }

    async fn exec(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, ExecRequest>,
    ) -> ServiceResult<ExecResponse> {
        let process = self.begin(request.to_owned_message()).await?;
        Response::ok(self.result(&process).await?)
    }

    async fn run(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, ExecRequest>,
    ) -> ServiceResult<ServiceStream<RunResponse>> {
        use run_response::Event;
        let answer = |event| RunResponse {
            event: Some(event),
            ..RunResponse::default()
        };
        let process = self.begin(request.to_owned_message()).await?;
        let begun = answer(Event::ProcessId(process.id.clone()));
        let machine = Arc::clone(&self.machine);
        let ended = async move {
            let result = Self { machine }.result(&process).await?;
            Ok(answer(Event::Result(Box::new(result))))
        };
        let begun = stream::once(std::future::ready(Ok(begun)));
        Ok(Response::stream(begun.chain(stream::once(ended))))
    }

    async fn start_process(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, StartProcessRequest>,
    ) -> ServiceResult<StartProcessResponse> {
        let request = request.to_owned_message();
        let start = Start {
            command: required(request.command.into_option(), "command")?,
            tty: request.tty.into_option().map(|size| pty_size(&size)),
            stdin: request.stdin,
            capture_bytes: None,
        };
        let process = self.start(request.request_id, start, Vec::new()).await?;
        Response::ok(StartProcessResponse {
            process_id: process.id.clone(),
            pid: process.pid,
            ..Default::default()
        })
    }

    async fn attach(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, AttachRequest>,
    ) -> ServiceResult<ServiceStream<AttachResponse>> {
        let request = request.to_owned_message();
        // A process that ended can be read even when the VM is gone.
        let running = self
            .machine
            .running
            .get()
            .ok_or_else(|| ConnectError::failed_precondition("the sandbox is starting"))?;
        let process = running.processes.get(&request.process_id)?;
        let status = self.machine.status.subscribe();
        Ok(Response::stream(follow(
            process,
            request.from_offset,
            status,
        )))
    }

    async fn input(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, InputRequest>,
    ) -> ServiceResult<InputResponse> {
        use shim::input_request::Input;
        let request = request.to_owned_message();
        let processes = &self.running()?.processes;
        let process = processes.get(&request.process_id)?;
        let input = required(request.input, "input")?;
        self.or_gone(async {
            match &input {
                Input::Data(data) => processes.send(&process, data).await,
                Input::CloseStdin(_) => processes.close_stdin(&process).await,
                Input::Signal(signal) => processes.signal(&process, *signal).await,
                Input::Resize(size) => processes.resize(&process, pty_size(size)).await,
            }
        })
        .await?;
        Response::ok(InputResponse::default())
    }

    async fn list_processes(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, ListProcessesRequest>,
    ) -> ServiceResult<ListProcessesResponse> {
        let processes = self.running()?.processes.list();
        let processes = processes.iter().map(process_info).collect();
        Response::ok(ListProcessesResponse {
            processes,
            ..Default::default()
        })
    }

    async fn list_ports(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, ListPortsRequest>,
    ) -> ServiceResult<ListPortsResponse> {
        let request = pando_wire::guest::ListPortsRequest::default();
        let listed = self
            .or_gone(self.running()?.guest.list_ports(request))
            .await?;
        let ports = listed.into_owned().ports.into_iter().take(MAX_PORTS);
        let ports = ports.map(|port| shim::ListeningPort {
            port: port.port,
            address: port.address,
            pid: port.pid,
            process: port.process,
            ..Default::default()
        });
        Response::ok(ListPortsResponse {
            ports: ports.collect(),
            ..Default::default()
        })
    }

    async fn console(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, ConsoleRequest>,
    ) -> ServiceResult<ConsoleResponse> {
        Response::ok(ConsoleResponse {
            text: self.machine.console(),
            ..Default::default()
        })
    }

    async fn bake(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, BakeRequest>,
    ) -> ServiceResult<BakeResponse> {
        let baked = self.to_the_end(|machine| async move {
            snapshot::bake(&machine, running_of(&machine)?).await
        });
        Response::ok(baked.await?)
    }

    async fn snapshot(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, SnapshotRequest>,
    ) -> ServiceResult<SnapshotResponse> {
        let request = request.to_owned_message();
        self.running()?;
        if let Some(cause) = self.machine.status.borrow().stalled() {
            return Err(ConnectError::aborted(cause));
        }
        let taken = self.to_the_end(|machine| async move {
            snapshot::take(&machine, running_of(&machine)?, &request).await
        });
        Response::ok(self.or_gone(taken).await?)
    }

    async fn release(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, ReleaseRequest>,
    ) -> ServiceResult<ReleaseResponse> {
        let released = self.to_the_end(|machine| async move {
            snapshot::release(&machine, running_of(&machine)?).await
        });
        released.await?;
        Response::ok(ReleaseResponse::default())
    }

    async fn stop(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, StopRequest>,
    ) -> ServiceResult<StopResponse> {
        let grace_ms = request.to_owned_message().grace_ms;
        if grace_ms > 0
            && let Ok(running) = self.running()
        {
            let request = pando_wire::guest::ShutdownRequest {
                grace_ms,
                ..Default::default()
            };
            let deadline = Duration::from_millis(grace_ms.into()) + POWER_OFF_GRACE;
            // Whatever the guest answers, or fails to, ends in the quit below.
            drop(
                tokio::time::timeout(deadline, async {
                    drop(running.guest.shutdown(request).await);
                    running.qemu.exited().await
                })
                .await,
            );
        }
        self.machine.quit().await;
        Response::ok(StopResponse::default())
    }
}

fn required<V>(value: Option<V>, field: &str) -> Result<V, ConnectError> {
    value.ok_or_else(|| ConnectError::invalid_argument(format!("`{field}` is missing")))
}

fn pty_size(size: &shim::WindowSize) -> PtySize {
    PtySize {
        cols: size.cols,
        rows: size.rows,
        ..PtySize::default()
    }
}

/// Steps as messages have them.
fn milliseconds<M: FromIterator<(String, f64)>>(steps: [(&'static str, f64); 2]) -> M {
    let steps = steps.into_iter();
    steps.map(|(step, ms)| (step.to_owned(), ms)).collect()
}

fn exec_response(executed: Executed) -> ExecResponse {
    ExecResponse {
        exit: shim::Exit::from(&executed.exit).into(),
        stdout: executed.stdout,
        stderr: executed.stderr,
        truncated: executed.truncated,
        duration_ms: executed.duration.as_secs_f64() * 1000.0,
        process_id: executed.process_id,
        timing_ms: milliseconds(executed.steps),
        agent_ms: milliseconds(executed.agent_steps),
        ..ExecResponse::default()
    }
}

fn process_info(process: &Arc<Process>) -> shim::ProcessInfo {
    let since = process
        .started_at
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    shim::ProcessInfo {
        process_id: process.id.clone(),
        pid: process.pid,
        argv: process.argv.clone(),
        tty: process.tty,
        exit: process.exit().as_ref().map(shim::Exit::from).into(),
        started_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        ..shim::ProcessInfo::default()
    }
}

/// A process' output from an offset on; its exit is the last message.
fn follow(
    process: Arc<Process>,
    offset: u64,
    status: watch::Receiver<Status>,
) -> impl stream::Stream<Item = Result<AttachResponse, ConnectError>> + Send {
    stream::unfold(Some((process, offset, status)), |state| async move {
        let (process, offset, mut status) = state?;
        let (event, next) = match process.next(offset).await {
            Followed::Output(chunk) => {
                let end = chunk.end();
                let stream = match chunk.stream {
                    OutputStream::Stdout => attach_response::output::Stream::STREAM_STDOUT,
                    OutputStream::Stderr => attach_response::output::Stream::STREAM_STDERR,
                    OutputStream::Tty => attach_response::output::Stream::STREAM_TTY,
                };
                let output = attach_response::Output {
                    stream: stream.into(),
                    data: chunk.data.to_vec(),
                    next_offset: end,
                    ..Default::default()
                };
                (
                    attach_response::Event::Output(Box::new(output)),
                    Some((process, end, status)),
                )
            }
            Followed::Gap {
                lost_bytes,
                resume_at,
            } => {
                let gap = attach_response::Gap {
                    lost_bytes,
                    ..Default::default()
                };
                (
                    attach_response::Event::Gap(Box::new(gap)),
                    Some((process, resume_at, status)),
                )
            }
            Followed::Exit(exit) if exit.is_unknown() => {
                let ended = tokio::time::timeout(CAUSE_WAIT, until_ended(&mut status)).await;
                let error =
                    ended.map_or_else(|_| ConnectError::unavailable(""), |status| gone(&status));
                return Some((Err(error), None));
            }
            Followed::Exit(exit) => (
                attach_response::Event::Exit(Box::new(shim::Exit::from(&exit))),
                None,
            ),
        };
        Some((
            Ok(AttachResponse {
                event: Some(event),
                ..Default::default()
            }),
            next,
        ))
    })
}

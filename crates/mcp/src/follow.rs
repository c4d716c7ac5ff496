//! A process that a call follows.

use crate::answer::Failure;
use crate::server::Call;
use bytes::Bytes;
use pando_client::api::stream::StreamRequest;
use pando_client::{Client, ClientError, ExecStream, StreamEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::task::TaskTracker;

/// SIGKILL, the same number on every Linux.
const SIGKILL: u32 = 9;

/// How long a kill may take on its way: the daemon answers within milliseconds or not at all.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// How long the daemon may be away, as while it is upgraded, before a call that follows a
/// process gives up. The process runs on meanwhile.
const AWAY_DEADLINE: Duration = Duration::from_secs(60);

/// How often it is looked for.
const AWAY_PAUSE: Duration = Duration::from_millis(250);

/// Output seen so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<AtomicU64>);

impl Meter {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A process and the stream from it.
pub(crate) struct Followed {
    client: Client,
    sandbox: String,
    stream: ExecStream,
    next_offset: u64,
    meter: Meter,
    afterwards: TaskTracker,
    dies_with_us: bool,
}

impl Followed {
    /// Starts a process that is killed, with its group, where this is dropped before its end.
    pub(crate) async fn start(
        call: &Call,
        sandbox: &str,
        request: StreamRequest,
    ) -> Result<Self, Failure> {
        let (call, sandbox) = (call.clone(), sandbox.to_owned());
        let tracker = call.afterwards.clone();
        // In a task of its own: where the call is dropped while the process starts, there is
        // somebody to kill it.
        let starting = tracker.spawn(async move {
            let mut started = Self::open(&call, &sandbox, &request).await?;
            started.dies_with_us = true;
            Ok(started)
        });
        starting
            .await
            .map_err(|_| Failure::new("internal", "the call broke off"))?
            .map_err(|error: ClientError| error.into())
    }

    /// From now on the process runs on without us.
    pub(crate) fn let_go(&mut self) {
        self.dies_with_us = false;
    }

    /// Starts a process, or attaches to one, that runs on without us.
    pub(crate) async fn open(
        call: &Call,
        sandbox: &str,
        request: &StreamRequest,
    ) -> Result<Self, ClientError> {
        let stream = call.client.exec_stream(sandbox, request).await?;
        Ok(Self {
            client: call.client.clone(),
            sandbox: sandbox.to_owned(),
            stream,
            next_offset: request.from_offset.unwrap_or(0),
            meter: call.meter.clone(),
            afterwards: call.afterwards.clone(),
            dies_with_us: false,
        })
    }

    /// Names the process.
    pub(crate) fn process_id(&self) -> &str {
        &self.stream.process_id
    }

    /// Where the output goes on after what was seen.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Feeds all of its stdin.
    pub(crate) async fn feed(&self, stdin: Bytes) -> Result<(), ClientError> {
        self.stream.input.stdin(stdin).await?;
        self.stream.input.close_stdin().await
    }

    /// Sends a signal to the process's group.
    pub(crate) async fn signal(&self, signal: u32) -> Result<(), ClientError> {
        self.stream.input.signal(signal).await
    }

    /// What it does next. A daemon that goes away is waited for.
    pub(crate) async fn next(&mut self) -> Result<StreamEvent, ClientError> {
        let event = loop {
            match self.stream.output.next().await {
                Err(ClientError::Broken(_)) => self.attach_again().await?,
                event => break event,
            }
        };
        match &event {
            Ok(StreamEvent::Output {
                data, next_offset, ..
            }) => {
                self.meter.add(data.len());
                self.next_offset = *next_offset;
            }
            // On an error it cannot be reached, and runs on or is gone with its sandbox.
            Ok(StreamEvent::Exit { .. }) | Err(_) => self.dies_with_us = false,
            Ok(StreamEvent::Gap { .. }) => {}
        }
        event
    }

    async fn attach_again(&mut self) -> Result<(), ClientError> {
        let request = StreamRequest {
            attach: Some(self.stream.process_id.clone()),
            from_offset: Some(self.next_offset),
            ..StreamRequest::default()
        };
        let deadline = Instant::now() + AWAY_DEADLINE;
        loop {
            tokio::time::sleep(AWAY_PAUSE).await;
            match self.client.exec_stream(&self.sandbox, &request).await {
                Ok(stream) => {
                    self.stream = stream;
                    return Ok(());
                }
                Err(ClientError::NotReachable { .. } | ClientError::Broken(_))
                    if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if !self.dies_with_us || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let input = self.stream.input.clone();
        self.afterwards.spawn(async move {
            let killed = tokio::time::timeout(KILL_DEADLINE, input.signal(SIGKILL)).await;
            if !matches!(killed, Ok(Ok(()))) {
                tracing::warn!("a command of a cancelled call could not be killed");
            }
        });
    }
}

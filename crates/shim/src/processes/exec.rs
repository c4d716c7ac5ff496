//! Programs that are run to their end, once for each request.
//!
//! A caller whose daemon went away before the answer came cannot know whether its program
//! was started. It asks the next daemon again under the id that it gave its request, and is
//! told how the program that was started then ended; nothing runs twice.

use super::{Exit, Process, Processes, Progress, Start, feed};
use crate::replay::{Replay, Stream};
use connectrpc::ConnectError;
use connectrpc::client::ClientTransport;
use pando_wire::shim;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::OnceCell;

/// Request ids that are remembered: four times as many as processes, so that an id outlives
/// what it started.
const REQUESTS_KEPT: usize = 1024;

/// Output of programs that ended and whose caller did not come back, all of them together;
/// that of the oldest goes first, down to what is replayed.
const LEFT_OUTPUT_BYTES: usize = 32 << 20;

/// The result of a program that was run to its end.
#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) process_id: String,
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) truncated: bool,
    pub(crate) duration: Duration,
    /// Ends of its steps, in milliseconds since the request.
    pub(crate) steps: [(&'static str, f64); 2],
    /// The same as the agent tells it.
    pub(crate) agent_steps: [(&'static str, f64); 2],
}

/// The step to a program's begin.
pub(super) const STARTED: &str = "started";

/// The step to its end.
pub(super) const ENDED: &str = "ended";

/// Output kept whole, up to a limit for each stream.
#[derive(Debug, Default)]
pub(super) struct Capture {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    limit_bytes: usize,
    truncated: bool,
}

impl Capture {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, stream: Stream, data: &[u8]) {
        let kept = if stream == Stream::Stderr {
            &mut self.stderr
        } else {
            &mut self.stdout
        };
        let room = self.limit_bytes.saturating_sub(kept.len());
        kept.extend_from_slice(&data[..data.len().min(room)]);
        self.truncated |= data.len() > room;
    }

    /// What is left of output that was given away, or had to go: all of it, if that was little.
    fn of_replay(replay: &Replay) -> Self {
        let mut capture = Self::new(usize::MAX);
        for chunk in replay.chunks() {
            capture.push(chunk.stream, &chunk.data);
        }
        capture.truncated = replay.begins_at() > 0;
        capture
    }

    fn bytes(&self) -> usize {
        self.stdout.len() + self.stderr.len()
    }
}

/// The requests that have an id.
#[derive(Debug, Default)]
pub(super) struct Requests {
    known: Mutex<VecDeque<Arc<Request>>>,
}

#[derive(Debug)]
struct Request {
    id: String,
    /// Of what it asks for: another request has no business with its process.
    fingerprint: u64,
    process: OnceCell<Weak<Process>>,
}

impl Requests {
    /// The request with this id, which is new if nobody asked before.
    fn enter(&self, id: &str, fingerprint: u64) -> Result<Arc<Request>, ConnectError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(request) = known.iter().find(|request| request.id == id) {
            return match request.fingerprint == fingerprint {
                true => Ok(Arc::clone(request)),
                false => Err(ConnectError::already_exists(id)),
            };
        }
        let request = Arc::new(Request {
            id: id.to_owned(),
            fingerprint,
            process: OnceCell::new(),
        });
        known.push_back(Arc::clone(&request));
        if known.len() > REQUESTS_KEPT {
            known.pop_front();
        }
        Ok(request)
    }

    /// It came to nothing: who asks again starts anew.
    fn forget(&self, request: &Arc<Request>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| !Arc::ptr_eq(one, request));
    }
}

impl<T> Processes<T>
where
    T: ClientTransport,
    T::ResponseBody: Unpin,
    <T::ResponseBody as http_body::Body>::Error: std::fmt::Display,
{
    /// Starts a program and feeds it its input, or finds the one that this request started;
    /// an empty id is that of a new request each time. Must not be cut off half-way.
    pub(crate) async fn begin(
        &self,
        request_id: &str,
        start: Start,
        stdin: Vec<u8>,
    ) -> Result<Arc<Process>, ConnectError> {
        if request_id.is_empty() {
            return self.start_fed(start, stdin).await;
        }
        let request = self
            .requests
            .enter(request_id, fingerprint(&start, &stdin))?;
        // Who asks meanwhile waits here.
        let begin = || async {
            // It runs, so the table holds it.
            Ok(Arc::downgrade(&self.start_fed(start, stdin).await?))
        };
        match request.process.get_or_try_init(begin).await {
            Ok(process) => process
                .upgrade()
                .ok_or_else(|| ConnectError::not_found("the process of this request is forgotten")),
            Err(error) => {
                self.requests.forget(&request);
                Err(error)
            }
        }
    }

    /// Runs a program to its end, without input.
    pub(crate) async fn exec(
        &self,
        command: shim::Command,
        limit_bytes: usize,
    ) -> Result<Executed, ConnectError> {
        let start = Start {
            command,
            tty: None,
            stdin: false,
            capture_bytes: Some(limit_bytes),
        };
        let process = self.start(start).await?;
        self.result(&process).await
    }

    async fn start_fed(&self, start: Start, stdin: Vec<u8>) -> Result<Arc<Process>, ConnectError> {
        let process = self.start(start).await?;
        if !stdin.is_empty() {
            // Beside the wait: a program may end without reading its input.
            tokio::spawn(feed(self.client.clone(), process.pid, stdin));
        }
        Ok(process)
    }

    /// Waits for a program's end and gives what it wrote. Given away once, output is no
    /// longer kept whole: who asks again gets what is replayed.
    pub(crate) async fn result(&self, process: &Process) -> Result<Executed, ConnectError> {
        let exit = process.ended().await;
        if exit.is_unknown() {
            return Err(ConnectError::unavailable(""));
        }
        let mut progress = process.progress();
        let Progress {
            capture, replay, ..
        } = &mut *progress;
        let capture = capture.take();
        let capture = capture.unwrap_or_else(|| Capture::of_replay(replay));
        let duration = progress.lasted.unwrap_or_else(|| process.started.elapsed());
        let started = process.started - process.asked;
        let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
        Ok(Executed {
            process_id: process.id.clone(),
            exit,
            stdout: capture.stdout,
            stderr: capture.stderr,
            truncated: capture.truncated,
            duration,
            steps: [
                (STARTED, milliseconds(started)),
                (ENDED, milliseconds(started + duration)),
            ],
            agent_steps: progress.agent_steps,
        })
    }
}

/// Drops output that nobody came back for; `processes` are in order, the newest first.
pub(super) fn trim<'p>(processes: impl Iterator<Item = &'p Arc<Process>>) {
    let mut left = LEFT_OUTPUT_BYTES;
    for process in processes {
        let mut progress = process.progress();
        if progress.exit.is_none() {
            continue;
        }
        let bytes = progress.capture.as_ref().map_or(0, Capture::bytes);
        match left.checked_sub(bytes) {
            Some(fewer) => left = fewer,
            None => progress.capture = None,
        }
    }
}

fn fingerprint(start: &Start, stdin: &[u8]) -> u64 {
    let shim::Command {
        argv,
        env,
        cwd,
        user,
        timeout_ms,
        ..
    } = &start.command;
    let mut hasher = DefaultHasher::new();
    (argv, cwd, user, timeout_ms, stdin).hash(&mut hasher);
    // A map of the wire has no order. Who asks again may do so in another trace.
    let mut env: Vec<_> = env
        .iter()
        .filter(|(name, _)| *name != "TRACEPARENT")
        .collect();
    env.sort();
    env.hash(&mut hasher);
    (start.tty.is_some(), start.stdin, start.capture_bytes).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_request_is_known_by_its_id_and_no_other_may_have_it() {
        let requests = Requests::default();
        let first = requests.enter("a", 1).unwrap();
        assert!(Arc::ptr_eq(&first, &requests.enter("a", 1).unwrap()));
        let refused = requests.enter("a", 2).unwrap_err();
        assert_eq!(refused.code, connectrpc::ErrorCode::AlreadyExists);
        requests.forget(&first);
        requests.enter("a", 2).unwrap();
        for number in 0..REQUESTS_KEPT {
            requests.enter(&format!("b{number}"), 1).unwrap();
        }
        requests.enter("a", 3).unwrap();
    }

    #[test]
    fn what_is_replayed_is_all_of_it_or_said_not_to_be() {
        let mut replay = Replay::new(10);
        replay.push(Stream::Stdout, Bytes::from_static(b"out"));
        replay.push(Stream::Stderr, Bytes::from_static(b"err"));
        let capture = Capture::of_replay(&replay);
        assert_eq!(
            (&*capture.stdout, &*capture.stderr),
            (&b"out"[..], &b"err"[..])
        );
        assert!(!capture.truncated);
        replay.push(Stream::Stdout, Bytes::from_static(b"12345678"));
        let capture = Capture::of_replay(&replay);
        assert_eq!(
            (&*capture.stdout, capture.truncated),
            (&b"12345678"[..], true)
        );
    }
}

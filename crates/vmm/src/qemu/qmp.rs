//! QEMU's control protocol: one JSON object a line, over an inherited socket.
//!
//! QEMU answers commands in order; events come between. The process behind the
//! socket may have been taken over by its guest, so lines are bounded and
//! nothing in them is trusted beyond its shape.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pando_sys::socket::send_with_descriptors;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

use crate::error::VmmError;
use crate::event::{ShutdownReason, VmEvent};

/// Longest line. Answers to the commands used here stay below 4 KiB.
const LINE_BYTES: u64 = 1 << 20;

/// Longest error text kept.
const REASON_BYTES: usize = 500;

/// How long a command may take. Stopping a VM waits for disk requests in
/// flight, which a busy disk may hold for seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Events kept for a receiver that lags: a VM's life has a dozen.
const EVENTS_KEPT: usize = 64;

type Answer = Result<Value, String>;

/// The answers awaited, in the order of their commands; `None` once the
/// connection has ended.
type Pending = Mutex<Option<VecDeque<oneshot::Sender<Answer>>>>;

/// A connection to a QEMU.
#[derive(Debug)]
pub(super) struct Qmp {
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pending: Pending,
    events: broadcast::Sender<VmEvent>,
    shutdown: Mutex<Option<ShutdownReason>>,
}

impl Qmp {
    /// Starts to read. The task ends with the connection.
    pub(super) fn new(socket: UnixStream) -> (Self, JoinHandle<()>) {
        let (reader, writer) = socket.into_split();
        let shared = Arc::new(Shared {
            pending: Mutex::new(Some(VecDeque::new())),
            events: broadcast::Sender::new(EVENTS_KEPT),
            shutdown: Mutex::new(None),
        });
        let task = tokio::spawn(read_all(reader, Arc::clone(&shared)));
        (
            Self {
                writer: tokio::sync::Mutex::new(writer),
                shared,
            },
            task,
        )
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn execute(
        &self,
        command: &'static str,
        arguments: Value,
    ) -> Result<Value, VmmError> {
        self.bounded(command, self.exchange(command, arguments, None))
            .await
    }

    /// Gives QEMU a copy of a descriptor, as one of the set `set`. QEMU opens
    /// the set's path with whichever of its descriptors has the right mode.
    pub(super) async fn add_descriptor(
        &self,
        set: u64,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), VmmError> {
        let command = "add-fd";
        let exchange = self.exchange(command, json!({ "fdset-id": set }), Some(descriptor));
        self.bounded(command, exchange).await.map(drop)
    }

    async fn bounded(
        &self,
        command: &'static str,
        exchange: impl Future<Output = Result<Value, VmmError>>,
    ) -> Result<Value, VmmError> {
        match tokio::time::timeout(COMMAND_TIMEOUT, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(VmmError::Timeout {
                command,
                seconds: COMMAND_TIMEOUT.as_secs(),
            }),
        }
    }

    async fn exchange(
        &self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value, VmmError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        let (sender, receiver) = oneshot::channel();
        {
            // Held while writing, so that answers come in the order of the queue.
            let mut writer = self.writer.lock().await;
            self.shared.expect_answer(sender)?;
            send(&mut writer, line.as_bytes(), descriptor)
                .await
                .map_err(|_| VmmError::Ended)?;
        }
        let answer = receiver.await.map_err(|_| VmmError::Ended)?;
        answer.map_err(|reason| VmmError::Refused { command, reason })
    }

    /// Events from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<VmEvent> {
        self.shared.events.subscribe()
    }

    /// Why the VM ended, if QEMU said so.
    pub(super) fn shutdown(&self) -> Option<ShutdownReason> {
        self.shared
            .shutdown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn send(
    writer: &mut OwnedWriteHalf,
    line: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut sent = 0;
    if let Some(descriptor) = descriptor {
        let socket: &UnixStream = (*writer).as_ref();
        sent = socket
            .async_io(Interest::WRITABLE, || {
                send_with_descriptors(socket, line, &[descriptor])
            })
            .await?;
    }
    writer.write_all(&line[sent..]).await
}

impl Shared {
    fn expect_answer(&self, sender: oneshot::Sender<Answer>) -> Result<(), VmmError> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.as_mut().ok_or(VmmError::Ended)?.push_back(sender);
        Ok(())
    }

    fn answer(&self, answer: Answer) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = pending.as_mut().and_then(VecDeque::pop_front) {
            // Nobody waits for an answer whose command timed out.
            let _ = sender.send(answer);
        }
    }

    fn end(&self) {
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    fn event(&self, message: &Value) {
        let Some(event) = parse_event(message) else {
            return;
        };
        if let VmEvent::Shutdown(reason) = &event {
            let mut shutdown = self.shutdown.lock().unwrap_or_else(PoisonError::into_inner);
            shutdown.get_or_insert_with(|| reason.clone());
        }
        // An error only says that nobody listens.
        let _ = self.events.send(event);
    }
}

async fn read_all(reader: OwnedReadHalf, shared: Arc<Shared>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader)
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)
            .await;
        if !matches!(read, Ok(1..)) || line.last() != Some(&b'\n') {
            break;
        }
        let Ok(message) = serde_json::from_slice::<Value>(&line) else {
            break;
        };
        if message.get("event").is_some() {
            shared.event(&message);
        } else if let Some(error) = message.get("error") {
            let reason = error
                .get("desc")
                .and_then(Value::as_str)
                .unwrap_or("no reason given");
            shared.answer(Err(clipped(reason)));
        } else if let Some(value) = message.get("return") {
            shared.answer(Ok(value.clone()));
        }
        // Anything else is the greeting.
    }
    shared.end();
}

fn clipped(text: &str) -> String {
    text.chars().take(REASON_BYTES).collect()
}

fn parse_event(message: &Value) -> Option<VmEvent> {
    let data = |name: &str| message.get("data").and_then(|data| data.get(name));
    let text = |name: &str| data(name).and_then(Value::as_str).unwrap_or_default();
    match message.get("event")?.as_str()? {
        "STOP" => Some(VmEvent::Stopped),
        "RESUME" => Some(VmEvent::Resumed),
        "SHUTDOWN" => Some(VmEvent::Shutdown(ShutdownReason::parse(&clipped(text(
            "reason",
        ))))),
        "BLOCK_IO_ERROR" => Some(VmEvent::BlockIoError {
            no_space: data("nospace").and_then(Value::as_bool).unwrap_or(false),
            stopped: text("action") == "stop",
            reason: clipped(text("reason")),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn reply(peer: &mut UnixStream, lines: &[Value]) {
        for line in lines {
            peer.write_all(format!("{line}\r\n").as_bytes())
                .await
                .unwrap();
        }
    }

    fn connected() -> (Qmp, UnixStream) {
        let (ours, peer) = UnixStream::pair().unwrap();
        (Qmp::new(ours).0, peer)
    }

    #[tokio::test]
    async fn answers_go_to_their_commands_and_events_to_listeners() {
        let (qmp, mut peer) = connected();
        let mut events = qmp.subscribe();
        let answers = [
            json!({ "QMP": {} }),
            json!({ "return": { "n": 1 } }),
            json!({ "event": "STOP" }),
            json!({ "event": "RTC_CHANGE", "data": {} }),
            json!({ "error": { "class": "GenericError", "desc": "no such thing" } }),
            json!({ "event": "SHUTDOWN", "data": { "guest": true, "reason": "guest-reset" } }),
        ];
        let (first, second, ()) = tokio::join!(
            qmp.execute("one", json!({})),
            qmp.execute("two", json!({})),
            reply(&mut peer, &answers),
        );
        assert_eq!(first.unwrap(), json!({ "n": 1 }));
        let refused = second.unwrap_err().to_string();
        assert_eq!(refused, "QEMU refused `two`: no such thing");
        assert_eq!(events.recv().await.unwrap(), VmEvent::Stopped);
        let shutdown = VmEvent::Shutdown(ShutdownReason::GuestReset);
        assert_eq!(events.recv().await.unwrap(), shutdown);
        assert_eq!(qmp.shutdown(), Some(ShutdownReason::GuestReset));
    }

    #[tokio::test]
    async fn a_command_fails_when_the_connection_ends_and_ever_after() {
        let (qmp, peer) = connected();
        let (answer, ()) = tokio::join!(qmp.execute("one", json!({})), async { drop(peer) });
        assert!(matches!(answer, Err(VmmError::Ended)));
        assert!(matches!(
            qmp.execute("two", json!({})).await,
            Err(VmmError::Ended)
        ));
    }

    #[tokio::test]
    async fn nonsense_and_endless_lines_end_the_connection() {
        for noise in [b"{not json}\n".to_vec(), vec![b'x'; 2 << 20]] {
            let (qmp, peer) = connected();
            let (_keep, mut writer) = peer.into_split();
            let noise = tokio::spawn(async move {
                // The reader stops early: a failed write is the point.
                let _ = writer.write_all(&noise).await;
            });
            assert!(matches!(
                qmp.execute("one", json!({})).await,
                Err(VmmError::Ended)
            ));
            noise.abort();
        }
    }

    #[test]
    fn a_full_disk_is_told_from_a_broken_one() {
        let event = |nospace, action| {
            parse_event(&json!({ "event": "BLOCK_IO_ERROR", "data": {
                "nospace": nospace, "action": action, "reason": "words" } }))
        };
        let expected = |no_space, stopped| {
            Some(VmEvent::BlockIoError {
                no_space,
                stopped,
                reason: "words".to_owned(),
            })
        };
        assert_eq!(event(true, "stop"), expected(true, true));
        assert_eq!(event(false, "report"), expected(false, false));
    }
}

//! `exec/stream`: a process on a WebSocket. The messages are in [`pando_api::stream`].
//!
//! ```text
//!            ┌─ reader: first byte 0 ─► stdin queue (bounded) ─► engine.input
//! WebSocket ─┤          signal, resize ────────────────────────► engine.input
//!            └─ writer ◄─ started, output, gap, exit, stdin_consumed
//! ```
//!
//! Stdin goes through a queue of its own so that a signal overtakes stdin that
//! nobody reads. The reader stops reading when the queue is full; a client that
//! keeps to the window of [`pando_api::stream`] never gets there. Output is pulled as fast as
//! the client takes it, what it leaves behind is the shim's to keep.

use super::Api;
use super::convert::{self, StreamStart};
use super::stdin_queue::{Stdin, StdinReceiver, StdinSender, stdin_queue};
use crate::error::ApiError;
use crate::gate::RequestId;
use crate::json::Target;
use crate::to_the_end::to_the_end;
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{BoxStream, SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use pando_api::stream::{
    ClientMessage, MESSAGE_BYTES, OutputFrame, STDIN_BYTE, ServerMessage, StreamRequest,
};
use pando_engine::EngineError;
use pando_engine::request::{Caller, ProcessEvent, ProcessId, ProcessInput};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The first message must be there by then.
const FIRST_MESSAGE_DEADLINE: Duration = Duration::from_secs(30);

/// A ping this often keeps the connection open in middleboxes and finds dead clients.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Acknowledgements and errors for the writer; each input yields at most one.
const NOTICES: usize = 64;

type Events = BoxStream<'static, Result<ProcessEvent, EngineError>>;

/// Opens the stream.
pub(super) async fn open(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Extension(request_id): Extension<RequestId>,
    Target(sandbox): Target,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|rejection| ApiError::NotWebSocket(rejection.body_text()))?;
    // A sandbox that is not there is told before the upgrade, where every client sees it.
    api.engine.get(&caller, &sandbox).await?;
    let session = Session {
        api,
        caller,
        sandbox,
        request_id: request_id.0,
    };
    Ok(upgrade
        .max_message_size(MESSAGE_BYTES)
        .max_frame_size(MESSAGE_BYTES)
        .on_upgrade(|socket| session.run(socket)))
}

struct Session {
    api: Api,
    caller: Caller,
    sandbox: String,
    request_id: String,
}

/// What the reader and the stdin queue tell the writer.
enum Notice {
    Say(ServerMessage),
    Fail(ApiError),
}

impl Session {
    async fn run(self, socket: WebSocket) {
        let (mut sink, mut source) = socket.split();
        let begun = async {
            let start = first_message(&mut source).await?;
            self.begin(start).await
        };
        match begun.await {
            Ok((process, events)) => Arc::new(self).follow(sink, source, process, events).await,
            Err(error) => {
                let _ = say(
                    &mut sink,
                    &ServerMessage::Error {
                        error: error.body(&self.request_id),
                    },
                )
                .await;
                close(&mut sink).await;
            }
        }
    }

    /// Starts the process or finds it, and attaches to its output.
    async fn begin(&self, start: StreamStart) -> Result<(ProcessId, Events), ApiError> {
        let engine = &self.api.engine;
        let (process, from_offset) = match start {
            StreamStart::Attach {
                process_id,
                from_offset,
            } => (process_id, from_offset),
            StreamStart::Start(request) => {
                let (engine, caller, sandbox) =
                    (engine.clone(), self.caller.clone(), self.sandbox.clone());
                let started = async move { engine.start_process(&caller, &sandbox, request).await };
                (to_the_end(started).await?, 0)
            }
        };
        let events = engine
            .attach(&self.caller, &self.sandbox, &process, from_offset)
            .await?;
        Ok((process, events))
    }

    /// Carries messages both ways until either side is done.
    async fn follow(
        self: Arc<Self>,
        mut sink: SplitSink<WebSocket, Message>,
        source: SplitStream<WebSocket>,
        process: ProcessId,
        events: Events,
    ) {
        let (notices, to_write) = mpsc::channel(NOTICES);
        let started = ServerMessage::Started {
            process_id: process.clone(),
        };
        if say(&mut sink, &started).await.is_ok() {
            let reading = read(Arc::clone(&self), source, process, notices);
            let writing = write(&mut sink, events, to_write, &self.request_id);
            // The reader ends when the client leaves, the writer when the process ends.
            tokio::select! { () = reading => {}, () = writing => {} }
        }
        close(&mut sink).await;
    }

    async fn input(&self, process: &ProcessId, input: ProcessInput) -> Result<(), ApiError> {
        Ok(self
            .api
            .engine
            .input(&self.caller, &self.sandbox, process, input)
            .await?)
    }
}

async fn first_message(source: &mut SplitStream<WebSocket>) -> Result<StreamStart, ApiError> {
    let wait = async {
        loop {
            match source.next().await {
                Some(Ok(Message::Text(text))) => return Ok(text),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Binary(_))) => {
                    return Err(ApiError::BadStream(
                        "the first message must be text".to_owned(),
                    ));
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => {
                    return Err(ApiError::BadStream(
                        "the client left before its first message".to_owned(),
                    ));
                }
            }
        }
    };
    let late = || ApiError::BadStream("the first message did not come in time".to_owned());
    let text = tokio::time::timeout(FIRST_MESSAGE_DEADLINE, wait)
        .await
        .map_err(|_| late())??;
    let request = serde_json::from_str::<StreamRequest>(&text);
    convert::stream_start(request.map_err(|error| bad_message(&error))?)
}

fn bad_message(error: &serde_json::Error) -> ApiError {
    ApiError::BadJson {
        route: "exec/stream".to_owned(),
        reason: error.to_string(),
    }
}

/// Reads until the client leaves.
async fn read(
    session: Arc<Session>,
    mut source: SplitStream<WebSocket>,
    process: ProcessId,
    notices: mpsc::Sender<Notice>,
) {
    let (stdin, queued) = stdin_queue();
    let feeding = feed(
        Arc::clone(&session),
        process.clone(),
        queued,
        notices.clone(),
    );
    let taking = async {
        while let Some(Ok(message)) = source.next().await {
            let taken = match message {
                Message::Text(text) => take_text(&session, &process, &text, &stdin).await,
                Message::Binary(bytes) => take_stdin(bytes, &stdin).await,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
                Message::Close(_) => return,
            };
            if let Err(error) = taken
                && notices.send(Notice::Fail(error)).await.is_err()
            {
                return;
            }
        }
    };
    // Stdin that is queued when the client leaves is dropped: it was not acknowledged.
    tokio::select! { () = taking => {}, () = feeding => {} }
}

async fn take_text(
    session: &Session,
    process: &ProcessId,
    text: &str,
    stdin: &StdinSender,
) -> Result<(), ApiError> {
    let message =
        serde_json::from_str::<ClientMessage>(text).map_err(|error| bad_message(&error))?;
    match convert::process_input(&message)? {
        // The end of stdin keeps its place behind the data.
        ProcessInput::CloseStdin => stdin.send(Stdin::End).await,
        // No text message stands for data.
        ProcessInput::Data(data) => stdin.send(Stdin::Data(data)).await,
        input @ (ProcessInput::Signal(_) | ProcessInput::Resize(_)) => {
            session.input(process, input).await?;
        }
    }
    Ok(())
}

async fn take_stdin(mut message: Bytes, stdin: &StdinSender) -> Result<(), ApiError> {
    if message.first() != Some(&STDIN_BYTE) {
        return Err(ApiError::BadStream(
            "a binary message of the client begins with the byte 0".to_owned(),
        ));
    }
    let data = message.split_off(1);
    if !data.is_empty() {
        stdin.send(Stdin::Data(data)).await;
    }
    Ok(())
}

/// Hands queued stdin to the process, in order, and acknowledges it.
async fn feed(
    session: Arc<Session>,
    process: ProcessId,
    mut queued: StdinReceiver,
    notices: mpsc::Sender<Notice>,
) {
    while let Some(input) = queued.next().await {
        let (input, bytes) = match input {
            Stdin::Data(data) => {
                let bytes = data.len();
                (ProcessInput::Data(data), bytes)
            }
            Stdin::End => (ProcessInput::CloseStdin, 0),
        };
        // A program that ended, or closed its stdin, leaves what is fed to it unread.
        // Its exit is on its way to the client and says more than an error here would.
        if let Err(error) = session.input(&process, input).await {
            tracing::debug!(%error, "stdin was not taken");
        }
        queued.consumed(bytes);
        let consumed = ServerMessage::StdinConsumed {
            bytes: bytes as u64,
        };
        if bytes > 0 && notices.send(Notice::Say(consumed)).await.is_err() {
            return;
        }
    }
    // The queue's other end is dropped only with the reader.
    std::future::pending::<()>().await;
}

/// Writes until the process has ended or the client is gone.
async fn write(
    sink: &mut SplitSink<WebSocket, Message>,
    mut events: Events,
    mut notices: mpsc::Receiver<Notice>,
    request_id: &str,
) {
    let mut ping = tokio::time::interval(PING_INTERVAL);
    ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let written = tokio::select! {
            event = events.next() => match event {
                Some(Ok(ProcessEvent::Exit(exit))) => {
                    let exit = ServerMessage::Exit {
                        exit_code: exit.exit_code,
                        signal: exit.signal,
                        timed_out: exit.timed_out,
                    };
                    let _ = say(sink, &exit).await;
                    return;
                }
                Some(Ok(event)) => write_event(sink, event).await,
                Some(Err(error)) => return write_end(sink, error.into(), request_id).await,
                None => {
                    let error = ApiError::Internal("the output ended without the process's exit".to_owned());
                    return write_end(sink, error, request_id).await;
                }
            },
            Some(notice) = notices.recv() => match notice {
                Notice::Say(message) => say(sink, &message).await,
                Notice::Fail(error) => return write_end(sink, error, request_id).await,
            },
            _ = ping.tick() => sink.send(Message::Ping(Bytes::new())).await,
        };
        if written.is_err() {
            return;
        }
    }
}

async fn write_event(
    sink: &mut SplitSink<WebSocket, Message>,
    event: ProcessEvent,
) -> Result<(), axum::Error> {
    match event {
        ProcessEvent::Output {
            stream,
            data,
            next_offset,
        } => {
            let stream = convert::output_stream(stream);
            let start = next_offset.saturating_sub(data.len() as u64);
            let mut sent = 0;
            // One message, unless a whole replay comes at once.
            for data in data.chunks(MESSAGE_BYTES / 2) {
                sent += data.len() as u64;
                let frame = OutputFrame {
                    stream,
                    next_offset: start + sent,
                    data,
                };
                sink.send(Message::Binary(frame.encode().into())).await?;
            }
            Ok(())
        }
        ProcessEvent::Gap { lost_bytes } => say(sink, &ServerMessage::Gap { lost_bytes }).await,
        ProcessEvent::Exit(_) => Ok(()),
    }
}

async fn write_end(sink: &mut SplitSink<WebSocket, Message>, error: ApiError, request_id: &str) {
    if error.status().is_server_error() {
        tracing::warn!(request_id, %error, "a process stream failed");
    }
    let _ = say(
        sink,
        &ServerMessage::Error {
            error: error.body(request_id),
        },
    )
    .await;
}

async fn say(
    sink: &mut SplitSink<WebSocket, Message>,
    message: &ServerMessage,
) -> Result<(), axum::Error> {
    let text = serde_json::to_string(message).map_err(axum::Error::new)?;
    sink.send(Message::Text(text.into())).await
}

async fn close(sink: &mut SplitSink<WebSocket, Message>) {
    /// A client that takes nothing more must not hold the task.
    const DEADLINE: Duration = Duration::from_secs(5);
    let frame = CloseFrame {
        code: close_code::NORMAL,
        reason: "".into(),
    };
    let _ = tokio::time::timeout(DEADLINE, sink.send(Message::Close(Some(frame)))).await;
}

//! A followed process: `exec/stream` from the client's side.

use crate::ClientError;
use crate::transport::{Call, Transport, refusal};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use pando_api::route::Operation;
use pando_api::stream::{
    ClientMessage, MESSAGE_BYTES, OutputFrame, OutputStream, STDIN_BYTE, STDIN_WINDOW_BYTES,
    ServerMessage, StreamRequest,
};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WebSocketError, Message};

/// Stdin in one message: small enough that a terminal stays lively behind it.
const STDIN_MESSAGE_BYTES: usize = 32 << 10;

type Socket = WebSocketStream<TcpStream>;

/// A process that is followed. Dropping it detaches; the process runs on.
#[derive(Debug)]
pub struct ExecStream {
    /// Pass it as `attach` to come back.
    pub process_id: String,
    /// What goes to the process; cheap to clone.
    pub input: ExecInput,
    /// What comes from it.
    pub output: ExecOutput,
}

/// What goes to a process.
#[derive(Clone, Debug)]
pub struct ExecInput {
    sink: Arc<Mutex<SplitSink<Socket, Message>>>,
    window: Arc<Semaphore>,
}

/// What comes from a process.
#[derive(Debug)]
pub struct ExecOutput {
    source: SplitStream<Socket>,
    window: Arc<Semaphore>,
}

/// Something a process did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// It wrote.
    Output {
        /// Where.
        stream: OutputStream,
        /// What.
        data: Bytes,
        /// Where to attach to go on after it.
        next_offset: u64,
    },
    /// Output that is no longer kept.
    Gap {
        /// How much.
        lost_bytes: u64,
    },
    /// It ended; nothing follows.
    Exit {
        /// Its exit code; absent when a signal ended it.
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<u32>,
        /// The timeout ended it.
        timed_out: bool,
    },
}

pub(crate) async fn open(
    transport: &Transport,
    sandbox: &str,
    request: &StreamRequest,
) -> Result<ExecStream, ClientError> {
    let (mut sink, mut source) = connect(transport, sandbox).await?.split();
    let text =
        serde_json::to_string(request).map_err(|error| ClientError::Nonsense(error.to_string()))?;
    sink.send(Message::Text(text.into()))
        .await
        .map_err(|error| broken(&error))?;
    let process_id = match receive(&mut source).await? {
        Received::Text(ServerMessage::Started { process_id }) => process_id,
        Received::Text(ServerMessage::Error { error }) => {
            return Err(ClientError::refused(0, error));
        }
        Received::Text(_) | Received::Binary(_) => {
            return Err(ClientError::Nonsense(
                "the stream did not begin with `started`".to_owned(),
            ));
        }
    };
    let window = Arc::new(Semaphore::new(STDIN_WINDOW_BYTES));
    let input = ExecInput {
        sink: Arc::new(Mutex::new(sink)),
        window: Arc::clone(&window),
    };
    Ok(ExecStream {
        process_id,
        input,
        output: ExecOutput { source, window },
    })
}

async fn connect(transport: &Transport, sandbox: &str) -> Result<Socket, ClientError> {
    let authority = &transport.authority;
    let unreachable = |error: std::io::Error| ClientError::NotReachable {
        url: transport.url.clone(),
        reason: error.to_string(),
    };
    // Brackets of an IPv6 literal belong to the URL, not to the address.
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let address = (host, authority.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let path = Call {
        operation: Operation::ExecStream,
        target: sandbox,
        second: "",
        query: &[],
    }
    .path();
    let handshake = format!("ws://{authority}{path}").into_client_request();
    let mut handshake = handshake.map_err(|error| ClientError::Nonsense(error.to_string()))?;
    for (name, value) in transport.handshake_headers() {
        handshake.headers_mut().insert(name, value);
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(2 * MESSAGE_BYTES))
        .max_frame_size(Some(2 * MESSAGE_BYTES))
        .write_buffer_size(0);
    match tokio_tungstenite::client_async_with_config(handshake, stream, Some(config)).await {
        Ok((socket, _)) => Ok(socket),
        Err(WebSocketError::Http(response)) => {
            let status = response.status().as_u16();
            Err(refusal(
                status,
                response.body().as_deref().unwrap_or_default(),
            ))
        }
        Err(error) => Err(broken(&error)),
    }
}

fn broken(error: &WebSocketError) -> ClientError {
    ClientError::Broken(error.to_string())
}

enum Received {
    Text(ServerMessage),
    Binary(Bytes),
}

async fn receive(source: &mut SplitStream<Socket>) -> Result<Received, ClientError> {
    loop {
        match source.next().await {
            Some(Ok(Message::Text(text))) => {
                let message = serde_json::from_str(&text);
                return Ok(Received::Text(
                    message.map_err(|error| ClientError::Nonsense(error.to_string()))?,
                ));
            }
            Some(Ok(Message::Binary(bytes))) => return Ok(Received::Binary(bytes)),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_))) | None => {
                return Err(ClientError::Broken(
                    "the daemon closed the stream".to_owned(),
                ));
            }
            Some(Err(error)) => return Err(broken(&error)),
        }
    }
}

impl ExecOutput {
    /// The next thing the process did. After an exit or an error there is no more.
    ///
    /// # Errors
    /// [`ClientError::Broken`] if the connection ended before the process: attach
    /// again at the last offset. [`ClientError::Api`] if the daemon ended it.
    pub async fn next(&mut self) -> Result<StreamEvent, ClientError> {
        let event = self.next_event().await;
        if matches!(event, Err(_) | Ok(StreamEvent::Exit { .. })) {
            // Stdin that waits for room waits in vain.
            self.window.close();
        }
        event
    }

    async fn next_event(&mut self) -> Result<StreamEvent, ClientError> {
        loop {
            match receive(&mut self.source).await? {
                Received::Binary(message) => {
                    let nonsense = || ClientError::Nonsense("unknown output message".to_owned());
                    let frame = OutputFrame::decode(&message).ok_or_else(nonsense)?;
                    let (stream, next_offset) = (frame.stream, frame.next_offset);
                    let data = message.slice_ref(frame.data);
                    return Ok(StreamEvent::Output {
                        stream,
                        data,
                        next_offset,
                    });
                }
                Received::Text(ServerMessage::StdinConsumed { bytes }) => {
                    let bytes = usize::try_from(bytes).unwrap_or(0).min(STDIN_WINDOW_BYTES);
                    self.window.add_permits(bytes);
                }
                Received::Text(ServerMessage::Gap { lost_bytes }) => {
                    return Ok(StreamEvent::Gap { lost_bytes });
                }
                Received::Text(ServerMessage::Exit {
                    exit_code,
                    signal,
                    timed_out,
                }) => {
                    return Ok(StreamEvent::Exit {
                        exit_code,
                        signal,
                        timed_out,
                    });
                }
                Received::Text(ServerMessage::Error { error }) => {
                    return Err(ClientError::refused(0, error));
                }
                Received::Text(ServerMessage::Started { .. }) => {
                    return Err(ClientError::Nonsense("the stream began twice".to_owned()));
                }
            }
        }
    }
}

impl ExecInput {
    /// Feeds stdin; waits while the process has a window's worth unread.
    ///
    /// # Errors
    /// If the stream is over.
    pub async fn stdin(&self, mut data: Bytes) -> Result<(), ClientError> {
        while !data.is_empty() {
            let part = data.split_to(data.len().min(STDIN_MESSAGE_BYTES));
            let permits = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let over = |_| ClientError::Broken("the process has ended".to_owned());
            self.window
                .acquire_many(permits)
                .await
                .map_err(over)?
                .forget();
            let mut message = Vec::with_capacity(1 + part.len());
            message.push(STDIN_BYTE);
            message.extend_from_slice(&part);
            self.send(Message::Binary(message.into())).await?;
        }
        Ok(())
    }

    /// Stdin that was sent and that the daemon has not reported as handed over.
    pub fn unacknowledged_bytes(&self) -> usize {
        STDIN_WINDOW_BYTES.saturating_sub(self.window.available_permits())
    }

    /// There is no more stdin.
    ///
    /// # Errors
    /// If the stream is over.
    pub async fn close_stdin(&self) -> Result<(), ClientError> {
        self.say(&ClientMessage::CloseStdin {}).await
    }

    /// Sends a signal to the process and all in its group.
    ///
    /// # Errors
    /// If the stream is over.
    pub async fn signal(&self, signal: u32) -> Result<(), ClientError> {
        self.say(&ClientMessage::Signal { signal }).await
    }

    /// Tells the terminal's new size.
    ///
    /// # Errors
    /// If the stream is over.
    pub async fn resize(&self, cols: u32, rows: u32) -> Result<(), ClientError> {
        self.say(&ClientMessage::Resize { cols, rows }).await
    }

    async fn say(&self, message: &ClientMessage) -> Result<(), ClientError> {
        let text = serde_json::to_string(message)
            .map_err(|error| ClientError::Nonsense(error.to_string()))?;
        self.send(Message::Text(text.into())).await
    }

    async fn send(&self, message: Message) -> Result<(), ClientError> {
        self.sink
            .lock()
            .await
            .send(message)
            .await
            .map_err(|error| broken(&error))
    }
}

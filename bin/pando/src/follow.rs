//! Following a program in a sandbox: its output here, our input there, its end as our own.
//!
//! If the daemon goes away meanwhile the program runs on; we wait for the next
//! daemon and attach again where we were.

use crate::exit::{self, Failure};
use crate::stdio::{self, Target, Writer};
use crate::terminal::{self, RawTerminal};
use anyhow::Context as _;
use bytes::Bytes;
use pando_client::api::stream::{OutputStream, StreamRequest};
use pando_client::{Client, ClientError, ExecInput, ExecStream, StreamEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Mutex, mpsc};

/// How long we wait for a daemon that went away: a restart takes seconds.
const REATTACH_DEADLINE: Duration = Duration::from_secs(60);

/// How often we try.
const REATTACH_PAUSE: Duration = Duration::from_millis(250);

/// Linux's number of SIGPIPE: nobody reads our output any more.
const SIGPIPE: u32 = 13;

/// Linux's number of SIGKILL.
const SIGKILL: u32 = 9;

/// What an interrupt of this command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// End at once; the caller cleans up.
    End,
    /// The program gets it; a second one kills the program.
    Forward,
}

/// How following ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The program ended; the code is its exit code.
    Program(u8),
    /// This signal of ours ended it.
    Interrupted(u32),
}

impl Ended {
    /// The exit code of this command.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Program(code) => code,
            Self::Interrupted(signal) => exit::of_signal(signal),
        }
    }
}

/// The signals that end a command.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    /// Begins to catch them.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hang_up: catch(SignalKind::hangup())?,
        })
    }

    /// The next one's number.
    pub(crate) async fn next(&mut self) -> u32 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hang_up.recv() => SignalKind::hangup(),
        };
        kind.as_raw_value().unsigned_abs()
    }
}

/// Runs or attaches to a program and follows it to its end.
pub(crate) async fn follow(
    client: &Client,
    sandbox: &str,
    request: &StreamRequest,
    on_signal: OnSignal,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Ended> {
    let opening = client.exec_stream(sandbox, request);
    let stream = tokio::select! {
        stream = opening => stream?,
        signal = interrupts.next() => return Ok(Ended::Interrupted(signal)),
    };
    let raw = request.tty.map(|_| RawTerminal::enter()).transpose()?;
    let follower = Follower {
        client,
        sandbox,
        process_id: stream.process_id.clone(),
        stdin: (request.stdin || request.tty.is_some()).then(Stdin::read),
        tty: request.tty.is_some(),
        on_signal,
        next_offset: request.from_offset.unwrap_or(0),
        signals: 0,
        writer: Writer::start(),
    };
    let ended = follower.run(stream, interrupts).await;
    drop(raw);
    ended
}

struct Follower<'a> {
    client: &'a Client,
    sandbox: &'a str,
    process_id: String,
    /// `None` if it is not passed on.
    stdin: Option<Stdin>,
    tty: bool,
    on_signal: OnSignal,
    /// Where to attach again.
    next_offset: u64,
    /// Signals of ours that were passed on.
    signals: u32,
    writer: Writer,
}

/// Why one connection is over.
enum Over {
    Ended(Ended),
    /// The daemon went away.
    Broken(ClientError),
}

impl Follower<'_> {
    async fn run(
        mut self,
        mut stream: ExecStream,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Ended> {
        let ended = loop {
            match self.follow_one(stream, interrupts).await? {
                Over::Ended(ended) => break ended,
                Over::Broken(error) => match self.attach_again(error, interrupts).await? {
                    Ok(again) => stream = again,
                    Err(signal) => break Ended::Interrupted(signal),
                },
            }
        };
        if let Ended::Interrupted(_) = ended {
            // What is queued for a reader that stopped reading would keep us here.
            return Ok(ended);
        }
        match self.writer.finish().await {
            Ok(()) => Ok(ended),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                Ok(Ended::Interrupted(SIGPIPE))
            }
            Err(error) => Err(error).context("cannot write the program's output"),
        }
    }

    /// Follows until the program ends or the connection does.
    async fn follow_one(
        &mut self,
        stream: ExecStream,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Over> {
        let ExecStream {
            input, mut output, ..
        } = stream;
        let mut resized = signal(SignalKind::window_change()).context("cannot catch SIGWINCH")?;
        let feeding = self
            .stdin
            .clone()
            .map(|stdin| tokio::spawn(stdin.feed(input.clone())));
        let over = loop {
            tokio::select! {
                event = output.next() => match event {
                    Ok(event) => {
                        if let Some(ended) = self.take(event, interrupts).await {
                            break Ok(Over::Ended(ended));
                        }
                    }
                    Err(error @ (ClientError::Broken(_) | ClientError::NotReachable { .. })) => {
                        break Ok(Over::Broken(error));
                    }
                    Err(error) => break Err(error.into()),
                },
                signal = interrupts.next() => {
                    if let Some(ended) = self.interrupt(signal, &input).await {
                        break Ok(Over::Ended(ended));
                    }
                }
                _ = resized.recv(), if self.tty => {
                    let size = terminal::size();
                    // A connection that is over is noticed by its output.
                    let _ = input.resize(size.cols, size.rows).await;
                }
            }
        };
        if let Some(feeding) = feeding {
            feeding.abort();
            // Until it has let go of stdin.
            let _ = feeding.await;
        }
        let lossy = |stdin: &Stdin| !self.tty && stdin.may_be_lost(&input);
        if matches!(over, Ok(Over::Broken(_))) && self.stdin.as_ref().is_some_and(lossy) {
            let failure = Failure::new(
                exit::PANDO_FAILED,
                "the daemon went away while it had input for the program",
            );
            return Err(failure
                .hint("the program may still run, with some of its input missing")
                .into());
        }
        over
    }

    /// Handles what the program did; `Some` at its end.
    async fn take(&mut self, event: StreamEvent, interrupts: &mut Interrupts) -> Option<Ended> {
        match event {
            StreamEvent::Output {
                stream,
                data,
                next_offset,
            } => {
                let target = match stream {
                    OutputStream::Stdout | OutputStream::Tty => Target::Stdout,
                    OutputStream::Stderr => Target::Stderr,
                };
                let written = tokio::select! {
                    written = self.writer.write(target, data) => written,
                    signal = interrupts.next(), if self.on_signal == OnSignal::End => {
                        return Some(Ended::Interrupted(signal));
                    }
                };
                self.next_offset = next_offset;
                (!written).then_some(Ended::Interrupted(SIGPIPE))
            }
            StreamEvent::Gap { lost_bytes } => {
                let note = format!("pando: {lost_bytes} bytes of output were lost here\n");
                self.writer.write(Target::Stderr, note.into()).await;
                None
            }
            StreamEvent::Exit {
                exit_code,
                signal,
                timed_out,
            } => {
                if timed_out {
                    let note = "pando: the timeout ended the program\n";
                    self.writer.write(Target::Stderr, note.into()).await;
                }
                let code = exit::of_program(exit_code, signal, timed_out);
                Some(Ended::Program(code))
            }
        }
    }

    /// Handles a signal to this command; `Some` if it ends here.
    async fn interrupt(&mut self, signal: u32, input: &ExecInput) -> Option<Ended> {
        self.signals += 1;
        match (self.on_signal, self.signals) {
            (OnSignal::End, _) => Some(Ended::Interrupted(signal)),
            (OnSignal::Forward, 1) => {
                let _ = input.signal(signal).await;
                None
            }
            (OnSignal::Forward, 2) => {
                let _ = input.signal(SIGKILL).await;
                None
            }
            (OnSignal::Forward, _) => Some(Ended::Interrupted(signal)),
        }
    }

    /// Waits for the next daemon; `Err` holds a signal that came meanwhile.
    async fn attach_again(
        &self,
        lost: ClientError,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Result<ExecStream, u32>> {
        let note = "pando: the daemon went away, waiting for it\r\n";
        self.writer
            .write(Target::Stderr, Bytes::from_static(note.as_bytes()))
            .await;
        let request = StreamRequest {
            attach: Some(self.process_id.clone()),
            from_offset: Some(self.next_offset),
            ..StreamRequest::default()
        };
        let began = Instant::now();
        while began.elapsed() < REATTACH_DEADLINE {
            let attaching = async {
                tokio::time::sleep(REATTACH_PAUSE).await;
                self.client.exec_stream(self.sandbox, &request).await
            };
            let attached = tokio::select! {
                attached = attaching => attached,
                signal = interrupts.next() => return Ok(Err(signal)),
            };
            match attached {
                Ok(stream) => return Ok(Ok(stream)),
                Err(ClientError::NotReachable { .. } | ClientError::Broken(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let failure = Failure::new(
            exit::PANDO_FAILED,
            format!("lost sight of the program: {lost}"),
        );
        Err(failure
            .hint("it may still run; `pando exec` in the same sandbox to look")
            .into())
    }
}

/// This command's stdin on its way to the program; outlives a connection.
#[derive(Clone)]
struct Stdin {
    pieces: Arc<Mutex<mpsc::Receiver<Bytes>>>,
    /// A piece was taken and not yet handed over whole.
    under_way: Arc<AtomicBool>,
}

impl Stdin {
    fn read() -> Self {
        let pieces = Arc::new(Mutex::new(stdio::read_stdin()));
        Self {
            pieces,
            under_way: Arc::default(),
        }
    }

    /// Feeds the program until stdin ends or the connection does.
    async fn feed(self, input: ExecInput) {
        let mut pieces = self.pieces.lock().await;
        while let Some(piece) = pieces.recv().await {
            self.under_way.store(true, Ordering::Relaxed);
            if input.stdin(piece).await.is_err() {
                return;
            }
            self.under_way.store(false, Ordering::Relaxed);
        }
        let _ = input.close_stdin().await;
    }

    /// Whether the program may miss some of what was read.
    fn may_be_lost(&self, input: &ExecInput) -> bool {
        self.under_way.load(Ordering::Relaxed) || input.unacknowledged_bytes() > 0
    }
}

//! Standard input and output as messages.
//!
//! Both block in the kernel, so each has a thread: a reader that stops nobody
//! from leaving, a writer that lets signals through while a pipe is full.

use bytes::Bytes;
use std::io::{self, Read as _, Write};
use std::thread;
use tokio::sync::{mpsc, oneshot};

/// Pieces under way between a thread and the command, each at most [`PIECE_BYTES`] for input.
const PIECES: usize = 16;

/// Bytes read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Reads stdin until its end; the channel ends with it. The thread may outlive the command.
pub(crate) fn read_stdin() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PIECES);
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    if sender
                        .blocking_send(Bytes::copy_from_slice(&buffer[..length]))
                        .is_err()
                    {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // As good as its end: there is no more to come.
                Err(_) => return,
            }
        }
    });
    receiver
}

/// Where output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Stdout,
    Stderr,
}

/// Writes stdout and stderr in the order they are given.
#[derive(Debug)]
pub(crate) struct Writer {
    pieces: mpsc::Sender<(Target, Bytes)>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Writer {
    /// Starts the writer.
    pub(crate) fn start() -> Self {
        let (pieces, mut queued) = mpsc::channel::<(Target, Bytes)>(PIECES);
        let (report, done) = oneshot::channel();
        thread::spawn(move || {
            let mut outcome = Ok(());
            while let Some((target, bytes)) = queued.blocking_recv() {
                outcome = match target {
                    Target::Stdout => write(&mut io::stdout().lock(), &bytes),
                    Target::Stderr => write(&mut io::stderr().lock(), &bytes),
                };
                if outcome.is_err() {
                    break;
                }
            }
            let _ = report.send(outcome);
        });
        Self { pieces, done }
    }

    /// Queues output; waits while the reader of our output is slow. `false` if nobody reads it any more.
    pub(crate) async fn write(&self, target: Target, bytes: Bytes) -> bool {
        self.pieces.send((target, bytes)).await.is_ok()
    }

    /// Waits until all is written.
    pub(crate) async fn finish(self) -> io::Result<()> {
        drop(self.pieces);
        self.done.await.unwrap_or(Ok(()))
    }
}

fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}

//! Stdin on its way from a WebSocket to a process: bounded, in order, in large pieces.
//!
//! Each hand-over is a round trip into the guest, so what queues up meanwhile goes
//! together in the next one.

use bytes::{Bytes, BytesMut};
use pando_api::stream::STDIN_WINDOW_BYTES;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

/// Bytes handed over at once at most: many round trips are saved, and no message of
/// the shim's or the agent's comes near its limit.
const BATCH_BYTES: usize = 256 << 10;

/// Messages that wait at once, besides their bytes.
const MESSAGES: usize = 1024;

/// What the process gets next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stdin {
    /// Bytes.
    Data(Bytes),
    /// There is no more.
    End,
}

/// The end that is filled.
#[derive(Debug)]
pub(super) struct StdinSender {
    messages: mpsc::Sender<Stdin>,
    window: Arc<Semaphore>,
}

/// The end that is emptied.
#[derive(Debug)]
pub(super) struct StdinReceiver {
    messages: mpsc::Receiver<Stdin>,
    window: Arc<Semaphore>,
    /// Taken out of the queue, and not part of the batch before it.
    held: Option<Stdin>,
}

/// A queue that takes [`STDIN_WINDOW_BYTES`].
pub(super) fn stdin_queue() -> (StdinSender, StdinReceiver) {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    let window = Arc::new(Semaphore::new(STDIN_WINDOW_BYTES));
    let filled = StdinSender {
        messages: sender,
        window: Arc::clone(&window),
    };
    (
        filled,
        StdinReceiver {
            messages: receiver,
            window,
            held: None,
        },
    )
}

impl StdinSender {
    /// Queues input; waits while the window is full. Input for a queue that nobody empties any more is dropped.
    pub(super) async fn send(&self, input: Stdin) {
        if let Stdin::Data(data) = &input {
            // A message of a WebSocket is far below the window, which fits 32 bits.
            let permits = u32::try_from(data.len().min(STDIN_WINDOW_BYTES)).unwrap_or(u32::MAX);
            match self.window.acquire_many(permits).await {
                Ok(permit) => permit.forget(),
                Err(_) => return,
            }
        }
        let _ = self.messages.send(input).await;
    }
}

impl StdinReceiver {
    /// The next input, with what waits behind it; `None` when the sender is gone.
    pub(super) async fn next(&mut self) -> Option<Stdin> {
        let first = match self.held.take() {
            Some(held) => held,
            None => self.messages.recv().await?,
        };
        let Stdin::Data(first) = first else {
            return Some(first);
        };
        let Ok(second) = self.messages.try_recv() else {
            return Some(Stdin::Data(first));
        };
        let mut batch = BytesMut::from(first);
        let mut more = Some(second);
        while let Some(next) = more {
            match next {
                Stdin::Data(data) if batch.len() + data.len() <= BATCH_BYTES => {
                    batch.extend_from_slice(&data);
                    more = self.messages.try_recv().ok();
                }
                other => {
                    self.held = Some(other);
                    break;
                }
            }
        }
        Some(Stdin::Data(batch.freeze()))
    }

    /// So many bytes were handed over: there is room for as many.
    pub(super) fn consumed(&self, bytes: usize) {
        self.window.add_permits(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn data(length: usize) -> Stdin {
        Stdin::Data(Bytes::from(vec![b'x'; length]))
    }

    #[tokio::test]
    async fn what_waits_goes_together_and_the_end_stays_behind_it() {
        let (sender, mut receiver) = stdin_queue();
        for _ in 0..10 {
            sender.send(data(BATCH_BYTES / 4)).await;
            receiver.consumed(BATCH_BYTES / 4);
        }
        sender.send(Stdin::End).await;
        assert_eq!(receiver.next().await, Some(data(BATCH_BYTES)));
        assert_eq!(receiver.next().await, Some(data(BATCH_BYTES)));
        assert_eq!(receiver.next().await, Some(data(BATCH_BYTES / 2)));
        assert_eq!(receiver.next().await, Some(Stdin::End));
        drop(sender);
        assert_eq!(receiver.next().await, None);
    }

    #[tokio::test]
    async fn a_full_window_holds_the_sender_until_something_is_consumed() {
        let (sender, receiver) = stdin_queue();
        sender.send(data(STDIN_WINDOW_BYTES)).await;
        let waiting = sender.send(data(1));
        tokio::pin!(waiting);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), &mut waiting)
                .await
                .is_err()
        );
        receiver.consumed(1);
        tokio::time::timeout(Duration::from_secs(5), waiting)
            .await
            .unwrap();
    }
}

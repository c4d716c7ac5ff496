//! What a process has written and its followers have not yet taken.
//!
//! While somebody follows, the slowest follower sets the pace: the buffer fills,
//! then the pipe, then the process waits. While nobody does, the newest bytes are
//! kept and handed to the next follower.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

/// Bytes kept of a process, what a chunk costs beside its bytes included. With 50
/// stalled followers this is 13 MiB, in a guest that may have 256.
const MAX_BYTES: usize = 256 << 10;

/// What a chunk costs beside its bytes.
const CHUNK_COST: usize = 128;

/// Most bytes that one event carries.
const MAX_JOINED_BYTES: usize = 64 << 10;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal.
    Terminal,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The exit code or the signal.
    pub status: ExitStatus,
    /// The deadline passed and the process group was killed.
    pub timed_out: bool,
    /// From the request to the program's begin.
    pub started: Duration,
    /// From the request to its end.
    pub ended: Duration,
}

/// What the kernel says about the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// Exited by itself.
    Code(i32),
    /// Ended by a signal.
    Signal(i32),
}

/// What a follower gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Output.
    Data(Stream, Vec<u8>),
    /// The last event.
    End(Exit),
}

#[derive(Default)]
struct Buffer {
    chunks: VecDeque<(Stream, Bytes)>,
    /// The number of the first chunk kept.
    first: u64,
    cost: usize,
    /// The number of the next chunk for each follower.
    followers: HashMap<u64, u64>,
    next_follower: u64,
    exit: Option<Exit>,
}

impl Buffer {
    fn pop(&mut self) {
        if let Some((_, bytes)) = self.chunks.pop_front() {
            self.cost -= bytes.len() + CHUNK_COST;
            self.first += 1;
        }
    }

    /// The chunks of one stream from this index on, joined into one as far as they
    /// fit, and their number: many small writes are to become few messages.
    fn joined_from(&self, index: usize) -> Option<(Stream, Vec<u8>, u64)> {
        let mut rest = self.chunks.iter().skip(index);
        let (stream, first) = rest.next()?;
        let mut joined = first.to_vec();
        let mut count = 1;
        for (next_stream, next) in rest {
            if next_stream != stream || joined.len() + next.len() > MAX_JOINED_BYTES {
                break;
            }
            joined.extend_from_slice(next);
            count += 1;
        }
        Some((*stream, joined, count))
    }

    /// Drops what every follower has taken. Without followers nothing is taken.
    fn drop_taken(&mut self) {
        if let Some(&slowest) = self.followers.values().min() {
            while self.first < slowest {
                self.pop();
            }
        }
    }
}

/// One process's output.
#[derive(Default)]
pub(crate) struct Output {
    buffer: Mutex<Buffer>,
    /// There is more to take.
    more: Notify,
    /// There is more room.
    room: Notify,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a chunk; waits for room while somebody follows.
    pub(crate) async fn push(&self, stream: Stream, bytes: Bytes) {
        let cost = bytes.len() + CHUNK_COST;
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            {
                let mut buffer = self.lock();
                if buffer.followers.is_empty() {
                    while buffer.cost + cost > MAX_BYTES && !buffer.chunks.is_empty() {
                        buffer.pop();
                    }
                }
                if buffer.chunks.is_empty() || buffer.cost + cost <= MAX_BYTES {
                    buffer.cost += cost;
                    buffer.chunks.push_back((stream, bytes));
                    break;
                }
            }
            room.await;
        }
        self.more.notify_waiters();
    }

    /// Nothing more will come.
    pub(crate) fn finish(&self, exit: Exit) {
        self.lock().exit = Some(exit);
        self.more.notify_waiters();
    }

    /// Starts following: from what nobody has seen if nobody follows yet, from now
    /// on otherwise.
    pub(crate) fn follow(self: &Arc<Self>) -> Follower {
        let mut buffer = self.lock();
        let start = match buffer.followers.is_empty() {
            true => buffer.first,
            false => buffer.first + buffer.chunks.len() as u64,
        };
        let id = buffer.next_follower;
        buffer.next_follower += 1;
        buffer.followers.insert(id, start);
        drop(buffer);
        Follower {
            output: Arc::clone(self),
            id,
        }
    }
}

/// One that takes a process's output.
pub(crate) struct Follower {
    output: Arc<Output>,
    id: u64,
}

impl Follower {
    /// The next event. After [`Event::End`] the same again.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            let mut more = std::pin::pin!(self.output.more.notified());
            more.as_mut().enable();
            if let Some(event) = self.take() {
                return event;
            }
            more.await;
        }
    }

    fn take(&self) -> Option<Event> {
        let mut buffer = self.output.lock();
        let next = *buffer.followers.get(&self.id)?;
        let index = (next - buffer.first) as usize;
        let (stream, bytes, count) = match buffer.joined_from(index) {
            Some(joined) => joined,
            None => return buffer.exit.map(Event::End),
        };
        buffer.followers.insert(self.id, next + count);
        buffer.drop_taken();
        drop(buffer);
        self.output.room.notify_waiters();
        Some(Event::Data(stream, bytes))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut buffer = self.output.lock();
        buffer.followers.remove(&self.id);
        buffer.drop_taken();
        drop(buffer);
        self.output.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: Exit = Exit {
        status: ExitStatus::Code(0),
        timed_out: false,
        started: Duration::ZERO,
        ended: Duration::ZERO,
    };

    fn chunk(byte: u8) -> Bytes {
        vec![byte; 32 << 10].into()
    }

    async fn is_stuck(future: impl Future) -> bool {
        tokio::time::timeout(Duration::from_millis(30), future)
            .await
            .is_err()
    }

    #[tokio::test]
    async fn a_follower_gets_all_in_order_then_the_end() {
        let output = Arc::new(Output::default());
        let mut follower = output.follow();
        output.push(Stream::Stdout, "a".into()).await;
        output.push(Stream::Stdout, "A".into()).await;
        output.push(Stream::Stderr, "b".into()).await;
        output.finish(EXIT);
        assert_eq!(
            follower.next().await,
            Event::Data(Stream::Stdout, "aA".into())
        );
        assert_eq!(
            follower.next().await,
            Event::Data(Stream::Stderr, "b".into())
        );
        assert_eq!(follower.next().await, Event::End(EXIT));
        assert_eq!(follower.next().await, Event::End(EXIT));
    }

    #[tokio::test]
    async fn the_slowest_follower_sets_the_pace_until_it_goes() {
        let output = Arc::new(Output::default());
        let (slow, mut fast) = (output.follow(), output.follow());
        for byte in 0..7 {
            output.push(Stream::Stdout, chunk(byte)).await;
            fast.next().await;
        }
        assert!(is_stuck(output.push(Stream::Stdout, chunk(7))).await);
        drop(slow);
        output.push(Stream::Stdout, chunk(7)).await;
        assert_eq!(
            fast.next().await,
            Event::Data(Stream::Stdout, chunk(7).to_vec())
        );
    }

    #[tokio::test]
    async fn unfollowed_output_keeps_its_newest_bytes_for_the_next_follower() {
        let output = Arc::new(Output::default());
        drop(output.follow());
        for byte in 0..100 {
            output.push(Stream::Stdout, chunk(byte)).await;
        }
        let mut follower = output.follow();
        let kept = [chunk(93), chunk(94)].concat();
        assert_eq!(follower.next().await, Event::Data(Stream::Stdout, kept));
    }

    #[tokio::test]
    async fn a_second_follower_gets_live_output_only() {
        let output = Arc::new(Output::default());
        let _first = output.follow();
        output.push(Stream::Stdout, "before".into()).await;
        let mut second = output.follow();
        assert!(is_stuck(second.next()).await);
        output.push(Stream::Stdout, "after".into()).await;
        assert_eq!(
            second.next().await,
            Event::Data(Stream::Stdout, "after".into())
        );
    }

    #[tokio::test]
    async fn a_waiting_follower_is_woken() {
        let output = Arc::new(Output::default());
        let mut follower = output.follow();
        let waiting = tokio::spawn(async move { follower.next().await });
        tokio::task::yield_now().await;
        output.push(Stream::Terminal, "late".into()).await;
        let event = waiting.await.expect("task");
        assert_eq!(event, Event::Data(Stream::Terminal, "late".into()));
    }
}

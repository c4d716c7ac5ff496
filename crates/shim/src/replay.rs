//! The last part of a process' output, addressed by offset.
//!
//! Offsets count bytes over stdout, stderr and terminal together, in the order in
//! which they came, so that a follower that comes back can go on where it was.

use bytes::Bytes;
use std::collections::VecDeque;

/// Which output a chunk was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
    Tty,
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) stream: Stream,
    pub(crate) data: Bytes,
    /// Offset of the first byte.
    pub(crate) offset: u64,
}

impl Chunk {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    /// The part of it from `offset` on.
    fn from(&self, offset: u64) -> Self {
        let skip = usize::try_from(offset.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let skip = skip.min(self.data.len());
        Self {
            stream: self.stream,
            data: self.data.slice(skip..),
            offset: self.offset + skip as u64,
        }
    }
}

/// What a follower gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Output from the asked offset on.
    Chunk(Chunk),
    /// The asked offset is no longer kept; go on from `resume_at`.
    Gap { lost_bytes: u64, resume_at: u64 },
    /// Nothing yet.
    Nothing,
}

/// A bounded log of chunks, the limit and at most one chunk more: whole chunks fall out at the
/// old end.
#[derive(Debug)]
pub(crate) struct Replay {
    chunks: VecDeque<Chunk>,
    kept_bytes: usize,
    limit_bytes: usize,
    end: u64,
}

impl Replay {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            kept_bytes: 0,
            limit_bytes,
            end: 0,
        }
    }

    /// Appends output; the oldest chunks go when the limit is passed.
    pub(crate) fn push(&mut self, stream: Stream, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.kept_bytes += data.len();
        let chunk = Chunk {
            stream,
            data,
            offset: self.end,
        };
        self.end = chunk.end();
        self.chunks.push_back(chunk);
        // Never less than the limit: that much is promised.
        while let Some(oldest) = self.chunks.front()
            && self.kept_bytes - oldest.data.len() >= self.limit_bytes
        {
            self.kept_bytes -= oldest.data.len();
            self.chunks.pop_front();
        }
    }

    /// All that is kept, in order.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter()
    }

    /// Offset of the first byte that is kept.
    pub(crate) fn begins_at(&self) -> u64 {
        self.chunks.front().map_or(self.end, |chunk| chunk.offset)
    }

    /// What comes at `offset`. An offset beyond the end waits for it.
    pub(crate) fn next(&self, offset: u64) -> Next {
        let Some(first) = self.chunks.front() else {
            return Next::Nothing;
        };
        if offset < first.offset {
            return Next::Gap {
                lost_bytes: first.offset - offset,
                resume_at: first.offset,
            };
        }
        // Chunks are in order of offset: the one that holds `offset` is found by halving.
        let index = self.chunks.partition_point(|chunk| chunk.end() <= offset);
        self.chunks
            .get(index)
            .map_or(Next::Nothing, |chunk| Next::Chunk(chunk.from(offset)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_late_follower_gets_all_and_an_older_one_goes_on_inside_a_chunk() {
        let mut replay = Replay::new(100);
        replay.push(Stream::Stdout, Bytes::from_static(b"hello"));
        replay.push(Stream::Stderr, Bytes::from_static(b"world"));
        let Next::Chunk(chunk) = replay.next(7) else {
            panic!()
        };
        assert_eq!(
            (chunk.stream, &chunk.data[..], chunk.end()),
            (Stream::Stderr, &b"rld"[..], 10)
        );
        assert_eq!(replay.next(10), Next::Nothing);
    }

    proptest! {
        /// Whatever is written, a follower that reads along sees every byte in order; one
        /// that comes late sees a gap of the right size and then the same bytes.
        #[test]
        fn nothing_kept_is_lost(writes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..40), start in 0u64..800) {
            let mut replay = Replay::new(200);
            let mut all = Vec::new();
            for write in &writes {
                replay.push(Stream::Stdout, Bytes::copy_from_slice(write));
                all.extend_from_slice(write);
            }
            let mut offset = start;
            let mut seen = Vec::new();
            loop {
                match replay.next(offset) {
                    Next::Chunk(chunk) => { prop_assert_eq!(chunk.offset, offset); offset = chunk.end(); seen.extend_from_slice(&chunk.data); }
                    Next::Gap { lost_bytes, resume_at } => { prop_assert_eq!(offset + lost_bytes, resume_at); prop_assert!(seen.is_empty()); offset = resume_at; }
                    Next::Nothing => break,
                }
            }
            let from = all.len() - seen.len();
            prop_assert_eq!(&seen[..], &all[from..]);
            prop_assert!(start > all.len() as u64 || offset == all.len() as u64);
            prop_assert!(replay.kept_bytes < 200 + 40 && replay.kept_bytes >= all.len().min(200));
        }
    }
}

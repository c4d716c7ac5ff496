//! The journal as callers read it: a page, or page after page as events are written.
//!
//! Who follows has no buffer here. A write raises a number; whoever waits for it reads the
//! next page of the index when its own reader takes it, so that a slow reader costs
//! nothing and misses nothing that is kept.

use crate::EngineError;
use crate::engine::Engine;
use crate::request::{Caller, Event, EventFilter};
use futures::stream::{BoxStream, StreamExt as _};
use pando_store::{EventQuery, EventRow, Index, IndexError};
use tokio::sync::watch;

/// Events in one answer, at most.
const MAX_EVENTS: u32 = 1000;

/// Events that a follower is given at once: some 20 KiB.
const FOLLOWED_EVENTS: u32 = 100;

/// Wakes those who follow the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Counts writes; its value means nothing else.
    written: watch::Sender<u64>,
}

impl Journal {
    /// Is told of every event that is written to this index.
    pub(crate) fn of(index: &Index) -> Result<Self, IndexError> {
        let written = watch::Sender::new(0);
        let writer = written.clone();
        index.on_event(move || writer.send_modify(|count| *count += 1))?;
        Ok(Self { written })
    }
}

impl Engine {
    /// The caller's events after a sequence number, oldest first.
    ///
    /// # Errors
    /// The index failed.
    pub async fn events(
        &self,
        caller: &Caller,
        filter: &EventFilter,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Event>, EngineError> {
        let query = self.event_query(caller, filter, after, limit.min(MAX_EVENTS));
        let page = self.blocking(move |inner| inner.index.journal(&query));
        Ok(page.await?.events.into_iter().map(event).collect())
    }

    /// The caller's events after a sequence number, then those to come, in order and without
    /// a gap, until the daemon ends; a follower goes on after the last it was given.
    pub fn follow_events(
        &self,
        caller: &Caller,
        filter: &EventFilter,
        after: u64,
    ) -> BoxStream<'static, Result<Vec<Event>, EngineError>> {
        let follower = Follower {
            query: self.event_query(caller, filter, after, FOLLOWED_EVENTS),
            written: self.inner.journal.written.subscribe(),
            engine: self.clone(),
        };
        let pages = futures::stream::try_unfold(follower, Follower::next);
        pages.take_until(self.ending()).boxed()
    }

    fn event_query(
        &self,
        caller: &Caller,
        filter: &EventFilter,
        after: u64,
        limit: u32,
    ) -> EventQuery {
        // A name is its sandbox's while that is there; what is gone has its id alone.
        let id_of = |sandbox: &String| match self.inner.sandboxes.find(caller, sandbox) {
            Ok(entry) => entry.id.to_string(),
            Err(_) => sandbox.clone(),
        };
        EventQuery {
            tenant: caller.tenant.clone(),
            after,
            limit,
            subject: filter.sandbox.as_ref().map(id_of),
            kind_prefix: filter.kind_prefix.clone(),
        }
    }
}

struct Follower {
    engine: Engine,
    query: EventQuery,
    written: watch::Receiver<u64>,
}

impl Follower {
    /// Waits until there is something.
    async fn next(mut self) -> Result<Option<(Vec<Event>, Self)>, EngineError> {
        loop {
            // Marked seen before reading: a write in between wakes the wait below.
            self.written.borrow_and_update();
            let query = self.query.clone();
            let page = self
                .engine
                .blocking(move |inner| inner.index.journal(&query));
            let page = page.await?;
            self.query.after = page.read_to;
            if !page.events.is_empty() {
                return Ok(Some((page.events.into_iter().map(event).collect(), self)));
            }
            if self.written.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

fn event(row: EventRow) -> Event {
    Event {
        sequence: row.sequence,
        at: row.at,
        kind: row.kind,
        subject: row.subject,
        detail: row.detail,
    }
}

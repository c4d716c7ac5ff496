//! Reading the journal: a page at a time, and a word when there is more.

use crate::index::{EventRow, Index, IndexError, time};
use rusqlite::hooks::Action;
use rusqlite::params;

/// The table whose rows are events.
const TABLE: &str = "events";

/// Which events are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Whose.
    pub tenant: String,
    /// Only those with a higher number.
    pub after: u64,
    /// At most this many.
    pub limit: u32,
    /// Only those about this id.
    pub subject: Option<String>,
    /// Only those whose kind begins like this; empty for all.
    pub kind_prefix: String,
}

/// A part of the journal, the oldest event first.
#[derive(Clone, Debug)]
pub struct EventPage {
    /// Those that fit.
    pub events: Vec<EventRow>,
    /// Where to read on: every event up to this number was looked at.
    pub read_to: u64,
    /// Whether more may follow at once.
    pub more: bool,
}

impl Index {
    /// The events that fit the query.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn journal(&self, query: &EventQuery) -> Result<EventPage, IndexError> {
        let connection = self.lock();
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let mut statement = connection.prepare_cached(
            "SELECT sequence, at_ms, kind, subject, detail FROM events
             WHERE tenant = ?1 AND sequence > ?2
               AND (?3 IS NULL OR subject = ?3) AND substr(kind, 1, length(?4)) = ?4
             ORDER BY sequence LIMIT ?5",
        )?;
        let asked = params![
            query.tenant,
            after,
            query.subject,
            query.kind_prefix,
            query.limit
        ];
        let rows = statement.query_map(asked, |row| {
            Ok(EventRow {
                sequence: row.get::<_, i64>(0)?.unsigned_abs(),
                at: time(row.get(1)?),
                kind: row.get(2)?,
                subject: row.get(3)?,
                detail: row.get(4)?,
            })
        })?;
        let events = rows.collect::<Result<Vec<_>, _>>()?;
        let more = events.len() == usize::try_from(query.limit).unwrap_or(usize::MAX);
        let read_to = match (more, events.last()) {
            (true, Some(last)) => last.sequence,
            // Under the same lock: nothing was written in between.
            _ => connection
                .prepare_cached("SELECT coalesce(max(sequence), 0) FROM events")?
                .query_row([], |row| row.get::<_, i64>(0))?
                .unsigned_abs(),
        };
        Ok(EventPage {
            events,
            read_to: read_to.max(query.after),
            more,
        })
    }

    /// Calls `written` whenever an event is written, by whatever statement, and before it is
    /// committed: who reads then waits for the writer's lock and finds it. It must not
    /// use the index itself. One call replaces the one before.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn on_event(&self, mut written: impl FnMut() + Send + 'static) -> Result<(), IndexError> {
        let hook = move |action, _: &str, table: &str, _| {
            if action == Action::SQLITE_INSERT && table == TABLE {
                written();
            }
        };
        Ok(self.lock().update_hook(Some(hook))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewEvent;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn write(index: &Index, tenant: &str, kind: &str, subject: &str) {
        let event = NewEvent {
            tenant,
            kind,
            subject,
            detail: "",
        };
        index.add_event(&event).unwrap();
    }

    #[test]
    fn a_filtered_page_says_how_far_it_looked_and_every_write_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let index = Index::open(&directory.path().join("pando.db")).unwrap();
        let told = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&told);
        index
            .on_event(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        for number in 0..3 {
            write(&index, "a", "sandbox.running", &format!("s{number}"));
            write(&index, "a", "snapshot.taken", "n");
            write(&index, "b", "sandbox.running", "s0");
        }
        assert_eq!(told.load(Ordering::Relaxed), 9);
        index.set_value("no", "event").unwrap();
        assert_eq!(told.load(Ordering::Relaxed), 9);

        let ask = |after, limit, subject: Option<&str>, kind: &str| {
            let query = EventQuery {
                tenant: "a".to_owned(),
                after,
                limit,
                subject: subject.map(ToOwned::to_owned),
                kind_prefix: kind.to_owned(),
            };
            let page = index.journal(&query).unwrap();
            let numbers: Vec<_> = page.events.iter().map(|event| event.sequence).collect();
            (numbers, page.read_to, page.more)
        };
        assert_eq!(ask(0, 2, None, ""), (vec![1, 2], 2, true));
        assert_eq!(ask(2, 9, None, ""), (vec![4, 5, 7, 8], 9, false));
        assert_eq!(ask(0, 9, Some("s1"), ""), (vec![4], 9, false));
        assert_eq!(ask(0, 9, None, "snapshot."), (vec![2, 5, 8], 9, false));
        assert_eq!(ask(0, 9, None, "%"), (vec![], 9, false));
        assert_eq!(ask(50, 9, None, ""), (vec![], 50, false));
    }
}

//! The columns that say how long a sandbox is there.

use crate::index::{Index, IndexError, NewEvent, insert_event, millis, time};
use pando_types::{Lifespan, OnTimeout};
use rusqlite::{Connection, Row, params};
use std::time::SystemTime;

/// How long a sandbox is there without being asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifetimeRow {
    /// From the moment that it runs; `None` is for ever.
    pub timeout: Option<Lifespan>,
    /// When that is over.
    pub expires_at: Option<SystemTime>,
    /// Without use; `None` is for ever.
    pub idle_timeout: Option<Lifespan>,
    /// What becomes of it when either is over.
    pub on_timeout: OnTimeout,
    /// Whether whoever needs it running wakes it.
    pub auto_resume: bool,
}

/// The columns of [`LifetimeRow`], in the order in which [`read`] expects them.
pub(crate) const COLUMNS: &str =
    "timeout_ms, expires_at_ms, idle_timeout_ms, on_timeout, auto_resume";

/// Reads the columns, the first of which has this number; `None` where one is malformed.
pub(crate) fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<LifetimeRow>> {
    let span = |index| {
        let millis: Option<i64> = row.get(index)?;
        let span = millis.map(|millis| Lifespan::from_millis(millis.unsigned_abs()));
        Ok::<_, rusqlite::Error>(span.transpose())
    };
    let (timeout, idle_timeout) = (span(first)?, span(first + 2)?);
    let on_timeout = row.get::<_, String>(first + 3)?.parse();
    let (Ok(timeout), Ok(idle_timeout), Ok(on_timeout)) = (timeout, idle_timeout, on_timeout)
    else {
        return Ok(None);
    };
    Ok(Some(LifetimeRow {
        timeout,
        expires_at: row.get::<_, Option<i64>>(first + 1)?.map(time),
        idle_timeout,
        on_timeout,
        auto_resume: row.get(first + 4)?,
    }))
}

/// Writes the columns of a sandbox.
pub(crate) fn write(
    connection: &Connection,
    id: &str,
    lifetime: &LifetimeRow,
) -> Result<(), IndexError> {
    let span = |span: Option<Lifespan>| span.map(Lifespan::as_millis).map(u64::cast_signed);
    connection.execute(
        "UPDATE sandboxes SET timeout_ms = ?2, expires_at_ms = ?3, idle_timeout_ms = ?4, on_timeout = ?5, auto_resume = ?6 WHERE id = ?1",
        params![
            id,
            span(lifetime.timeout),
            lifetime.expires_at.map(millis),
            span(lifetime.idle_timeout),
            lifetime.on_timeout.as_str(),
            lifetime.auto_resume
        ],
    )?;
    Ok(())
}

impl Index {
    /// Writes how long a sandbox is there, and its event, in one transaction.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn set_lifetime(
        &self,
        id: &str,
        lifetime: &LifetimeRow,
        event: &NewEvent<'_>,
    ) -> Result<(), IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        write(&transaction, id, lifetime)?;
        insert_event(&transaction, event)?;
        Ok(transaction.commit()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::StateChange;
    use crate::index::tests::{EVENT, fresh, row};
    use pando_types::SandboxState;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(seconds: u64) -> Option<SystemTime> {
        Some(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn a_lifetime_outlives_the_process_and_changes_with_the_state() {
        let (dir, index) = fresh();
        let whole = LifetimeRow {
            timeout: Some(Lifespan::MAX),
            expires_at: at(4_000_000_000),
            idle_timeout: Some(Lifespan::MIN),
            on_timeout: OnTimeout::Pause,
            auto_resume: true,
        };
        let mut with = row("a", None);
        with.lifetime = whole;
        index.add_sandbox(&with, &[EVENT]).unwrap();
        index.add_sandbox(&row("b", None), &[EVENT]).unwrap();
        let read = |index: &Index| {
            let rows = index.sandboxes().unwrap();
            (rows[0].lifetime, rows[1].lifetime)
        };
        assert_eq!(read(&index), (whole, LifetimeRow::default()));
        let change = StateChange {
            id: "a",
            state: SandboxState::Paused,
            reason: None,
            isolation: None,
            place: None,
            expires_at: None,
        };
        index.set_state(&change, "boot", &EVENT).unwrap();
        let asleep = LifetimeRow {
            expires_at: None,
            ..whole
        };
        assert_eq!(read(&index).0, asleep);
        let changed = LifetimeRow {
            timeout: None,
            ..whole
        };
        index.set_lifetime("b", &changed, &EVENT).unwrap();
        drop(index);
        let index = Index::open(&dir.path().join("pando.db")).unwrap();
        assert_eq!(read(&index), (asleep, changed));
    }

    #[test]
    fn what_no_version_wrote_is_malformed() {
        for wrong in [
            "timeout_ms = 1",
            "idle_timeout_ms = 9e15",
            "on_timeout = 'x'",
        ] {
            let (_dir, index) = fresh();
            index.add_sandbox(&row("a", None), &[EVENT]).unwrap();
            let statement = format!("UPDATE sandboxes SET {wrong}");
            index.lock().execute(&statement, []).unwrap();
            assert!(
                matches!(index.sandboxes(), Err(IndexError::Malformed(_))),
                "{wrong}"
            );
        }
    }
}

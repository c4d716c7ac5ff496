//! How long sandboxes are there without being asked for: timeouts, sleep, waking up.
//!
//! `rules` says what is due when and has no I/O; `keeper` carries it out; `activity` knows
//! whether a sandbox is used; `wake` lets those wait who need one that sleeps.

mod activity;
mod keeper;
mod rules;
mod wake;

pub(crate) use activity::{Activity, as_a_whole, by_pieces};
pub(crate) use rules::deadline;
pub(crate) use wake::{InUse, Waking};

use crate::EngineError;
use crate::engine::Engine;
use crate::request::{Caller, Lifetime, LifetimeChange, Sandbox};
use pando_store::{LifetimeRow, NewEvent};
use pando_types::Lifespan;
use std::time::SystemTime;
use tokio::sync::Notify;

/// What the keeper is told.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    /// A sandbox may be due earlier than was thought.
    changed: Notify,
}

impl Lifetimes {
    /// A sandbox, its state or its lifetime is new.
    pub(crate) fn have_changed(&self) {
        self.changed.notify_one();
    }
}

impl Lifetime {
    /// As the index keeps it, for a sandbox that does not run yet.
    pub(crate) fn row(self) -> LifetimeRow {
        LifetimeRow {
            timeout: self.timeout,
            expires_at: None,
            idle_timeout: self.idle_timeout,
            on_timeout: self.on_timeout,
            auto_resume: self.auto_resume,
        }
    }

    /// That of a row.
    pub(crate) fn of(row: &LifetimeRow) -> Self {
        Self {
            timeout: row.timeout,
            idle_timeout: row.idle_timeout,
            on_timeout: row.on_timeout,
            auto_resume: row.auto_resume,
        }
    }

    /// With the changes.
    pub(crate) fn with(self, change: LifetimeChange) -> Self {
        Self {
            timeout: change.timeout.unwrap_or(self.timeout),
            idle_timeout: change.idle_timeout.unwrap_or(self.idle_timeout),
            on_timeout: change.on_timeout.unwrap_or(self.on_timeout),
            auto_resume: change.auto_resume.unwrap_or(self.auto_resume),
        }
    }
}

impl Engine {
    /// Changes how long a sandbox is there. A timeout is counted from now, an idle timeout
    /// from now at the earliest; of a paused sandbox both from the moment at which it goes on.
    ///
    /// # Errors
    /// There is no such sandbox, or the index cannot be written.
    pub async fn change_lifetime(
        &self,
        caller: &Caller,
        sandbox: &str,
        change: LifetimeChange,
    ) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        let _turn = entry.turn.lock().await;
        if !self.inner.sandboxes.has(&entry) {
            return Err(EngineError::SandboxNotFound(entry.id.to_string()));
        }
        let row = entry.row();
        let changed = Lifetime::of(&row.lifetime).with(change);
        let before = match change.timeout {
            Some(timeout) => timeout.map(|timeout| SystemTime::now() + timeout.get()),
            None => row.lifetime.expires_at,
        };
        let timeout = changed.timeout.map(Lifespan::get);
        let written = LifetimeRow {
            expires_at: deadline(row.state, before, timeout, SystemTime::now()),
            ..changed.row()
        };
        let detail = sentence(&changed);
        let wrote = self.aside(move |inner| {
            let event = NewEvent {
                tenant: &row.tenant,
                kind: "sandbox.lifetime",
                subject: &row.id,
                detail: &detail,
            };
            inner.index.set_lifetime(&row.id, &written, &event)
        });
        wrote.await?.map_err(|error| EngineError::index(&error))?;
        entry.update(|row| row.lifetime = written);
        if change.idle_timeout.is_some() {
            entry.activity.touch();
        }
        self.inner.lifetimes.have_changed();
        entry.describe()
    }
}

/// For an event.
fn sentence(lifetime: &Lifetime) -> String {
    let span = |span: Option<Lifespan>| {
        span.map_or_else(
            || "none".to_owned(),
            |span| format!("{} s", span.get().as_secs_f64()),
        )
    };
    let wakes = match lifetime.auto_resume {
        true => ", wakes by itself",
        false => "",
    };
    format!(
        "timeout {}, idle timeout {}, then {}{wakes}",
        span(lifetime.timeout),
        span(lifetime.idle_timeout),
        lifetime.on_timeout
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::OnTimeout;

    #[test]
    fn a_change_changes_what_it_names_and_nothing_else() {
        let before = Lifetime {
            timeout: Some(Lifespan::MAX),
            idle_timeout: Some(Lifespan::MIN),
            on_timeout: OnTimeout::Pause,
            auto_resume: true,
        };
        assert_eq!(before.with(LifetimeChange::default()), before);
        let change = LifetimeChange {
            timeout: Some(None),
            on_timeout: Some(OnTimeout::Kill),
            ..LifetimeChange::default()
        };
        let after = before.with(change);
        assert_eq!((after.timeout, after.on_timeout), (None, OnTimeout::Kill));
        assert_eq!(after.idle_timeout, before.idle_timeout);
        assert!(after.auto_resume);
        assert_eq!(Lifetime::of(&after.row()), after);
        assert_eq!(
            sentence(&after),
            "timeout none, idle timeout 1 s, then kill, wakes by itself"
        );
    }
}

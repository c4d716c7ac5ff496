//! Whoever measures the engine: told of operations as they begin and end.
//!
//! The engine knows no metrics and no format of them. It tells one observer, which the
//! listener is, what it did, how long that took and what came of it; every word that it
//! says is one of a few. Each operation is a span of a trace, too.

use crate::EngineError;
use crate::engine::Engine;
use pando_types::SandboxId;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A new sandbox, until it answers.
    Create,
    /// A VM that is loaded or booted for a request, until its agent answers.
    Spawn,
    /// A start of a sandbox that is off.
    Start,
    /// A power-off in order.
    Stop,
    /// A removal.
    Remove,
    /// To disk.
    Pause,
    /// Back from it.
    Resume,
    /// A snapshot, until it is durable.
    Snapshot,
    /// A fork, all children of it.
    Fork,
    /// A rollback.
    Rollback,
    /// A program that is run to its end.
    Exec,
}

impl Operation {
    /// All.
    pub const ALL: [Self; 11] = [
        Self::Create,
        Self::Spawn,
        Self::Start,
        Self::Stop,
        Self::Remove,
        Self::Pause,
        Self::Resume,
        Self::Snapshot,
        Self::Fork,
        Self::Rollback,
        Self::Exec,
    ];

    /// A stable word for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Spawn => "spawn",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Remove => "remove",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Snapshot => "snapshot",
            Self::Fork => "fork",
            Self::Rollback => "rollback",
            Self::Exec => "exec",
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The caller asked for what cannot be.
    Refused,
    /// It is a fault of Pando's, of the host or of the sandbox.
    Failed,
    /// The caller went away.
    Abandoned,
}

impl Outcome {
    /// A stable word for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::Refused => "refused",
            Self::Failed => "error",
            Self::Abandoned => "abandoned",
        }
    }

    fn of<R>(result: &Result<R, EngineError>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(
                EngineError::SandboxGone { .. }
                | EngineError::SpawnFailed(_)
                | EngineError::SnapshotFailed(_)
                | EngineError::BakeFailed { .. }
                | EngineError::Corrupt { .. }
                | EngineError::DaemonRestarted { .. }
                | EngineError::NoSpace(_)
                | EngineError::Internal(_),
            ) => Self::Failed,
            Err(_) => Self::Refused,
        }
    }
}

/// An operation that is over.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Which.
    pub operation: Operation,
    /// What a sandbox was made from, where one was: `warm`, `bound`, `generic` or `none`; else empty.
    pub source: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// From its begin to its end.
    pub took: Duration,
}

/// Is told of operations; must return at once.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// One begins; each has one end.
    fn began(&self, operation: Operation);
    /// It is over.
    fn ended(&self, finished: &Finished);
}

/// The engine's one observer, once there is one.
#[derive(Debug, Default)]
pub(crate) struct Observed(OnceLock<Arc<dyn Observer>>);

/// Characters of an error in a trace: some quote a guest's console.
const ERROR_CHARACTERS: usize = 500;

/// An operation under way; dropped, it was abandoned.
pub(crate) struct Watch {
    observer: Option<Arc<dyn Observer>>,
    operation: Operation,
    began: Instant,
    span: Span,
}

impl Watch {
    /// What is done for it is done in this.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// It is over.
    pub(crate) fn end<R>(mut self, source: &'static str, result: &Result<R, EngineError>) {
        let outcome = Outcome::of(result);
        if let Err(error) = result
            && outcome == Outcome::Failed
            && !self.span.is_disabled()
        {
            let text: String = error.to_string().chars().take(ERROR_CHARACTERS).collect();
            self.span.record("otel.status_code", "ERROR");
            self.span.record("otel.status_description", text);
        }
        self.tell(source, outcome);
    }

    fn tell(&mut self, source: &'static str, outcome: Outcome) {
        self.span.record("pando.outcome", outcome.as_str());
        if !source.is_empty() {
            self.span.record("pando.made_from", source);
        }
        if let Some(observer) = self.observer.take() {
            observer.ended(&Finished {
                operation: self.operation,
                source,
                outcome,
                took: self.began.elapsed(),
            });
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tell("", Outcome::Abandoned);
    }
}

impl Engine {
    /// From now on this is told of operations; the first stays.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.inner.observed.0.set(observer);
    }

    /// An operation begins, on a sandbox where there is one.
    pub(crate) fn begin(&self, operation: Operation, sandbox: Option<&SandboxId>) -> Watch {
        let observer = self.inner.observed.0.get().cloned();
        if let Some(observer) = &observer {
            observer.began(operation);
        }
        Watch {
            observer,
            operation,
            began: Instant::now(),
            span: tracing::info_span!(
                target: pando_trace::TARGET,
                "operation",
                otel.name = operation.as_str(),
                otel.status_code = Empty,
                otel.status_description = Empty,
                pando.sandbox.id = sandbox.map(tracing::field::display),
                pando.outcome = Empty,
                pando.made_from = Empty,
            ),
        }
    }

    /// Does an operation on a sandbox that is told.
    pub(crate) async fn observed<R>(
        &self,
        operation: Operation,
        sandbox: &SandboxId,
        work: impl Future<Output = Result<R, EngineError>>,
    ) -> Result<R, EngineError> {
        let watch = self.begin(operation, Some(sandbox));
        let result = work.instrument(watch.span()).await;
        watch.end("", &result);
        result
    }
}

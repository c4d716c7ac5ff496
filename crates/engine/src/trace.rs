//! What shims and agents say that they did, as parts of the daemon's traces, and the traces of
//! programs in guests.

use pando_trace::{Component, Steps};
use pando_wire::shim::{ExecResponse, ReadyResponse, SnapshotResponse};
use std::collections::BTreeMap;
use std::time::SystemTime;
use tracing::Span;

/// Names the trace that a program is part of, for the program: OpenTelemetry,
/// "Environment Variables as Context Propagation Carriers".
const TRACEPARENT: &str = "TRACEPARENT";

/// The step of a spawn in which the agent answers.
const ANSWERED: &str = "answered";

/// A VM came up, for a request of `from`.
pub(crate) fn ready(from: SystemTime, ready: &ReadyResponse) {
    record(from, &ready.timing_ms, Some(ANSWERED), &ready.agent_ms);
}

/// A program ran to its end, for a request of `from`.
pub(crate) fn exec(from: SystemTime, done: &ExecResponse) {
    record(from, &done.timing_ms, None, &done.agent_ms);
}

/// A VM was captured, for a request of `from`.
pub(crate) fn snapshot(from: SystemTime, taken: &SnapshotResponse) {
    record(from, &taken.timing_ms, None, None);
}

/// The steps of the shim, and in its step `within`, or in all of it, those of the agent;
/// nothing where nobody traces, or where an older shim does not say.
fn record<'m>(
    from: SystemTime,
    shim: impl IntoIterator<Item = (&'m String, &'m f64)>,
    within: Option<&str>,
    agent: impl IntoIterator<Item = (&'m String, &'m f64)>,
) {
    let Some(steps) = Steps::within(&Span::current(), from) else {
        return;
    };
    let shim = steps.record(Component::Shim, owned(shim));
    let mut agent = owned(agent).peekable();
    let step = within.map_or_else(|| Some(shim.whole()), |step| shim.step(step));
    if let Some(step) = step
        && agent.peek().is_some()
    {
        step.record(Component::Agent, agent);
    }
}

fn owned<'m>(
    steps: impl IntoIterator<Item = (&'m String, &'m f64)>,
) -> impl Iterator<Item = (String, f64)> {
    steps.into_iter().map(|(step, ms)| (step.clone(), *ms))
}

/// Tells a program which trace it is part of, unless its caller did.
pub(crate) fn hand_on(env: &mut BTreeMap<String, String>) {
    if let Some(traceparent) = pando_trace::traceparent() {
        env.entry(TRACEPARENT.to_owned()).or_insert(traceparent);
    }
}

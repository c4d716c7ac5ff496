//! Named points at which a test can make the process die, as a power cut would.
//!
//! `PANDO_FAULT=snapshot.before_rename` aborts the process the first time that
//! point is reached. Unset, a point costs one atomic load.

use std::sync::OnceLock;

/// Every point, in the order in which a publish, a sandbox's life and what is done to it
/// reach them. Those of `shim.` are reached in a shim.
pub const POINTS: [&str; 23] = [
    "snapshot.layers_written",
    "snapshot.manifest_written",
    "snapshot.before_rename",
    "snapshot.after_rename",
    "sandbox.dir_made",
    "sandbox.claimed",
    "take.captured",
    "take.indexed",
    "take.parent_replaced",
    "pause.indexed",
    "pause.ended",
    "resume.spawned",
    "resume.indexed",
    "rollback.spawned",
    "rollback.indexed",
    "fork.taken",
    "flatten.before_exchange",
    "flatten.after_exchange",
    "shim.frozen",
    "shim.saved",
    "shim.switched",
    "shim.went_on",
    "shim.written",
];

static WANTED: OnceLock<Option<String>> = OnceLock::new();

/// Whether something else is to die at this point: `PANDO_FAULT=shim.saved!vmm` asks for the
/// VMM's end.
pub fn asks_for(name: &'static str, what: &str) -> bool {
    wanted().and_then(|wanted| wanted.split_once('!')) == Some((name, what))
}

/// Dies here if this point was asked for.
pub fn point(name: &'static str) {
    debug_assert!(
        POINTS.contains(&name),
        "fault point `{name}` is not in the list"
    );
    if wanted() == Some(name) {
        std::process::abort();
    }
}

fn wanted() -> Option<&'static str> {
    let wanted = WANTED.get_or_init(|| std::env::var("PANDO_FAULT").ok());
    wanted.as_deref()
}

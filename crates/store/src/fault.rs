//! Named points at which a test can make the process die, as a power cut would.
//!
//! `PANDO_FAULT=snapshot.before_rename` aborts the process the first time that
//! point is reached. Unset, a point costs one atomic load.

use std::sync::OnceLock;

/// Every point, in the order in which a publish and a sandbox's life reach them.
pub const POINTS: [&str; 6] = [
    "snapshot.layers_written",
    "snapshot.manifest_written",
    "snapshot.before_rename",
    "snapshot.after_rename",
    "sandbox.dir_made",
    "sandbox.claimed",
];

static WANTED: OnceLock<Option<String>> = OnceLock::new();

/// Dies here if this point was asked for.
pub fn point(name: &'static str) {
    debug_assert!(
        POINTS.contains(&name),
        "fault point `{name}` is not in the list"
    );
    let wanted = WANTED.get_or_init(|| std::env::var("PANDO_FAULT").ok());
    if wanted.as_deref() == Some(name) {
        std::process::abort();
    }
}

//! What a refused request must leave as it was.

use crate::World;
use std::collections::BTreeSet;
use std::path::Path;

/// What must be the same before and after a refused request.
#[derive(Debug, PartialEq, Eq)]
pub struct Footprint {
    processes: BTreeSet<u32>,
    descriptors: usize,
    files: BTreeSet<String>,
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
}

impl Footprint {
    /// As it is now.
    pub fn of(world: &World) -> Self {
        let daemon = world.daemon_pid();
        let descriptors = std::fs::read_dir(format!("/proc/{daemon}/fd"))
            .expect("the daemon's descriptors")
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            // Connections of the client's own pool come and go with the client.
            .filter(|target| !target.to_string_lossy().starts_with("socket:"))
            .count();
        Self {
            processes: world.processes(),
            descriptors,
            files: files_below(world.state_dir()),
            sandboxes: rows(world, "sandboxes", &["id", "name", "state", "parent"]),
            snapshots: rows(world, "snapshots", &["id", "name", "parent", "bytes"]),
        }
    }
}

/// A list of the API, with these fields of each row.
fn rows(world: &World, list: &str, fields: &[&str]) -> Vec<String> {
    let answer = world.api().get(&format!("/v1/{list}")).json();
    let rows = answer[list].as_array();
    rows.unwrap_or_else(|| panic!("no `{list}`: {answer}"))
        .iter()
        .map(|row| {
            let values = fields.iter().map(|field| row[*field].to_string());
            values.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

fn files_below(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        // SQLite's own files beside the index come and go.
        if !entry.file_name().to_string_lossy().starts_with("pando.db") {
            found.insert(entry.path().display().to_string());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(files_below(&entry.path()));
            }
        }
    }
    found
}

//! What a sandbox holds, told apart from what it held before, and what a state directory
//! holds, compared with what the daemon says it holds.

use pando_testkit::{Answer, World};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A process that counts in its memory and writes where it stands, in memory and on the disk.
const TICKER: &str = r#"cat > ~/ticker.py <<'END'
import os, time
ticks = 0
while True:
    ticks += 1
    for name in "/dev/shm/ticks", os.path.expanduser("~/ticks"):
        with open(name + ".new", "w") as file:
            file.write(f"{ticks}\n")
        os.rename(name + ".new", name)
    time.sleep(0.05)
END
setsid python3 ~/ticker.py < /dev/null > /dev/null 2>&1 &
until test -e ~/ticks; do sleep 0.02; done"#;

/// What is in memory, what is on the disk, past the guest's page cache, and whether the
/// ticker goes on.
const LOOK: &str = r#"for file in /dev/shm/data.*; do
    test -e $file && echo memory ${file##*.} $(md5sum < $file)
done
for file in ~/data.*; do
    test -e $file && echo disk ${file##*.} $(dd if=$file iflag=direct bs=1M status=none | md5sum)
done
if pgrep -x python3 > /dev/null; then
    read first < /dev/shm/ticks
    until read next < /dev/shm/ticks && test $next -gt $first; do sleep 0.02; done
    echo ticks $first
fi"#;

/// What a sandbox holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Checksums of data in memory, by the word it was marked with.
    memory: BTreeMap<String, String>,
    /// The same of files.
    disk: BTreeMap<String, String>,
    /// How far the ticker got, where there is one.
    ticks: Option<u64>,
}

impl Contents {
    /// A new sandbox's, whose ticker was just started.
    pub(crate) fn begin(world: &World, id: &str) -> Self {
        world.sh(id, TICKER);
        Self {
            ticks: Some(0),
            ..Self::default()
        }
    }

    /// Writes a MiB that nobody else has, into memory and onto the disk.
    pub(crate) fn mark(&mut self, world: &World, id: &str, word: &str) {
        let line = format!(
            "head -c 1M /dev/urandom > /dev/shm/data.{word}; cp /dev/shm/data.{word} ~/data.{word}; \
             sync ~/data.{word}; md5sum < /dev/shm/data.{word}; cat /dev/shm/ticks 2> /dev/null || true"
        );
        let said = world.sh(id, &line);
        let (checksum, ticks) = said.split_once("  -").unwrap_or((&said, ""));
        self.memory.insert(word.to_owned(), checksum.to_owned());
        self.disk.insert(word.to_owned(), checksum.to_owned());
        if self.ticks.is_some() {
            self.ticks = Some(ticks.trim().parse().expect("a number"));
        }
    }

    /// What is left of it after a power-off.
    pub(crate) fn of_the_disk(&self) -> Self {
        Self {
            disk: self.disk.clone(),
            ..Self::default()
        }
    }

    /// A running sandbox must hold this and nothing else, and its ticker go on.
    pub(crate) fn check(&self, world: &World, id: &str, what: &str) {
        let found = Self::read(world, id);
        assert_eq!(
            (&found.memory, &found.disk),
            (&self.memory, &self.disk),
            "{what}"
        );
        // It has not lost a tick that somebody has seen.
        assert!(
            found.ticks >= self.ticks,
            "{what}: {:?} after {:?}",
            found.ticks,
            self.ticks
        );
        assert_eq!(found.ticks.is_some(), self.ticks.is_some(), "{what}");
    }

    fn read(world: &World, id: &str) -> Self {
        let mut found = Self::default();
        for line in world.sh(id, LOOK).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["memory", word, checksum, "-"] => {
                    found.memory.insert(word.to_owned(), checksum.to_owned());
                }
                ["disk", word, checksum, "-"] => {
                    found.disk.insert(word.to_owned(), checksum.to_owned());
                }
                ["ticks", ticks] => found.ticks = ticks.parse().ok(),
                _ => panic!("`{line}`"),
            }
        }
        found
    }
}

/// What is done to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Snapshot,
    Fork,
    CreateFrom,
    Rollback,
    RollbackSave,
    Pause,
    Resume,
}

impl Operation {
    /// Does it; an error is that of a connection that was cut. What is taken is called
    /// `new`, what is gone back to or made from is called `before`.
    pub(crate) fn request(self, world: &World, id: &str) -> Result<Answer, String> {
        let (path, body) = match self {
            Self::Snapshot => ("snapshots", Some(json!({ "name": "fresh" }))),
            Self::Fork => ("fork", Some(json!({ "count": 1 }))),
            Self::CreateFrom => {
                let body = json!({ "from": "before" });
                return world.api().try_post("/v1/sandboxes", Some(&body));
            }
            Self::Rollback => ("rollback", Some(json!({ "snapshot": "before" }))),
            Self::RollbackSave => (
                "rollback",
                Some(json!({ "snapshot": "before", "save": "fresh" })),
            ),
            Self::Pause => ("pause", None),
            Self::Resume => ("resume", None),
        };
        let path = format!("/v1/sandboxes/{id}/{path}");
        world.api().try_post(&path, body.as_ref())
    }
}

/// Makes a sandbox from a snapshot.
pub(crate) fn create_from(world: &World, snapshot: &str) -> String {
    let answer = world
        .api()
        .post("/v1/sandboxes", &json!({ "from": snapshot }));
    assert_eq!(answer.status, 201, "{}", answer.text);
    text(&answer.json(), "id")
}

/// Takes a snapshot.
pub(crate) fn take(world: &World, id: &str, name: &str) {
    let answer = world.api().snapshot(id, &json!({ "name": name }));
    assert_eq!(answer.status, 201, "{}", answer.text);
}

/// A field that is a text.
pub(crate) fn text(value: &Value, field: &str) -> String {
    let found = value[field].as_str();
    found
        .unwrap_or_else(|| panic!("no `{field}`: {value}"))
        .to_owned()
}

/// The rows of a list of the API.
pub(crate) fn rows(world: &World, list: &str) -> Vec<Value> {
    let tree = world.api().get("/v1/tree").json();
    tree[list].as_array().expect("a list").clone()
}

/// The names of all snapshots.
pub(crate) fn snapshot_names(world: &World) -> Vec<String> {
    let rows = rows(world, "snapshots");
    rows.iter().map(|row| text(row, "name")).collect()
}

/// Spawns from each snapshot that is listed, and compares; every name must be expected.
pub(crate) fn check_snapshots(world: &World, expected: &[(&str, &Contents)]) {
    for name in snapshot_names(world) {
        let found = expected.iter().find(|(known, _)| *known == name);
        let (_, contents) = found.unwrap_or_else(|| panic!("nobody took `{name}`"));
        let child = create_from(world, &name);
        contents.check(world, &child, &format!("a child of `{name}`"));
        remove(world, &child);
    }
}

/// Removes a sandbox.
pub(crate) fn remove(world: &World, id: &str) {
    let answer = world.api().delete(&format!("/v1/sandboxes/{id}"));
    assert_eq!(answer.status, 204, "{}", answer.text);
}

/// Removes all sandboxes and snapshots, and nothing of them may be left.
pub(crate) fn remove_all(world: &World) {
    for row in rows(world, "sandboxes") {
        remove(world, &text(&row, "id"));
    }
    for row in rows(world, "snapshots") {
        let id = text(&row, "id");
        let answer = world.api().delete(&format!("/v1/snapshots/{id}"));
        assert_eq!(answer.status, 204, "{}", answer.text);
    }
    check_files(world);
}

/// Every directory is a row's, and every process a running sandbox's. What a sandbox had
/// before it moved goes in the background.
pub(crate) fn check_files(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(why) = compare(world) {
        assert!(Instant::now() < deadline, "{why}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn compare(world: &World) -> Result<(), String> {
    let same = |what: &str, found: Vec<String>, wanted: usize| match found.len() == wanted {
        true => Ok(()),
        false => Err(format!("{wanted} {what} are expected, not {found:?}")),
    };
    let (sandboxes, snapshots) = (rows(world, "sandboxes"), rows(world, "snapshots"));
    let in_state = |state: &str| sandboxes.iter().filter(|row| row["state"] == state).count();
    let layout = world.state_dir().join("v1");
    let homes = entries(&layout.join("sandboxes"));
    same("homes", homes, sandboxes.len())?;
    // A paused sandbox is a snapshot without a row of its own.
    let kept = entries(&layout.join("snapshots"));
    if let Some(hidden) = kept.iter().find(|name| name.starts_with('.')) {
        return Err(format!("`{hidden}` was never published"));
    }
    same("snapshots", kept, snapshots.len() + in_state("paused"))?;
    let processes = world.processes().iter().map(u32::to_string).collect();
    same("shims and VMMs", processes, 2 * in_state("running"))
}

/// Nothing that a snapshot was made of is left in a slot.
pub(crate) fn check_slots(world: &World) {
    let sandboxes = world.state_dir().join("v1/sandboxes");
    for home in entries(&sandboxes) {
        let slot = sandboxes.join(home).join("slot");
        let left = entries(&slot);
        let left = left.iter().find(|name| name.starts_with("taken"));
        assert_eq!(left, None, "in `{}`", slot.display());
    }
}

/// What is in a directory, which may not be there.
pub(crate) fn entries(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

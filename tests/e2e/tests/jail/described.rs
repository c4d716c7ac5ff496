//! What a sandbox says of its layers is what its processes have.

use crate::stage::Stage;
use pando_e2e::jail::{ATTEMPTS, Stop};
use pando_sys::jail::{Layer, landlock};
use std::collections::BTreeSet;

/// What QEMU has of its own beside the jail.
const OF_QEMU: &str = "qemu-sandbox";

pub(crate) fn layers_are_true(stage: &Stage) {
    let layers = stage.world.inspect(&stage.other)["isolation"]["layers"].clone();
    let named: BTreeSet<String> = serde_json::from_value(layers).unwrap();
    let pids = [
        ("", stage.world.vmm_pid(&stage.other), "1856"),
        ("shim-", stage.world.shim_pid(&stage.other), "4096"),
    ];
    let mut found = BTreeSet::from([OF_QEMU.to_owned()]);
    for (whose, pid, files) in pids {
        let status = Status::of(pid);
        let mut add = |name: &str| found.insert(format!("{whose}{name}"));
        if status.line("NoNewPrivs") == "1" {
            add("no-new-privileges");
        }
        if status.line("Seccomp") == "2" {
            add("seccomp");
        }
        if limit(pid, "Max core file size") == "0" && limit(pid, "Max open files") == files {
            add("limits");
        }
        // The kernel shows nobody's landlock domain: what is in it, the probe shows.
        Layer::all()
            .filter(|layer| (1..=landlock::abi()).contains(&layer.landlock()))
            .filter(|layer| whose.is_empty() || *layer != Layer::NoTcp)
            .for_each(|layer| _ = add(layer.name()));
        let ids = status.ids();
        if stage.is_root() {
            assert_eq!(ids.len(), 1, "{ids:?}");
            found.extend(ids.iter().map(|id| format!("account {id}")));
            assert!(!ids.contains("0"), "{ids:?}");
            assert_eq!(status.line("Groups"), "");
        }
        assert_eq!(status.line("CapPrm").trim_start_matches('0'), "");
        assert_eq!(terminal(pid), "0", "nobody types for it");
    }
    assert_eq!(named, found);
}

/// `/proc/PID/status`.
struct Status(String);

impl Status {
    fn of(pid: u32) -> Self {
        Self(std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap())
    }

    fn line(&self, name: &str) -> &str {
        let line = self
            .0
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no line `{name}`")).trim()
    }

    /// The user ids that it has: real, effective, saved, of the file system.
    fn ids(&self) -> BTreeSet<&str> {
        self.line("Uid").split_whitespace().collect()
    }
}

/// The soft limit of this name, which starts its line.
fn limit(pid: u32, name: &str) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap_or_default().split_whitespace().next();
    value.unwrap_or_default().to_owned()
}

/// The number of its controlling terminal, field 7 of `/proc/PID/stat`.
fn terminal(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(4).unwrap().to_owned()
}

/// Where the table of SECURITY.md begins and ends.
const MARKS: [&str; 2] = ["<!-- attempts: begin -->\n", "<!-- attempts: end -->\n"];

pub(crate) fn table_is_written_down() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(MARKS[0]).expect("where the table begins");
    let (_, after) = rest.split_once(MARKS[1]).expect("where the table ends");
    let expected = format!("{before}{}{}{}{after}", MARKS[0], table(), MARKS[1]);
    if std::env::var_os("PANDO_BLESS").is_some() {
        std::fs::write(path, expected).unwrap();
        return;
    }
    assert!(
        text == expected,
        "SECURITY.md differs: run this test with PANDO_BLESS=1"
    );
}

fn table() -> String {
    let mut table = "\n| attempt | QEMU | shim |\n|---|---|---|\n".to_owned();
    for attempt in ATTEMPTS {
        let [qemu, shim] = [attempt.qemu, attempt.shim].map(cell);
        table.push_str(&format!("| {} | {qemu} | {shim} |\n", attempt.name));
    }
    table.push('\n');
    table
}

fn cell(stop: Stop) -> String {
    let list = |layers: &[Layer]| {
        let names = layers
            .iter()
            .map(|layer| layer.name().trim_start_matches("landlock-"));
        names.collect::<Vec<_>>().join(", ")
    };
    match stop {
        Stop::Allowed => "**may**".to_owned(),
        Stop::Always => "the socket's kind".to_owned(),
        Stop::Pointless => "–".to_owned(),
        Stop::By { root, user: None } => format!("{}; a user: not being root", list(root)),
        Stop::By {
            root,
            user: Some(user),
        } if root == user => list(root),
        Stop::By {
            root,
            user: Some(user),
        } => format!("{}; a user: {}", list(root), list(user)),
    }
}

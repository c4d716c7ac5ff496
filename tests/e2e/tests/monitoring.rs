//! The alert rules and the board of `packaging/`, held against what a daemon really tells.

use pando_testkit::{Options, World};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(file)
}

/// Names of metrics in a text: `pando_…` and `process_…`.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| {
            ["pando_", "process_"]
                .iter()
                .any(|start| word.starts_with(start))
        })
        .map(ToOwned::to_owned)
        .collect()
}

/// The families that `/metrics` declares, with what a histogram's samples are called.
fn families(metrics: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in metrics.lines() {
        let Some(declared) = line.strip_prefix("# TYPE ") else {
            continue;
        };
        let (name, kind) = declared.split_once(' ').unwrap();
        found.insert(name.to_owned());
        if kind == "histogram" {
            found.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")));
        }
    }
    found
}

#[test]
fn alerts_and_board_ask_for_metrics_that_there_are() {
    let world = World::with(Options {
        without_template: true,
        ..Options::default()
    });
    let answer = world.api().get("/metrics");
    let there = families(&String::from_utf8_lossy(&answer.body));
    assert!(there.contains("pando_sandboxes"), "{there:?}");
    for file in ["prometheus/pando.rules.yml", "grafana/pando.json"] {
        let text = std::fs::read_to_string(packaging(file)).unwrap();
        let asked = names(&text);
        assert!(asked.len() > 5, "{file}: {asked:?}");
        let missing: Vec<_> = asked.difference(&there).collect();
        assert!(missing.is_empty(), "{file} asks for {missing:?}");
    }
}

#[test]
fn prometheus_takes_the_rules() {
    let output = Command::new("promtool")
        .args(["check", "rules"])
        .arg(packaging("prometheus/pando.rules.yml"))
        .output()
        .expect("promtool, of Debian's package prometheus");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("SUCCESS: 9 rules found"), "{said}");
}

#[test]
fn the_board_is_sound_json_with_a_query_in_each_panel() {
    let text = std::fs::read(packaging("grafana/pando.json")).unwrap();
    let board: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    assert!(panels.len() > 5);
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(taken.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = &panel["gridPos"];
        let right = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
        assert!(right <= 24, "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            assert!(
                target["expr"].as_str().unwrap().contains("$instance"),
                "{panel}"
            );
        }
    }
}

#[test]
fn doctor_says_whether_sandboxes_have_control_groups_of_their_own() {
    let world = World::with(Options {
        without_template: true,
        ..Options::default()
    });
    // A daemon that no service manager started has none, whatever the host is.
    let doctor = world.run(["doctor"]).stdout;
    let found = doctor.lines().find(|line| line.contains(" cgroups: "));
    let found = found.expect("a line about control groups");
    assert!(
        found.starts_with("warning") && found.contains("not delegated"),
        "{found}"
    );
}

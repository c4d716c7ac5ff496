//! What the machine tells, compared with what its script claims.

use std::collections::BTreeMap;
use std::path::Path;

/// Lines of the machine's console that a failure shows.
const CONSOLE_LINES: usize = 60;

/// How the claims fared.
#[derive(Debug)]
pub(super) struct Outcome {
    /// A line for each claim, with its time.
    pub(super) table: String,
    /// What did not hold, and what was not told.
    pub(super) failures: Vec<String>,
}

/// The names that a script claims, in order.
pub(super) fn claims(script: &str) -> Vec<String> {
    let names = script.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("claim '")?;
        Some(rest.split_once('\'')?.0.to_owned())
    });
    names.collect()
}

/// Every claim is to be told once, in order, and the end after them.
pub(super) fn outcome(claims: &[String], told: &[String]) -> Outcome {
    let mut held = Vec::new();
    let mut failures = Vec::new();
    let mut times = BTreeMap::new();
    let mut ended = false;
    for line in told {
        if let Some(name) = line.strip_prefix("ok ") {
            held.push(name);
        } else if let Some(failure) = line.strip_prefix("not ok ") {
            failures.push(failure.to_owned());
        } else if let Some((name, ms)) = line
            .strip_prefix("time ")
            .and_then(|rest| rest.rsplit_once(' '))
        {
            times.insert(name.to_owned(), ms.parse::<u64>().unwrap_or_default());
        } else if line == "done" {
            ended = true;
        } else {
            failures.push(format!("the machine said `{line}`"));
        }
    }
    let row = |name: &str, ms: u64| format!("{:>7}.{} s  {name}", ms / 1000, ms / 100 % 10);
    let mut rows: Vec<String> = Vec::new();
    for name in ["boot", "reboot"] {
        rows.extend(times.get(name).map(|ms| row(name, *ms)));
    }
    for claim in claims {
        match held.iter().filter(|name| *name == claim).count() {
            1 => rows.push(row(claim, times.get(claim).copied().unwrap_or_default())),
            // The one that failed is among the failures; those after it did not run.
            0 if failures.is_empty() => failures.push(format!("nothing was told of: {claim}")),
            0 => rows.push(format!("{:>11}  {claim}", "-")),
            count => failures.push(format!("told {count} times: {claim}")),
        }
    }
    let unknown = held
        .iter()
        .filter(|name| !claims.iter().any(|claim| claim == *name));
    failures.extend(unknown.map(|name| format!("nobody claims: {name}")));
    if !ended && failures.is_empty() {
        failures.push("the machine ended before its test".into());
    }
    Outcome {
        table: rows.join("\n"),
        failures,
    }
}

/// The end of the console, without what a terminal would take for commands.
pub(super) fn tail(console: &Path) -> String {
    let bytes = std::fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.replace(|c: char| c.is_control() && c != '\t', ""))
        .collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(told: &[&str]) -> Vec<String> {
        let claims = ["a b".to_owned(), "c".to_owned()];
        let told: Vec<String> = told.iter().map(ToString::to_string).collect();
        outcome(&claims, &told).failures
    }

    #[test]
    fn claims_are_read_from_the_script() {
        let script = "claim() {\n    claim 'it is so' f\n  claim 'and so' g\n";
        assert_eq!(claims(script), ["it is so", "and so"]);
        let own = include_str!("../../../tests/kvm/run");
        assert!(claims(own).len() > 10);
    }

    #[test]
    fn all_claims_must_be_told_and_the_end_too() {
        assert!(fails(&["ok a b", "time a b 1234", "ok c", "done"]).is_empty());
        assert_eq!(fails(&["ok a b", "done"]), ["nothing was told of: c"]);
        assert_eq!(
            fails(&["ok a b", "ok c"]),
            ["the machine ended before its test"]
        );
        assert_eq!(fails(&["not ok a b: why", "done"]), ["a b: why"]);
        assert_eq!(
            fails(&["ok a b", "ok a b", "ok c", "done"]),
            ["told 2 times: a b"]
        );
        assert_eq!(
            fails(&["ok a b", "ok c", "ok d", "done"]),
            ["nobody claims: d"]
        );
        assert_eq!(fails(&[])[..1], ["nothing was told of: a b"]);
    }

    #[test]
    fn times_are_shown_with_their_claims() {
        let told = ["time boot 17000", "ok a b", "time a b 1234"].map(String::from);
        let outcome = outcome(&["a b".to_owned()], &told);
        assert_eq!(outcome.table, "     17.0 s  boot\n      1.2 s  a b");
    }
}

//! `make test`: everything that CI checks, on any machine.
//!
//! ```text
//!   packages ─┬─ base image (network, dpkg) ──────────────────────────────┬─ e2e tests: real daemon, real guests
//!             └─ fmt, codegen, agent, preload, clippy, deny, unit, pando ─┘      then, alone: the machine with KVM,
//!                                                                                 pando bench --check
//! ```

use crate::packages::{self, Purpose};
use crate::steps::{Steps, seconds};
use crate::{artifacts, bench, deny, in_ci, kvm, quickstart};
use anyhow::{Context as _, Result, bail, ensure};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install packages without asking; as if CI=true were set
    #[arg(long)]
    yes: bool,
    /// Also what takes too long for CI
    #[arg(long)]
    full: bool,
    /// Stop before the tests that start sandboxes
    #[arg(long)]
    no_e2e: bool,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let steps = Steps::start(root, "test.log")?;
    let result = all(&steps, root, options);
    print_table(&steps);
    if result.is_err() {
        eprintln!("full log: {}", steps.log_path().display());
    }
    result
}

fn all(steps: &Steps, root: &Path, options: &Options) -> Result<()> {
    packages::set_up(root, steps, Purpose::Test, options.yes || in_ci())?;
    std::thread::scope(|scope| {
        let image = scope.spawn(|| match options.no_e2e {
            true => Ok(()),
            false => quickstart::build_image(steps, false).and_then(|()| kvm::build_machine(steps)),
        });
        let checked = check(steps, root);
        let image = image
            .join()
            .unwrap_or_else(|_| bail!("the image's builder panicked"));
        checked.and(image)
    })?;
    if options.no_e2e {
        return Ok(());
    }
    steps.step("building `pando`", || artifacts::build_pando(steps, root))?;
    let count = steps.step("e2e tests", || e2e(steps, root, options.full))?;
    println!("e2e tests: {count}");
    kvm::test(steps, root, &artifacts::pando_path(root))?;
    steps.step("speed", || bench::check(steps, root, options.full))
}

/// What needs no VM, quickest first.
fn check(steps: &Steps, root: &Path) -> Result<()> {
    let cargo = |arguments: &[&str]| {
        let mut command = artifacts::cargo(root);
        command
            .args(arguments)
            .env("PANDO_AGENT", artifacts::agent_path(root))
            .env("PANDO_PRELOAD", artifacts::preload_path(root));
        command
    };
    steps.step("formatting", || {
        steps.run(&mut cargo(&["fmt", "--all", "--check"]))
    })?;
    steps.step("generated code", || {
        steps.run(&mut artifacts::codegen_command(root, true))
    })?;
    steps.step("licences, bans, sources", || deny::check(steps, root))?;
    steps.step("building the guest agent", || {
        artifacts::build_agent(steps, root)
    })?;
    steps.step("building the library for QEMU", || {
        artifacts::build_preload(steps, root)
    })?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--features",
        "xtask/codegen",
    ];
    steps.step("clippy", || {
        steps.run(cargo(&clippy).args(["--", "-D", "warnings"]))
    })?;
    let build = ["test", "--workspace", "--no-run"];
    steps.step("building the tests", || steps.run(&mut cargo(&build)))?;
    steps.step("unit tests", || {
        tests(steps, cargo(&[]), Kind::Unit).map(drop)
    })
}

/// Against the program that a person gets, in a world of the tests' own.
fn e2e(steps: &Steps, root: &Path, full: bool) -> Result<u32> {
    let mut command = artifacts::cargo(root);
    command.env("PANDO_AGENT", artifacts::agent_path(root));
    command.env("PANDO_PRELOAD", artifacts::preload_path(root));
    command.env("PANDO_BIN", artifacts::pando_path(root));
    if full {
        command.env("PANDO_TEST_FULL", "1");
        command.env("NEXTEST_PROFILE", "full");
    }
    let count = tests(steps, command, Kind::EndToEnd)?;
    ensure!(count > 0, "no e2e test ran");
    Ok(count)
}

/// What tests may assume.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// No VM, no daemon.
    Unit,
    /// A real daemon and real guests.
    EndToEnd,
}

impl Kind {
    /// nextest chooses among all tests that were built: to build a part of the
    /// workspace is to build some of it anew, with fewer features.
    fn nextest(self) -> [&'static str; 3] {
        match self {
            Self::Unit => ["--workspace", "-E", "not package(pando-e2e)"],
            Self::EndToEnd => ["--workspace", "-E", "package(pando-e2e)"],
        }
    }

    fn cargo_test(self) -> &'static [&'static str] {
        match self {
            Self::Unit => &["--workspace", "--exclude", "pando-e2e"],
            Self::EndToEnd => &["--package", "pando-e2e"],
        }
    }
}

/// Runs tests with nextest where it is, and returns how many passed. Its output
/// is shown: a failed test's own words are the point of the exercise.
fn tests(steps: &Steps, mut command: Command, kind: Kind) -> Result<u32> {
    if has_nextest() {
        command.args(["nextest", "run", "--no-fail-fast", "--color=never"]);
        command.args(["--status-level=fail", "--final-status-level=slow"]);
        command.args(kind.nextest());
    } else {
        command
            .args(["test", "--no-fail-fast"])
            .args(kind.cargo_test());
    }
    let output = steps.show(&mut command)?;
    passed(&output).context("the test runner did not say how many tests passed")
}

fn has_nextest() -> bool {
    let version = Command::new("cargo-nextest")
        .args(["nextest", "--version"])
        .output();
    version.is_ok_and(|output| output.status.success())
}

/// The number in `12 tests run: 12 passed, …` of nextest, or the sum over the
/// `test result: ok. 12 passed; …` of cargo's own runner.
fn passed(output: &str) -> Option<u32> {
    let counts: Vec<u32> = output
        .lines()
        .filter(|line| {
            line.contains("tests run:")
                || line.contains("test run:")
                || line.starts_with("test result:")
        })
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words
                .iter()
                .position(|word| word.trim_end_matches([',', ';']) == "passed")?;
            words.get(at.checked_sub(1)?)?.parse().ok()
        })
        .collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

fn print_table(steps: &Steps) {
    println!("\n{:<44}{:>14}", "stage", "time");
    for done in steps.done() {
        let name: String = done.name.chars().take(43).collect();
        let mark = if done.passed { "" } else { "  FAILED" };
        println!("{name:<44}{:>14}{mark}", seconds(done.time));
    }
    println!(
        "{:<44}{:>14}",
        "in all (some side by side)",
        seconds(steps.elapsed())
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_runners_counts_are_read() {
        let nextest = "     Summary [   0.445s] 23 tests run: 23 passed, 0 skipped\n";
        assert_eq!(passed(nextest), Some(23));
        let slow = "     Summary [   9.1s] 3 tests run: 2 passed (1 slow), 1 failed, 0 skipped\n";
        assert_eq!(passed(slow), Some(2));
        let cargo = "test result: ok. 3 passed; 0 failed; 0 ignored\n\
                     test a ... ok\ntest result: ok. 4 passed; 0 failed; 0 ignored\n";
        assert_eq!(passed(cargo), Some(7));
        assert_eq!(passed("nothing\n"), None);
    }
}

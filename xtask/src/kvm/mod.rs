//! `make test-kvm`: Pando's package on a server with systemd, control groups v2 and KVM.
//!
//! Few machines that tests run on have all of it, so one is made: a Debian that QEMU
//! emulates, AMD's virtualization included.
//!
//! ```text
//!   this machine ── QEMU, emulating ── tests/kvm/run, in a Debian with systemd
//!        │                                  │    installs the package, restarts, upgrades, reboots
//!        │   target/kvm/payload.ext4 ──────>│ /payload: packages, the base image, the script
//!        │<──────────── pando.results ──────│ `ok NAME`, `not ok NAME: WHY`, `time NAME MS`, `done`
//!        │                                  └── pando ── QEMU, with KVM ── sandboxes
//! ```
//!
//! What is promised is written once, as the `claim 'NAME'` lines of the script.

mod machine;
mod payload;
mod report;

use crate::packages::{self, Purpose};
use crate::steps::Steps;
use crate::{artifacts, in_ci, quickstart};
use anyhow::{Result, bail, ensure};
use machine::Ended;
use pando_image::KvmHost;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install packages without asking; as if CI=true were set
    #[arg(long)]
    yes: bool,
    /// Test this program instead of building `target/release/pando`
    #[arg(long, value_name = "FILE")]
    pando: Option<PathBuf>,
    /// Give up after so long; for machines that have something else to do
    #[arg(long, value_name = "MINUTES", default_value_t = DEADLINE_MINUTES)]
    minutes: u64,
}

/// On two idle cores it is about six minutes; what hangs is found out.
const DEADLINE_MINUTES: u64 = 12;

/// Machines that are started, if their own kernels die.
const MACHINES: usize = 3;

/// Sets up, builds and tests.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let steps = Steps::start(root, "test-kvm.log")?;
    packages::set_up(root, &steps, Purpose::Test, options.yes || in_ci())?;
    quickstart::build_image(&steps, false)?;
    let pando = match &options.pando {
        Some(path) => path.clone(),
        None => {
            artifacts::build_all(&steps, root)?;
            artifacts::pando_path(root)
        }
    };
    let result = build_machine(&steps).and_then(|()| {
        test_until(
            &steps,
            root,
            &pando,
            Duration::from_secs(options.minutes * 60),
        )
    });
    if result.is_err() {
        eprintln!("full log: {}", steps.log_path().display());
    }
    result
}

/// Makes the machine in the cache, or finds it there.
pub(crate) fn build_machine(steps: &Steps) -> Result<()> {
    steps.step("making the machine with KVM", || {
        payload::machine(steps).map(drop)
    })
}

/// Tests `pando`, where everything else has been made.
pub(crate) fn test(steps: &Steps, root: &Path, pando: &Path) -> Result<()> {
    test_until(
        steps,
        root,
        pando,
        Duration::from_secs(DEADLINE_MINUTES * 60),
    )
}

fn test_until(steps: &Steps, root: &Path, pando: &Path, deadline: Duration) -> Result<()> {
    steps.step("tests with systemd, cgroups v2 and KVM", || {
        let script = std::fs::read_to_string(root.join(payload::SCRIPT))?;
        let claims = report::claims(&script);
        ensure!(!claims.is_empty(), "`{}` claims nothing", payload::SCRIPT);
        let work = artifacts::target_dir(root).join("kvm");
        let payload = payload::build(steps, root, pando, &work)?;
        let host = payload::machine(steps)?;
        let console = work.join("console.log");
        let told = told(steps, &host, &payload, &console, deadline)?;
        let outcome = report::outcome(&claims, &told);
        println!("{}", outcome.table);
        if !outcome.failures.is_empty() {
            eprintln!("{}", report::tail(&console));
        }
        ensure!(
            outcome.failures.is_empty(),
            "{}\nthe machine's console is {}",
            outcome.failures.join("\n"),
            console.display()
        );
        Ok(())
    })
}

/// What the machine tells. One whose own kernel gives up, or runs no more programs on one of
/// its CPUs, is replaced by another, and that is said: QEMU's emulation of a processor with
/// virtualization corrupts the kernel that uses it now and then (a stack; in two of seven runs
/// that were watched, and one hung), which no program in that machine can do or prevent. All of
/// them together have the same deadline.
fn told(
    steps: &Steps,
    host: &KvmHost,
    payload: &Path,
    console: &Path,
    deadline: Duration,
) -> Result<Vec<String>> {
    let until = Instant::now() + deadline;
    for _ in 0..MACHINES {
        match machine::run(steps, host, payload, console, until)? {
            Ended::Told(told) => return Ok(told),
            Ended::Died(how) => {
                eprintln!("{}", report::tail(console));
                println!("the emulated machine's own kernel {how}");
            }
        }
    }
    bail!("the kernels of {MACHINES} emulated machines died")
}

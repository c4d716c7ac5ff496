//! `make bench`: `pando bench` of this tree, with what it is compared with.

use crate::packages::{self, Purpose};
use crate::steps::Steps;
use crate::{artifacts, in_ci};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install packages without asking; as if CI=true were set
    #[arg(long)]
    yes: bool,
    /// For `pando bench`, after `--`
    #[arg(value_name = "ARGS", last = true)]
    arguments: Vec<String>,
}

/// What the last check left: every sample, as JSON.
const RAW_FILE: &str = "bench.json";

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let steps = Steps::start(root, "bench.log")?;
    let yes = options.yes || in_ci();
    if let Err(error) = packages::set_up(root, &steps, Purpose::Test, yes) {
        packages::set_up(root, &steps, Purpose::Run, yes)?;
        eprintln!("going on without the container runtimes that are missing: {error:#}");
    }
    artifacts::build_all(&steps, root)?;
    let mut bench = Command::new(artifacts::pando_path(root));
    let status = bench.arg("bench").args(&options.arguments).status()?;
    ensure!(status.success(), "`pando bench`: {status}");
    Ok(())
}

/// Fails if a bound of SPECIFICATION.md is missed that does not depend on the machine.
pub(crate) fn check(steps: &Steps, root: &Path, full: bool) -> Result<()> {
    let mut bench = Command::new(artifacts::pando_path(root));
    bench.args(["bench", "--check", "--raw"]);
    bench.arg(artifacts::target_dir(root).join(RAW_FILE));
    bench.args((!full).then_some("--quick"));
    steps.show(&mut bench).map(drop)
}

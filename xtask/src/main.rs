//! `cargo xtask`: what the project does that is not the product. Setting a
//! machine up, building, generating code, testing.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to its terminal"
)]

mod artifacts;
mod bench;
#[cfg(feature = "codegen")]
mod codegen;
mod daemon;
mod deny;
mod dist;
mod kvm;
mod packages;
mod quickstart;
mod steps;
mod test;
mod tidy;
mod uninstall;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Tasks of the Pando project",
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Set this machine up, build, bake the base template, start the daemon, run code
    Quickstart(quickstart::Options),
    /// Install the packages that Pando needs and this machine lacks
    Setup {
        /// Install without asking; as if CI=true were set
        #[arg(long)]
        yes: bool,
    },
    /// Build `target/release/pando` with the guest agent and the library for QEMU inside
    Build,
    /// Make the base image in the cache where `pando` looks for it
    Image {
        /// Let sandboxes trust the certificates that this machine trusts
        #[arg(long)]
        host_ca: bool,
    },
    /// Run every check and test, installing what they need
    Test(test::Options),
    /// Test the package on a machine with systemd, control groups v2 and KVM, which is emulated
    TestKvm(kvm::Options),
    /// Make what is handed out: a Debian package and a tar, with checksums and an SBOM
    Dist(dist::Options),
    /// Build Pando and measure how fast it is here, beside container runtimes
    Bench(bench::Options),
    /// Write the code generated from the .proto files
    Codegen {
        /// Fail if the committed code is stale instead
        #[arg(long)]
        check: bool,
    },
    /// Undo what quickstart did on this machine, except the packages
    Uninstall {
        /// Remove without asking
        #[arg(long)]
        yes: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    let root = workspace_root()?;
    match task {
        Task::Quickstart(options) => quickstart::run(&root, &options),
        Task::Setup { yes } => {
            let steps = steps::Steps::start(&root, "setup.log")?;
            packages::set_up(&root, &steps, packages::Purpose::Run, yes || in_ci())
        }
        Task::Build => artifacts::build_all(&steps::Steps::start(&root, "build.log")?, &root),
        Task::Image { host_ca } => {
            quickstart::build_image(&steps::Steps::start(&root, "image.log")?, host_ca)
        }
        Task::Test(options) => test::run(&root, &options),
        Task::TestKvm(options) => kvm::run(&root, &options),
        Task::Dist(options) => dist::run(&root, &options),
        Task::Bench(options) => bench::run(&root, &options),
        Task::Codegen { check } => generate(&root, check),
        Task::Uninstall { yes } => uninstall::run(&root, yes || in_ci()),
    }
}

#[cfg(feature = "codegen")]
fn generate(root: &Path, check: bool) -> Result<()> {
    codegen::run(root, check)
}

/// Hands over to this program built with the generators.
#[cfg(not(feature = "codegen"))]
fn generate(root: &Path, check: bool) -> Result<()> {
    let status = artifacts::codegen_command(root, check).status()?;
    anyhow::ensure!(status.success(), "code generation failed");
    Ok(())
}

/// Whether nobody is there to be asked, and the machine is there to be changed.
fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

fn workspace_root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest
        .parent()
        .context("xtask lies in the workspace")?
        .to_owned())
}

//! `pando bench`: how fast Pando is on this machine, beside what it is compared with.
//!
//! ```text
//!   a daemon of its own ──► experiments, through REST only ──► figures ─┐
//!   crun, runc, runsc ─────► the same command, sample by sample ────────┤
//!   QEMU's savevm, loadvm ► the same VM, sample by sample ────────┤
//!   QEMU's -netdev user ──► the same VM, sample by sample ────────┤
//!   SPECIFICATION.md ──────► bounds ────────────────────────────────────┴─► verdicts, table, JSON
//! ```
//!
//! Samples of a figure and of its baselines alternate, so that the machine's noise
//! hits both. What is promised stands in the Speed table of SPECIFICATION.md and
//! nowhere else: it is built in and parsed.
//!
//! Limits: one machine, one daemon, the template `base` at its default size. Memory
//! and CPU time are read from `/proc`, so the daemon must be on this host.

mod bounds;
mod container;
mod daemon;
mod error;
mod experiment;
mod figure;
mod machine;
mod options;
mod plain;
mod procfs;
mod report;
mod run;
mod schedule;
mod session;
mod stats;
mod table;
mod traffic;
mod verdict;

pub use error::BenchError;
pub use experiment::Experiment;
pub use options::{Counts, DaemonCommand, Options};
pub use report::Report;
pub use run::run;
pub use table::render;
pub use verdict::{Outcome, Verdict, fails};

//! What is asked for.

use crate::Experiment;
use std::ffi::OsString;
use std::path::PathBuf;

/// How the benchmark is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is measured.
    pub experiments: Vec<Experiment>,
    /// How often.
    pub counts: Counts,
    /// Whether an experiment is repeated, once, whose bounds were missed: on a machine that
    /// does other things as well, one miss says little.
    pub repeat_missed: bool,
    /// How its daemon is started.
    pub daemon: DaemonCommand,
}

/// A command that serves; address and state directory are added to it.
#[derive(Clone, Debug)]
pub struct DaemonCommand {
    /// This program.
    pub program: PathBuf,
    /// What stands before `serve`.
    pub arguments: Vec<OsString>,
    /// The cache, whose bakes are shared.
    pub cache_dir: PathBuf,
}

/// Samples per figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Sandboxes made one after the other with a full pool.
    pub create: usize,
    /// Sandboxes loaded for their request.
    pub snapshot: usize,
    /// Sandboxes that boot their kernel.
    pub boot: usize,
    /// Sandboxes made back to back.
    pub burst: usize,
    /// Times that eight are asked for at once.
    pub at_once_rounds: usize,
    /// Programs run in a sandbox.
    pub exec: usize,
    /// The same in a container of each runtime.
    pub exec_baseline: usize,
    /// Round trips to an agent.
    pub ping: usize,
    /// Files sent, and files fetched.
    pub files: usize,
    /// Sandboxes that idle at the same time.
    pub idle: usize,
    /// Sandboxes of which ten snapshots in a row are taken.
    pub snapshot_rows: usize,
    /// Snapshots of each size that the slope is of, and those during which a client pings.
    pub snapshot_sizes: usize,
    /// Rollbacks, and resumes.
    pub going_back: usize,
    /// The same of plain QEMU. Each `savevm` keeps all of a VM's memory.
    pub plain: usize,
    /// Forks.
    pub fork: usize,
    /// Bulk transfers each way, series of connections, and series of requests.
    pub traffic: usize,
    /// Connections in a row, after which nothing is to be left.
    pub connections: usize,
    /// Programs run while a port is busy.
    pub busy_exec: usize,
}

impl Counts {
    /// What figures are published from.
    pub const FULL: Self = Self {
        create: 40,
        snapshot: 20,
        boot: 4,
        burst: 20,
        at_once_rounds: 5,
        exec: 200,
        exec_baseline: 40,
        ping: 400,
        files: 5,
        idle: 50,
        snapshot_rows: 10,
        snapshot_sizes: 20,
        going_back: 40,
        plain: 10,
        fork: 8,
        traffic: 10,
        connections: 10_000,
        busy_exec: 50,
    };

    /// What fits into a few minutes of CI on two cores.
    pub const QUICK: Self = Self {
        create: 20,
        snapshot: 15,
        boot: 3,
        burst: 20,
        at_once_rounds: 2,
        exec: 100,
        exec_baseline: 20,
        ping: 200,
        files: 3,
        idle: 50,
        snapshot_rows: 3,
        snapshot_sizes: 6,
        going_back: 12,
        plain: 5,
        fork: 3,
        traffic: 3,
        connections: 1000,
        busy_exec: 20,
    };

    /// The same number of each, where a number is a free choice.
    pub fn with_samples(self, samples: usize) -> Self {
        let samples = samples.max(1);
        Self {
            create: samples,
            snapshot: samples,
            boot: samples.min(self.boot),
            exec: samples,
            exec_baseline: samples,
            ping: samples,
            files: samples,
            snapshot_rows: samples.min(self.snapshot_rows),
            snapshot_sizes: samples,
            going_back: samples,
            plain: samples.min(self.plain),
            fork: samples.min(self.fork),
            traffic: samples.min(self.traffic),
            busy_exec: samples,
            ..self
        }
    }
}

//! What can keep a benchmark from ending.

use pando_client::ClientError;
use std::path::PathBuf;
use std::time::Duration;

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The daemon's own directory cannot be made.
    #[error("cannot make a directory for the benchmark in `{}`", .path.display())]
    Directory {
        /// Where it was to be.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The daemon did not come up.
    #[error("the benchmark's daemon did not start: {reason}{log}")]
    Daemon {
        /// What happened instead.
        reason: String,
        /// The end of its log, on lines of its own.
        log: String,
    },
    /// A request was refused or broke off.
    #[error("{what} failed")]
    Request {
        /// What was asked for.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: ClientError,
    },
    /// Something took so long that its time means nothing.
    #[error("{what} took longer than {} s", .limit.as_secs())]
    TooSlow {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },
    /// A program in a sandbox ended otherwise than it should.
    #[error("`{program}` in a sandbox ended with {ended}")]
    Program {
        /// What was run.
        program: String,
        /// Its exit code or signal.
        ended: String,
    },
    /// What came back is not what was sent.
    #[error("the file that came back differs from the one that was sent")]
    Garbled,
    /// A container runtime worked at first, and then did not.
    #[error("`{runtime}` failed in the middle of the measurement: {reason}")]
    Container {
        /// Which.
        runtime: &'static str,
        /// What it said.
        reason: String,
    },
    /// A child of a fork could not be made.
    #[error("a child of a fork could not be made: {0}")]
    Child(String),
    /// QEMU without Pando did not do what it is compared by.
    #[error("QEMU without Pando failed in the middle of the measurement")]
    Plain(#[source] std::io::Error),
    /// Bytes did not go to or from a guest as they should.
    #[error("the traffic of a guest broke off")]
    Traffic(#[source] std::io::Error),
    /// The table of SPECIFICATION.md that is built in cannot be read.
    #[error("the Speed table of SPECIFICATION.md is wrong: {0}")]
    Specification(#[from] crate::bounds::TableError),
    /// A signal ended it.
    #[error("interrupted")]
    Interrupted {
        /// Its number.
        signal: u32,
    },
}

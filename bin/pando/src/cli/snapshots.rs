//! What can be typed about snapshots.

use super::lifetime::LifetimeFlags;
use super::{List, pair};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

/// `pando snapshot`. A sandbox cannot be named like one of the commands below, so that what
/// stands first is one or the other.
#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    override_usage = "pando snapshot [OPTIONS] <ID>\n       pando snapshot <COMMAND>"
)]
pub(crate) struct Snapshot {
    #[command(flatten)]
    pub(crate) take: TakeSnapshot,
    #[command(subcommand)]
    pub(crate) command: Option<SnapshotCommand>,
}

impl Snapshot {
    /// What is wanted, in its long form; nothing if a snapshot was described beside a command.
    // `args_conflicts_with_subcommands` would do it, but takes `--url` for such a description too.
    pub(crate) fn command(self) -> Option<SnapshotCommand> {
        match self.command {
            None => Some(SnapshotCommand::Create(self.take)),
            Some(_) if self.take.is_given() => None,
            Some(command) => Some(command),
        }
    }
}

/// `pando snapshot COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot and print its id; the same as `pando snapshot ID`
    Create(TakeSnapshot),
    /// List snapshots
    Ls(SnapshotList),
    /// Describe a snapshot
    Show(SnapshotShow),
    /// Remove snapshots; what came from them is kept
    Rm(ManySnapshots),
}

/// The snapshot to take.
#[derive(Debug, Args)]
pub(crate) struct TakeSnapshot {
    /// A name for it
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Keep the disk alone: what is made from it starts as after a power-on
    #[arg(long)]
    pub(crate) disk: bool,
    /// Note something about it for programs; repeat for more
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Note something about it for people
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// The sandbox: id, a prefix of it, or name
    // Always there, except beside a command of `pando snapshot`.
    #[arg(required = true)]
    pub(crate) id: Option<String>,
}

impl TakeSnapshot {
    fn is_given(&self) -> bool {
        self.id.is_some()
            || self.name.is_some()
            || self.disk
            || !self.label.is_empty()
            || self.note.is_some()
    }
}

/// `pando snapshot ls`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotList {
    #[command(flatten)]
    pub(crate) list: List,
    /// Only those with this label; repeat for more, all must fit
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) label: Vec<(String, String)>,
}

/// `pando snapshot show`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotShow {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The snapshot: id, a prefix of it, or name
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: String,
}

/// `pando snapshot rm`.
#[derive(Debug, Args)]
pub(crate) struct ManySnapshots {
    /// The snapshots: ids, prefixes of them, or names
    #[arg(required = true, value_name = "SNAPSHOT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) snapshots: Vec<String>,
}

/// `pando fork`.
#[derive(Debug, Args)]
pub(crate) struct Fork {
    /// How many children
    #[arg(short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
    /// Set a variable of every process in each child, beside the parent's; repeat for more
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Note something about each child; repeat for more
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) label: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) lifetime: LifetimeFlags,
    /// Print JSON: what it cost and all children
    #[arg(long)]
    pub(crate) json: bool,
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: String,
}

/// `pando rollback`.
#[derive(Debug, Args)]
pub(crate) struct Rollback {
    /// First keep what is left behind as a snapshot of this name, and print its id
    #[arg(long, value_name = "NAME")]
    pub(crate) save: Option<String>,
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: String,
    /// The snapshot to go back to: id, a prefix of it, or name
    pub(crate) snapshot: String,
}

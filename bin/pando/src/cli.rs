//! The command line: what can be typed. `docs/cli.md` is generated from it.

mod lifetime;
mod port;
mod snapshots;

pub(crate) use lifetime::{LifetimeFlags, SleepFlags, Span, Timeout};
pub(crate) use port::Port;
pub(crate) use snapshots::{
    Fork, ManySnapshots, Rollback, Snapshot, SnapshotCommand, SnapshotList, SnapshotShow,
    TakeSnapshot,
};

use crate::config::{ARRAKIS_ALWAYS, SettingKey};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use pando_bench::Experiment;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Computers for AI agents to work in: microVMs that start in the time of a container.
#[derive(Debug, Parser)]
#[command(
    name = "pando",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
#[command(after_long_help = exit_codes())]
pub(crate) struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads a command line, the program's name first.
    pub(crate) fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        let mut cli = Self::try_parse_from(line)?;
        if let Command::Run(run) = &mut cli.command {
            // The words are the line's end.
            let before = line
                .len()
                .checked_sub(run.words.len() + 1)
                .and_then(|index| line.get(index));
            run.after_dashes = before.is_some_and(|word| word == "--");
        }
        Ok(cli)
    }
}

/// The exit codes, below the help of all commands.
fn exit_codes() -> String {
    let mut text = String::from("Exit codes:\n");
    for (code, meaning) in crate::exit::TABLE {
        text.push_str(&format!("  {code:<6} {}\n", meaning.replace('`', "")));
    }
    text
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// The daemon to speak to [default: http://127.0.0.1:7000]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Where sandboxes are kept
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<String>,
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<String>,
}

impl Global {
    /// The flags as settings.
    pub(crate) fn settings(&self) -> Vec<(SettingKey, Option<String>)> {
        vec![
            (SettingKey::Url, self.url.clone()),
            (SettingKey::StateDir, self.state_dir.clone()),
            (SettingKey::ConfigFile, self.config.clone()),
        ]
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a new sandbox and remove the sandbox afterwards
    ///
    /// `pando run -- PROGRAM ARGS` runs a program of the sandbox; `pando run FILE ARGS` copies FILE in and runs it,
    /// by its ending (.py .js .sh) or its #! line. The exit code is the program's.
    Run(Run),
    /// Make a sandbox and print its id
    Create(Create),
    /// Run a program in a sandbox
    Exec(Exec),
    /// Open a shell in a sandbox
    Shell(Shell),
    /// Copy files and directories into a sandbox or out of it
    ///
    /// One of the two is ID:PATH. Missing directories are made; what is copied in belongs to the user.
    Cp(Cp),
    /// List sandboxes
    Ls(List),
    /// Describe a sandbox as JSON
    Inspect(One),
    /// Show a sandbox's console, or without ID the daemon's log
    Logs(Logs),
    /// Remove sandboxes and their disks; never asks
    Rm(Many),
    /// Power a sandbox off and keep its disk; without ID, end the daemon (sandboxes run on)
    Stop(Stop),
    /// Start a stopped sandbox on its disk
    Start(One),
    /// Put sandboxes on disk, memory included; they then cost neither memory nor CPU time
    Pause(Many),
    /// Let paused sandboxes go on
    Resume(Many),
    /// Show how long a sandbox is there, or change it
    ///
    /// `pando timeout ID 10m` gives it ten minutes from now, however long it had. A paused sandbox keeps until it goes
    /// on; then its time begins anew.
    Timeout(Timeout),
    /// Keep a sandbox's present state, and look after such snapshots
    ///
    /// `pando snapshot ID` prints the snapshot's id once it survives a power cut; the sandbox runs on meanwhile, but
    /// for a moment. `pando create --from SNAPSHOT` makes sandboxes that go on from there.
    Snapshot(Snapshot),
    /// Make running children of a running sandbox and print their ids, one a line
    Fork(Fork),
    /// Put a sandbox back into a kept state, under its id
    ///
    /// What it has done since is lost, unless it is kept with --save. The snapshot must be of the sandbox's own size and
    /// template.
    Rollback(Rollback),
    /// List a sandbox's ports, or let a TCP port of this machine lead to one
    ///
    /// Every port is reached by HTTP at the address that the list shows. `pando port ID PORT` prints ADDRESS:PORT of
    /// a TCP port that leads to it; it stays the same until it is taken back with --rm or the sandbox is removed.
    Port(Port),
    /// Draw snapshots and sandboxes below what they came from
    Tree(Json),
    /// Show what a sandbox may reach, is connected with and was refused; or change what it may reach
    Net(Net),
    /// Show where disk space has gone
    Df(Json),
    /// Show what the daemon is doing
    Status(Json),
    /// Check what Pando needs
    Doctor(Doctor),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look after templates
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Show what happened
    Events(Events),
    /// Measure how fast Pando is on this machine
    ///
    /// Starts a daemon of its own, measures it through REST beside the container runtimes that are installed, and
    /// removes it. What each figure is and what is promised stands in SPECIFICATION.md. Takes a few minutes of an
    /// otherwise idle machine.
    Bench(Bench),
    /// Give sandboxes to a language model: an MCP server on stdin and stdout
    ///
    /// MCP clients such as Claude Desktop, Cursor, Windsurf and VS Code start this themselves; docs/mcp.md says how. The
    /// daemon must run. It offers the same tools at /mcp to clients that are given its URL and a key.
    Mcp,
    /// Print the version
    Version,
    /// Run the daemon
    Serve(Serve),
    /// Remove Pando's files from this machine
    Uninstall(Uninstall),
    /// A sandbox's own process; the daemon starts it
    #[command(hide = true)]
    Shim(Shim),
}

/// How a program is run.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProgramFlags {
    /// Set a variable; repeat for more
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory [default: the user's home]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Account to run as [default: user]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Kill it after this time: 90, 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Give it a terminal (-it)
    // `-t` alone is the template in `run`, so `-it` is an option `-i` with the value `t`.
    #[arg(short = 'i', value_name = "t", value_parser = ["t"], hide_possible_values = true)]
    pub(crate) it: Option<String>,
    /// The same as -it
    #[arg(long)]
    pub(crate) tty: bool,
}

impl ProgramFlags {
    /// Whether a terminal is wanted.
    pub(crate) fn wants_tty(&self) -> bool {
        self.tty || self.it.is_some()
    }
}

/// What a new sandbox is like.
#[derive(Clone, Debug, Args)]
pub(crate) struct SandboxFlags {
    /// What to make it from [default: base]
    #[arg(short, long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Make it from a snapshot instead, whose size it has: id, a prefix of it, or name
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["template", "start"])]
    pub(crate) from: Option<String>,
    /// Take the snapshot's disk and not its memory: it starts as after a power-on
    #[arg(long, requires = "from")]
    pub(crate) disk_only: bool,
    /// 1, 2, 4 or 8
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u32>,
    /// MiB: 256, 512, 1024, 2048, 4096, 8192 or 16384
    #[arg(long, value_name = "MIB")]
    pub(crate) memory: Option<u32>,
    /// What it is started from: `auto` is a waiting clone where there is one, `snapshot` loads the template's
    /// saved machine, `boot` boots a kernel that shares no secret with other sandboxes [default: auto]
    #[arg(long, value_name = "HOW", value_parser = ["auto", "snapshot", "boot"])]
    pub(crate) start: Option<String>,
    /// Limit what it may use of the host: `cpu_percent`, `processes`, `disk_mib`, `disk_mib_s`, `disk_iops`,
    /// `net_mib_s`, `open_files`; repeat for more
    #[arg(long, value_name = "NAME=VALUE", value_parser = crate::commands::limit)]
    pub(crate) limit: Vec<pando_types::SandboxLimits>,
    #[command(flatten)]
    pub(crate) egress: EgressFlags,
}

/// What a sandbox may reach.
#[derive(Clone, Debug, Args)]
pub(crate) struct EgressFlags {
    /// What happens to what --allow and --deny do not name [default: allow]
    #[arg(long, value_name = "allow|deny", value_parser = ["allow", "deny"], hide_possible_values = true)]
    pub(crate) egress: Option<String>,
    /// Let through: `github.com`, `*.example.org`, `1.2.3.4`, `10.1.0.0/16`, each with an optional `:PORT` and
    /// `/tcp`, `/udp` or `/icmp`; repeat for more
    #[arg(long, value_name = "ENTRY")]
    pub(crate) allow: Vec<String>,
    /// Refuse, before anything is allowed; repeat for more
    #[arg(long, value_name = "ENTRY")]
    pub(crate) deny: Vec<String>,
}

/// A sandbox's network.
#[derive(Debug, Args)]
pub(crate) struct Net {
    /// Id, a prefix of it, or name
    pub(crate) id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) egress: EgressFlags,
}

/// `pando run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "pando run [OPTIONS] -- PROGRAM [ARGS]...\n       pando run [OPTIONS] FILE [ARGS]..."
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) sandbox: SandboxFlags,
    #[command(flatten)]
    pub(crate) program: ProgramFlags,
    /// Keep the sandbox and print its id on stderr
    #[arg(long)]
    pub(crate) keep: bool,
    /// After `--` a program of the sandbox, else a file to copy in; then its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) words: Vec<String>,
    /// Whether `--` stands before the words; the parser does not tell.
    #[arg(skip)]
    pub(crate) after_dashes: bool,
}

/// `pando create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) sandbox: SandboxFlags,
    /// A name for it
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Set a variable of every process in it; repeat for more
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Note something about it; repeat for more
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) label: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) lifetime: LifetimeFlags,
}

/// `pando exec`.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) program: ProgramFlags,
    /// Leave it running and print its process id
    #[arg(short, long, conflicts_with_all = ["it", "tty"])]
    pub(crate) detach: bool,
    /// Follow a process that was left running: its last MiB of output and all that comes
    #[arg(long, value_name = "PROCESS", conflicts_with_all = ["detach", "it", "tty", "env", "workdir", "user", "timeout", "argv"])]
    pub(crate) attach: Option<String>,
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: String,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "attach",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) argv: Vec<String>,
}

/// `pando shell`.
#[derive(Debug, Args)]
pub(crate) struct Shell {
    /// Account to be [default: user]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: String,
}

/// `pando cp`.
#[derive(Debug, Args)]
pub(crate) struct Cp {
    /// Account in the sandbox that reads or writes [default: user]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// PATH or ID:PATH
    pub(crate) source: String,
    /// PATH or ID:PATH
    pub(crate) destination: String,
}

/// A command about one sandbox.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: String,
}

/// A command about several.
#[derive(Debug, Args)]
pub(crate) struct Many {
    /// The sandboxes: ids, prefixes of them, or names
    #[arg(required = true, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) ids: Vec<String>,
}

/// A listing.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print ids only
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

/// A report.
#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pando logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: Option<String>,
    /// How many of the last lines to show
    #[arg(short = 'n', long, default_value_t = 200, value_name = "N")]
    pub(crate) lines: usize,
}

/// `pando stop`.
#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: Option<String>,
}

/// `pando doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print where everything is, and nothing else
    #[arg(long)]
    pub(crate) paths: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pando config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show each setting and where its value comes from
    Show(Json),
}

/// `pando template`.
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List templates
    Ls(List),
    /// Bake a template at a size ahead of its first use
    Warm(Warm),
    /// Make a template
    Bake(Bake),
    /// Show what a template's sandboxes may reach unless they say it themselves; or change it
    Net(TemplateNet),
    /// Remove templates; sandboxes made from them are kept
    Rm(ManyTemplates),
}

/// `pando template net`.
#[derive(Debug, Args)]
pub(crate) struct TemplateNet {
    /// The template
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) egress: EgressFlags,
}

/// `pando template rm`.
#[derive(Debug, Args)]
pub(crate) struct ManyTemplates {
    /// The templates
    #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) names: Vec<String>,
}

/// `pando template warm`.
#[derive(Debug, Args)]
pub(crate) struct Warm {
    /// The template
    pub(crate) name: String,
    /// 1, 2, 4 or 8
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u32>,
    /// MiB: 256, 512, 1024, 2048, 4096, 8192 or 16384
    #[arg(long, value_name = "MIB")]
    pub(crate) memory: Option<u32>,
}

/// `pando template bake`.
#[derive(Debug, Args)]
pub(crate) struct Bake {
    /// The template
    pub(crate) name: String,
    /// Let guests trust the certificates that this host trusts beyond Debian's
    #[arg(long)]
    pub(crate) host_ca: bool,
    /// 1, 2, 4 or 8
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u32>,
    /// MiB: 256, 512, 1024, 2048, 4096, 8192 or 16384
    #[arg(long, value_name = "MIB")]
    pub(crate) memory: Option<u32>,
}

/// `pando events`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Print JSON, an event a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Only events after this number
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) after: u64,
    /// Go on as they happen, also under the next daemon
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events of this sandbox
    #[arg(long, value_name = "ID")]
    pub(crate) sandbox: Option<String>,
    /// Only events whose kind begins like this: `sandbox.`
    #[arg(long, value_name = "PREFIX")]
    pub(crate) kind: Option<String>,
}

/// `pando serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address to listen on [default: 127.0.0.1:7000]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Where ports of sandboxes are reached from other machines: https://*.sandboxes.example.com
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// Address that TCP ports of sandboxes are bound to [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) port_bind: Option<String>,
    /// TCP ports that are given to sandboxes [default: 20000-29999]
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) port_range: Option<String>,
    /// Who may use ports by HTTP: auto, public or token [default: auto]
    #[arg(long, value_name = "WHO", value_parser = ["auto", "public", "token"], hide_possible_values = true)]
    pub(crate) port_access: Option<String>,
    /// Clients of Arrakis need an API key, those of this machine too
    #[arg(long)]
    pub(crate) arrakis_auth: bool,
    /// How guests are run: auto, kvm or tcg [default: auto]
    #[arg(long, value_name = "HOW", value_parser = ["auto", "kvm", "tcg"], hide_possible_values = true)]
    pub(crate) accel: Option<String>,
    /// Clones that wait ready for each template and size in use: auto, or a number [default: auto]
    #[arg(long, value_name = "N")]
    pub(crate) warm: Option<String>,
    /// Run in the background, with the log in a file; nothing supervises it
    #[arg(long)]
    pub(crate) detach: bool,
    /// Set in the process that `--detach` leaves in the background.
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub(crate) in_background: bool,
}

impl Serve {
    /// The flags as settings.
    pub(crate) fn settings(&self) -> Vec<(SettingKey, Option<String>)> {
        vec![
            (SettingKey::Listen, self.listen.clone()),
            (SettingKey::PublicUrl, self.public_url.clone()),
            (SettingKey::PortBind, self.port_bind.clone()),
            (SettingKey::PortRange, self.port_range.clone()),
            (SettingKey::PortAccess, self.port_access.clone()),
            (
                SettingKey::ArrakisAuth,
                self.arrakis_auth.then(|| ARRAKIS_ALWAYS.to_owned()),
            ),
            (SettingKey::Accel, self.accel.clone()),
            (SettingKey::Warm, self.warm.clone()),
        ]
    }
}

/// `pando bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Print JSON, with every sample
    #[arg(long)]
    pub(crate) json: bool,
    /// Fail if a bound of SPECIFICATION.md is missed that does not depend on the machine
    #[arg(long)]
    pub(crate) check: bool,
    /// Measure this only; repeat for more
    #[arg(long, value_name = "NAME", value_parser = Experiment::ALL.map(Experiment::word))]
    pub(crate) only: Vec<String>,
    /// Samples of each figure
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) samples: Option<u16>,
    /// Fewer samples
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the JSON into this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) raw: Option<PathBuf>,
}

/// `pando uninstall`.
#[derive(Debug, Args)]
pub(crate) struct Uninstall {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `pando shim`.
#[derive(Debug, Args)]
pub(crate) struct Shim {
    /// The sandbox's directory
    pub(crate) dir: PathBuf,
}

/// `NAME=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

/// `90`, `90s`, `1.5m`, `1h`, `2d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time such as 90, 90s, 5m or 1h".to_owned();
    let split = text
        .find(|character: char| character.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * seconds;
    if seconds > 0.0 && seconds.is_finite() {
        Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;

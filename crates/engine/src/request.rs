//! What callers may ask of the engine: its whole surface, as values.
//!
//! A door (`http`) translates its dialect to these and nothing else. Each type's
//! doc says in which states the request is legal; `lifecycle` enforces it.

use crate::EngineError;
use pando_types::{
    EgressPolicy, Isolation, Lifespan, Name, OnTimeout, SandboxId, SandboxLimits, SandboxState,
    Size, SnapshotId, SnapshotKind, TemplateRef,
};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Who asks. Every call carries one, every row belongs to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The tenant's name; `default` until there are others.
    pub tenant: String,
}

/// A sandbox as a caller names it: id, or name within the tenant.
pub type SandboxRef = String;

/// Make a sandbox; returns when it answers.
#[derive(Clone, Debug, Default)]
pub struct CreateSandbox {
    /// What to spawn from; `None` is the template `base`.
    pub template: Option<TemplateRef>,
    /// The snapshot to spawn from instead; its size is the sandbox's.
    pub from: Option<SnapshotRef>,
    /// Take the snapshot's disk only, as after a power-on; also where its memory cannot be
    /// used on this host.
    pub disk_only: bool,
    /// Unique among the tenant's sandboxes.
    pub name: Option<Name>,
    /// `None` is the template's default, else [`Size::DEFAULT`].
    pub cpus: Option<u32>,
    /// See `cpus`.
    pub memory_mib: Option<u32>,
    /// Environment of every process in it.
    pub env: BTreeMap<String, String>,
    /// Free text for the caller's own use.
    pub labels: BTreeMap<String, String>,
    /// What it may reach; `None` is what its snapshot's sandbox or its template says.
    pub egress: Option<EgressPolicy>,
    /// What it is started from.
    pub start: Start,
    /// What it may use of its host; what it does not say is what its snapshot's sandbox had,
    /// or the daemon's default.
    pub limits: SandboxLimits,
    /// How long it is there without being asked for.
    pub lifetime: Lifetime,
}

/// How long a sandbox is there without being asked for; by itself, for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// From the moment at which it first runs, and anew from each at which it goes on after
    /// a pause.
    pub timeout: Option<Lifespan>,
    /// While it runs and nothing uses it: no call, no file on its way, no bytes of its ports.
    pub idle_timeout: Option<Lifespan>,
    /// What becomes of it when either is over.
    pub on_timeout: OnTimeout,
    /// Whether a call that needs it running, or traffic to its ports, lets it go on when it
    /// is paused, by whomever.
    pub auto_resume: bool,
}

/// Change some of a [`Lifetime`]; `None` leaves what is. Legal in every state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifetimeChange {
    /// Counted from now.
    pub timeout: Option<Option<Lifespan>>,
    /// Counted from now at the earliest.
    pub idle_timeout: Option<Option<Lifespan>>,
    /// See [`Lifetime`].
    pub on_timeout: Option<OnTimeout>,
    /// See [`Lifetime`].
    pub auto_resume: Option<bool>,
}

/// What a new sandbox is started from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The quickest there is: a waiting clone, else a waiting process, else the snapshot.
    #[default]
    Auto,
    /// The template's snapshot, loaded for this request.
    Snapshot,
    /// Nothing: its kernel boots. Seconds without KVM; it shares no kernel secret with siblings.
    Boot,
}

/// A sandbox as seen from outside.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Its id, for life.
    pub id: SandboxId,
    /// Its name, if it was given one.
    pub name: Option<Name>,
    /// What it is doing.
    pub state: SandboxState,
    /// Why it is in `failed`, or other news about the state, for a person.
    pub state_reason: Option<String>,
    /// The last lines of its console, if it failed and was asked for alone; the guest wrote
    /// them, and control characters are taken out.
    pub last_console: Vec<String>,
    /// What it was spawned from.
    pub template: TemplateRef,
    /// The snapshot that its present state came from last: the one it was spawned from or
    /// rolled back to, or the last that was taken of it.
    pub parent: Option<SnapshotId>,
    /// CPUs and memory.
    pub size: Size,
    /// What stands between it and the host.
    pub isolation: Isolation,
    /// The environment given at creation.
    pub env: BTreeMap<String, String>,
    /// The labels given at creation.
    pub labels: BTreeMap<String, String>,
    /// What it may reach.
    pub egress: EgressPolicy,
    /// What it may use of its host.
    pub limits: SandboxLimits,
    /// What it costs, where that was asked.
    pub usage: Option<SandboxUsage>,
    /// When it was made.
    pub created_at: SystemTime,
    /// When it last began to run.
    pub started_at: Option<SystemTime>,
    /// How long it is there without being asked for.
    pub lifetime: Lifetime,
    /// When its timeout is over; `None` without one, and while it is paused.
    pub expires_at: Option<SystemTime>,
    /// When it was last used, as far as this daemon knows.
    pub last_used_at: SystemTime,
}

/// What a sandbox costs its host now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxUsage {
    /// Memory of its VMM and its shim that nobody shares with them; 0 without a VM.
    pub memory_bytes: u64,
    /// CPU time of both since its VM came up, in ms.
    pub cpu_ms: u64,
    /// Allocated bytes of files that are its own alone.
    pub disk_bytes: u64,
    /// Bytes from the guest by its network since its VM came up.
    pub net_sent_bytes: u64,
    /// Bytes to the guest since then.
    pub net_received_bytes: u64,
}

/// A snapshot as a caller names it: id, the beginning of one, or name within the tenant.
pub type SnapshotRef = String;

/// Keep a sandbox's present state. Legal while it runs; a snapshot of the disk alone also
/// while it is stopped.
#[derive(Clone, Debug, Default)]
pub struct TakeSnapshot {
    /// Unique among the tenant's snapshots.
    pub name: Option<Name>,
    /// With the memory, or the disk alone.
    pub kind: SnapshotKind,
    /// Free text for the caller's own use.
    pub labels: BTreeMap<String, String>,
    /// A sentence for people.
    pub note: String,
}

/// A kept state.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its id, for life.
    pub id: SnapshotId,
    /// Its name, if it was given one.
    pub name: Option<Name>,
    /// What it keeps.
    pub kind: SnapshotKind,
    /// The sandbox it was taken of, which may be gone.
    pub sandbox: SandboxId,
    /// The snapshot before it, which may be gone: what it differs from is kept all the same.
    pub parent: Option<SnapshotId>,
    /// The template that the first ancestor was made from.
    pub template: TemplateRef,
    /// CPUs and memory of what is spawned from it.
    pub size: Size,
    /// Labels given when it was taken.
    pub labels: BTreeMap<String, String>,
    /// The note given when it was taken.
    pub note: String,
    /// When it was taken.
    pub created_at: SystemTime,
    /// What taking it cost.
    pub cost: SnapshotCost,
}

/// What a snapshot cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SnapshotCost {
    /// From the first process that stood still to the last that went on, in ms.
    pub pause_ms: f64,
    /// From the request to the moment at which the snapshot survives a power cut, in ms.
    pub durable_ms: f64,
    /// Bytes that it takes on the disk beyond its parent.
    pub bytes: u64,
    /// Pages of memory that it keeps beyond its parent.
    pub dirty_pages: u64,
    /// The guest came to rest in time; otherwise its children had to be resynchronised.
    pub clean: bool,
}

/// Make running children of a running sandbox.
#[derive(Clone, Debug)]
pub struct Fork {
    /// How many: 1 to 1000.
    pub count: u32,
    /// Labels of each child.
    pub labels: BTreeMap<String, String>,
    /// Added to the environment that each child takes from its parent.
    pub env: BTreeMap<String, String>,
    /// How the lifetime of each differs from the parent's; its time begins when it runs.
    pub lifetime: LifetimeChange,
}

/// What came of a fork.
#[derive(Debug)]
pub struct Forked {
    /// What the one snapshot cost that all children share.
    pub cost: SnapshotCost,
    /// One for each child that was asked for; one that failed has left nothing.
    pub children: Vec<Result<Sandbox, EngineError>>,
}

/// Put a sandbox back into a kept state. Legal unless it is being created.
#[derive(Clone, Debug)]
pub struct Rollback {
    /// The state to go back to; it must be of the sandbox's own size and template.
    pub snapshot: SnapshotRef,
    /// Keep what is left behind as a snapshot of this name first.
    pub save: Option<Name>,
}

/// A sandbox after a rollback.
#[derive(Clone, Debug)]
pub struct RolledBack {
    /// As it is now.
    pub sandbox: Sandbox,
    /// What was left behind, where it was to be kept.
    pub saved: Option<Snapshot>,
}

/// A tenant's snapshots and sandboxes, as they came from one another.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Oldest first.
    pub sandboxes: Vec<Sandbox>,
}

/// Where disk space has gone. Bytes are allocated ones; what several share counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Layers of snapshots.
    pub snapshots: u64,
    /// What sandboxes have beyond the snapshots and templates that they came from.
    pub sandboxes: u64,
    /// Whole memory files that were put together from layers, to be mapped.
    pub materialized: u64,
    /// The most that `materialized` may be.
    pub materialized_limit: u64,
    /// Bakes of templates.
    pub bakes: u64,
    /// Root images, kernels and initrds.
    pub images: u64,
    /// What is free where the state is.
    pub free: u64,
}

/// What to run. Legal while the sandbox runs.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// Program and arguments; the program is looked up in the sandbox's PATH.
    pub argv: Vec<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// Working directory; `None` is the user's home.
    pub cwd: Option<String>,
    /// Account to run as; `None` is `user`.
    pub user: Option<String>,
    /// After this the whole process group is killed.
    pub timeout: Option<Duration>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Set when it exited by itself.
    pub exit_code: Option<i32>,
    /// Set when a signal ended it.
    pub signal: Option<u32>,
    /// The timeout ended it.
    pub timed_out: bool,
}

/// The result of a blocking exec.
#[derive(Clone, Debug)]
pub struct ExecResult {
    /// How it ended.
    pub exit: Exit,
    /// The first [`pando_types::limits::EXEC_OUTPUT_BYTES`] of its stdout.
    pub stdout: Vec<u8>,
    /// The same of its stderr.
    pub stderr: Vec<u8>,
    /// Output beyond the limit was dropped.
    pub truncated: bool,
    /// From its start to its end, seen by the shim.
    pub duration: Duration,
    /// Which process it was.
    pub process_id: ProcessId,
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Columns.
    pub cols: u32,
    /// Rows.
    pub rows: u32,
}

/// Start a process to be followed with `attach`. Legal while the sandbox runs.
#[derive(Clone, Debug)]
pub struct StartProcess {
    /// What to run.
    pub command: Command,
    /// Give it a terminal of this size.
    pub tty: Option<WindowSize>,
    /// Whether its stdin can be fed; otherwise it is empty.
    pub stdin: bool,
    /// Names the request, for who asks again: nothing is started twice.
    pub request_id: Option<String>,
}

/// Names a process of one sandbox; survives a restart of the daemon.
pub type ProcessId = String;

/// Something for a running process.
#[derive(Clone, Debug)]
pub enum ProcessInput {
    /// Bytes for stdin or the terminal.
    Data(bytes::Bytes),
    /// End of stdin.
    CloseStdin,
    /// A Linux signal number for its whole process group.
    Signal(u32),
    /// The terminal's new size.
    Resize(WindowSize),
}

/// Which of its outputs a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Its terminal.
    Tty,
}

/// What a follower of a process receives, in order; `Exit` is the last.
#[derive(Clone, Debug)]
pub enum ProcessEvent {
    /// Output was written.
    Output {
        /// Where.
        stream: OutputStream,
        /// What.
        data: bytes::Bytes,
        /// Where to attach again to go on after these bytes.
        next_offset: u64,
    },
    /// This much output is no longer kept.
    Gap {
        /// Bytes lost.
        lost_bytes: u64,
    },
    /// It ended.
    Exit(Exit),
}

/// A process the shim knows.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// Its id for `attach` and `input`.
    pub process_id: ProcessId,
    /// Its number inside the guest.
    pub pid: u32,
    /// What was started.
    pub argv: Vec<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// How it ended; `None` while it runs.
    pub exit: Option<Exit>,
    /// When it was started.
    pub started_at: SystemTime,
}

/// An entry of the journal: what happened to what, when.
#[derive(Clone, Debug)]
pub struct Event {
    /// Increases by one each; resume reading after it.
    pub sequence: u64,
    /// When.
    pub at: SystemTime,
    /// A word such as `sandbox.created`.
    pub kind: String,
    /// The id it happened to.
    pub subject: String,
    /// For a person.
    pub detail: String,
}

/// Which entries of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Those about this sandbox alone: its id, or the name of one that is there.
    pub sandbox: Option<SandboxRef>,
    /// Those alone whose kind begins like this, such as `sandbox.`; empty for all.
    pub kind_prefix: String,
}

/// What a sandbox may reach and does.
#[derive(Clone, Debug)]
pub struct NetworkReport {
    /// What it may reach.
    pub egress: EgressPolicy,
    /// What lives, oldest first.
    pub connections: Vec<NetworkConnection>,
    /// The last refusals, oldest first.
    pub refusals: Vec<NetworkRefusal>,
    /// Bytes from the guest since its VM came up.
    pub sent_bytes: u64,
    /// Bytes to the guest since then.
    pub received_bytes: u64,
    /// Connections and flows that were let through since then.
    pub connections_total: u64,
    /// What was refused since then.
    pub refused_total: u64,
}

impl NetworkReport {
    /// That of a sandbox without a VM.
    pub(crate) fn of(egress: EgressPolicy) -> Self {
        Self {
            egress,
            connections: Vec::new(),
            refusals: Vec::new(),
            sent_bytes: 0,
            received_bytes: 0,
            connections_total: 0,
            refused_total: 0,
        }
    }
}

/// A connection, or a flow of datagrams or pings.
#[derive(Clone, Debug)]
pub struct NetworkConnection {
    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// The guest's end, as `ADDRESS:PORT`.
    pub guest: String,
    /// The other end, as `ADDRESS:PORT`.
    pub remote: String,
    /// The name it is for, if it is known.
    pub name: Option<String>,
    /// `connecting`, `open` or `half-closed`.
    pub state: String,
    /// Bytes from the guest.
    pub sent_bytes: u64,
    /// Bytes to the guest.
    pub received_bytes: u64,
    /// Since it began, in ms.
    pub age_ms: u64,
}

/// Something that was refused.
#[derive(Clone, Debug)]
pub struct NetworkRefusal {
    /// When first.
    pub at: SystemTime,
    /// `tcp`, `udp`, `icmp` or `dns`.
    pub protocol: String,
    /// Where to.
    pub address: String,
    /// Its port; 0 where there is none.
    pub port: u32,
    /// Its name, if it is known.
    pub name: Option<String>,
    /// What refused it.
    pub rule: String,
    /// How often within ten seconds.
    pub count: u64,
}

/// A template that sandboxes can be made from.
#[derive(Clone, Debug)]
pub struct Template {
    /// Name and tag.
    pub reference: TemplateRef,
    /// The content hash of its root file system and kernel.
    pub content_hash: String,
    /// What its sandboxes may reach where they do not say it.
    pub egress: EgressPolicy,
    /// The sizes that are baked.
    pub baked: Vec<Size>,
    /// Allocated bytes of its files.
    pub disk_bytes: u64,
    /// When it was made.
    pub created_at: SystemTime,
}

/// What the daemon says of itself.
#[derive(Clone, Debug)]
pub struct Status {
    /// Version of the running daemon.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// How guests are run, and why.
    pub accelerator: pando_types::Accelerator,
    /// See `accelerator`.
    pub accelerator_reason: String,
    /// The VMM and its version.
    pub vmm: String,
    /// Sandboxes by state.
    pub sandboxes: BTreeMap<&'static str, u64>,
    /// How long it has been up.
    pub uptime: Duration,
    /// What waits for the next request.
    pub pool: PoolStatus,
    /// Starts that wait for their turn or have it.
    pub starts_under_way: usize,
    /// Starts that were refused since the daemon's: by limits, or by a full or busy host.
    pub starts_refused: u64,
    /// What was taken over at its start.
    pub adoption: Adoption,
    /// What the host has left.
    pub headroom: Headroom,
}

/// What the host has left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headroom {
    /// Memory that the kernel could give, swap aside.
    pub memory_available_bytes: u64,
    /// All of it.
    pub memory_total_bytes: u64,
    /// Room on the state directory's file system.
    pub disk_available_bytes: u64,
    /// Its size.
    pub disk_size_bytes: u64,
    /// CPUs that the daemon may use.
    pub cpus: usize,
    /// Tasks that run or wait, the average of a minute.
    pub load_1m: f64,
}

/// What a daemon took over at its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adoption {
    /// Sandboxes that ran.
    pub sandboxes: usize,
    /// From the daemon's start until all were taken over.
    pub took: Duration,
}

/// Work done ahead of requests.
#[derive(Clone, Debug, Default)]
pub struct PoolStatus {
    /// Slots that wait, by what they are made from.
    pub slots: Vec<PoolSlots>,
    /// Slots that are being made.
    pub filling: usize,
    /// Why fewer wait than are wanted.
    pub limited_by: Option<String>,
    /// Sandboxes made since the start, by what they were made from.
    pub claims: BTreeMap<&'static str, u64>,
}

/// Slots of one kind, template and size.
#[derive(Clone, Debug)]
pub struct PoolSlots {
    /// The template; `None` for processes that fit any.
    pub template: Option<String>,
    /// CPUs and memory.
    pub size: Size,
    /// `warm`, `bound` or `generic`.
    pub kind: &'static str,
    /// How many wait.
    pub waiting: usize,
    /// How many are wanted.
    pub wanted: usize,
}

//! Bounds that several parts share, each with its reason.

/// Output kept of a process for those that attach late: a terminal's scrollback
/// and most build logs fit, and 100 busy processes stay below 128 MiB.
pub const PROCESS_REPLAY_BYTES: usize = 1 << 20;

/// Bytes kept of stdout and of stderr by one blocking exec, each. What agents
/// read in one piece is far smaller; more is for the stream or a file.
pub const EXEC_OUTPUT_BYTES: u64 = 8 << 20;

/// Bytes of stdin in one blocking exec; more is for the stream or a file.
pub const EXEC_STDIN_BYTES: usize = 8 << 20;

/// Body of a JSON request. The largest honest one carries an exec's stdin in base64.
pub const JSON_BODY_BYTES: usize = 12 << 20;

/// Largest guest memory an id list, a label set or an environment may take in a request.
pub const ENV_BYTES: usize = 128 << 10;

/// Processes whose output a shim keeps at once; the oldest ended ones go first.
pub const PROCESSES_KEPT: usize = 256;

/// The virtual size of a sandbox's writable disk. It takes space only as it is written.
pub const DISK_GIB: u64 = 8;

/// Layers of a running VM's disk. Each snapshot adds one; a VM that goes on from one begins
/// with few. QEMU holds three descriptors for each, and reads through them one by one.
pub const DISK_LAYERS: usize = 400;

/// Children of one fork. Beyond it a caller forks again and sees in between what came of it.
pub const FORK_CHILDREN: u32 = 1000;

/// A snapshot's note: a sentence or a page for people, not a place for data.
pub const NOTE_BYTES: usize = 4 << 10;

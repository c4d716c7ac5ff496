//! What this door reads and writes, as its document describes it.
//!
//! Fields of answers stand in alphabetical order.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// What a VM is started from. Fields that are not named here, such as `entryPoint`, are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StartVm {
    /// Its name: 1 to 128 letters, digits, `.`, `_` or `-`, the first a letter or digit; nothing that looks like an id, and
    /// no word such as `ls` that the command line knows as a command.
    #[serde(default, deserialize_with = "text")]
    #[schema(value_type = String, required, example = "agent")]
    pub(super) vm_name: String,
    /// The name of the snapshot that it goes on from. Empty, null or left out: a new one is made from the template, one
    /// that is off is started on its disk, one that is paused goes on. With it, a VM that is there is put back in place.
    #[serde(default, deserialize_with = "text")]
    #[schema(value_type = Option<String>, example = "good")]
    pub(super) snapshot_id: String,
    /// A file of the host, which no client may choose: refused unless empty, null, left out, or beside `snapshotId`, where
    /// it means nothing.
    #[serde(default, deserialize_with = "text")]
    #[schema(value_type = Option<String>)]
    pub(super) kernel: String,
    /// As `kernel`.
    #[serde(default, deserialize_with = "text")]
    #[schema(value_type = Option<String>)]
    pub(super) initramfs: String,
    /// As `kernel`.
    #[serde(default, deserialize_with = "text")]
    #[schema(value_type = Option<String>)]
    pub(super) rootfs: String,
}

/// A string that may be null, which is as good as empty.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The state that a VM is to be in.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChangeVm {
    /// The word for it.
    #[serde(default, deserialize_with = "text")]
    #[schema(value_type = Wanted, required)]
    pub(super) status: String,
}

/// A state to be put into: `stopped`, shut down in order, with what was written on the disk; `paused`, on the disk, memory
/// included; `resume`, going on from there. A VM that is in it already is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Wanted {
    Stopped,
    Paused,
    Resume,
}

/// What a VM's state is to be kept as.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeepVm {
    /// The snapshot's name, of the same letters as a VM's. Empty, null or left out: `snapshot-NAME-DATE-TIME`.
    #[serde(default, deserialize_with = "text")]
    #[schema(value_type = Option<String>, example = "good")]
    pub(super) snapshot_id: String,
}

/// A command.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct RunCommand {
    /// What `bash -c` runs, as root in `/tmp/server_files`; not empty.
    #[schema(min_length = 1, example = "echo hello")]
    pub(super) cmd: String,
    /// Whether the answer waits for its end, however long that takes, and has its output.
    #[serde(default = "blocking")]
    #[schema(default = true)]
    pub(super) blocking: bool,
}

fn blocking() -> bool {
    true
}

/// Files to be written, as root; those before one that cannot be are there.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Upload {
    /// At least one.
    #[schema(min_items = 1)]
    pub(super) files: Vec<UploadedFile>,
}

/// A file to be written, with the directories that are missing. One that is there is replaced.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct UploadedFile {
    /// Absolute, or relative to `/tmp/server_files`; not empty.
    #[schema(min_length = 1, example = "a.txt")]
    pub(super) path: String,
    /// Text, all of it.
    pub(super) content: String,
}

/// That the daemon answers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// `healthy`.
    #[schema(example = "healthy")]
    pub(super) status: &'static str,
    /// The daemon's time in UTC, to the second (RFC 3339).
    #[schema(example = "2026-01-01T00:00:00Z")]
    pub(super) timestamp: String,
}

/// A VM.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Vm {
    /// Its address inside with the length of the network's prefix, the same in every VM: the host does not reach it there.
    #[schema(example = "10.0.2.15/24")]
    pub(super) ip: &'static str,
    /// The ports of the host that lead into it; its own as long as it is there.
    pub(super) port_forwards: Vec<PortForward>,
    /// What it does.
    pub(super) status: VmStatus,
    /// Empty: there is no such device.
    #[schema(example = "")]
    pub(super) tap_device_name: &'static str,
    /// Its name.
    #[schema(example = "agent")]
    pub(super) vm_name: String,
}

/// A port of the host that leads to one of a VM's.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PortForward {
    /// What it is for: `gui`, the desktop, where the template has one, or `code`, for servers of your own.
    #[schema(example = "code")]
    pub(super) description: &'static str,
    /// The port inside, in decimal digits.
    #[schema(example = "5736")]
    pub(super) guest_port: String,
    /// The port of the host, in decimal digits.
    #[schema(example = "20000")]
    pub(super) host_port: String,
}

/// What a VM does: it comes up; it runs, or is about to be off; it is off, died or powered itself off, and comes back on its
/// disk when it is started; it is on the disk, memory included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum VmStatus {
    Created,
    Running,
    Stopped,
    Paused,
}

/// The caller's VMs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VmList {
    /// All of them that have a name.
    pub(super) vms: Vec<Vm>,
}

/// That it was done.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Done {
    /// `true`.
    pub(super) success: bool,
}

/// What a VM's state was kept as.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptVm {
    /// The snapshot's name.
    #[schema(example = "good")]
    pub(super) snapshot_id: String,
}

/// What became of a command.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RanCommand {
    /// Empty where it went well or was not waited for, else how it ended: `exit status N`, `signal: killed`.
    #[schema(example = "exit status 1")]
    pub(super) error: String,
    /// Stdout and stderr in one, at most 8 MiB and then a line that says so; bytes that are not UTF-8 are replaced. Of a
    /// command that was not waited for, that it was started.
    #[schema(example = "hello\n")]
    pub(super) output: String,
}

/// That the files were written: an object without fields.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Uploaded {}

/// The files that were asked for, in that order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Download {
    /// One for each path.
    pub(super) files: Vec<DownloadedFile>,
}

/// A file, or why it could not be read.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DownloadedFile {
    /// Its text; bytes that are not UTF-8 are replaced. Empty where it could not be read.
    pub(super) content: String,
    /// Why it could not be read, else empty.
    #[schema(example = "")]
    pub(super) error: String,
    /// As it was asked for.
    #[schema(example = "a.txt")]
    pub(super) path: String,
}

/// The body of a refusal.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Refused {
    /// What went wrong.
    pub(super) error: RefusedError,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RefusedError {
    /// One sentence for a person. It names VMs by their names.
    #[schema(example = "sandbox `agent` not found")]
    pub(super) message: String,
}

//! Signals to programs that want to know that they are in another clone.
//!
//! A process puts a file into a folder: its name is the process id, its content a signal,
//! `USR1` or `10`. At every spawn the signal is sent while user processes are still
//! frozen, so that it is there before the program's next instruction.
//!
//! Everything in the folder is a user's word. A file counts where
//!
//! - its owner is the process' own user, or root: as with kill(2);
//! - the process is a user process, not the agent or a hook;
//! - the process catches or blocks the signal. Numbers are used again: who did not prepare
//!   for the signal, which would mostly kill it, is not who asked for it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Files that are looked at in one spawn, which waits for it. Far more than there are
/// programs with a reason.
const MAX_FILES: usize = 1024;

/// The longest signal's name, with `SIG` and a line's end, and room for spaces.
const MAX_BYTES: u64 = 32;

/// By their numbers, from 1 on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// What became of the folder's files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Notified {
    /// Signals that were sent.
    pub sent: usize,
    /// Files of processes that are gone; they were removed.
    pub removed: usize,
    /// There are more files than are looked at.
    pub cut_off: bool,
}

/// Sends what the files in `folder` ask for, to processes below `cgroup`.
///
/// # Errors
/// The folder cannot be read, or is none. What is wrong with one file is no error.
pub(crate) fn notify(folder: &Path, cgroup: &str) -> io::Result<Notified> {
    // A tmpfs says how much is in a folder. Usually nothing is, and to list it takes
    // milliseconds without KVM.
    let data = fs::symlink_metadata(folder)?;
    if data.is_dir() && data.len() == 0 {
        return Ok(Notified::default());
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let mut notified = Notified::default();
    for (looked_at, entry) in Dir::read_from(&folder)?.enumerate() {
        // Two more, for the folder itself and its parent.
        if looked_at >= MAX_FILES + 2 {
            notified.cut_off = true;
            break;
        }
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().ok().and_then(parse_pid) else {
            continue;
        };
        match send(&folder, entry.file_name(), pid, cgroup) {
            Ok(true) => notified.sent += 1,
            Ok(false) => {}
            // There is no such process.
            Err(Errno::SRCH) => {
                let removed = rustix::fs::unlinkat(&folder, entry.file_name(), AtFlags::empty());
                notified.removed += usize::from(removed.is_ok());
            }
            // A file that vanished or cannot be read asks for nothing.
            Err(_) => {}
        }
    }
    Ok(notified)
}

/// A process id as the kernel writes it; process 1 is the agent.
fn parse_pid(name: &str) -> Option<Pid> {
    let plain = !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
    let pid = name.parse().ok().filter(|pid| plain && *pid > 1)?;
    Pid::from_raw(pid)
}

/// Sends one file's signal; says whether it did.
fn send(
    folder: &impl std::os::fd::AsFd,
    name: &std::ffi::CStr,
    pid: Pid,
    cgroup: &str,
) -> Result<bool, Errno> {
    // Held from before the checks on: the signal goes to the process that was checked.
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let Some((signal, owner)) = read_wish(folder, name)? else {
        return Ok(false);
    };
    let Some(found) = Process::read(pid) else {
        return Ok(false);
    };
    if !found.may_get(signal, owner, cgroup) {
        return Ok(false);
    }
    pidfd_send_signal(process, signal)?;
    Ok(true)
}

/// The signal that a file asks for, and whose file it is.
fn read_wish(
    folder: &impl std::os::fd::AsFd,
    name: &std::ffi::CStr,
) -> Result<Option<(Signal, u32)>, Errno> {
    // Not blocking: it may be a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    let data = file.metadata().map_err(|error| errno(&error))?;
    // One with a second name may be another's, linked to here.
    if !data.is_file() || data.nlink() != 1 || data.len() > MAX_BYTES {
        return Ok(None);
    }
    let mut text = String::new();
    let read = file.take(MAX_BYTES).read_to_string(&mut text);
    let signal = read.ok().and_then(|_| parse_signal(text.trim()));
    Ok(signal.map(|signal| (signal, data.uid())))
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// `USR1`, `SIGUSR1` or `10`.
fn parse_signal(text: &str) -> Option<Signal> {
    let number = match text.parse() {
        Ok(number) => number,
        Err(_) => {
            let name = text.strip_prefix("SIG").unwrap_or(text);
            let index = NAMES.iter().position(|known| *known == name)?;
            i32::try_from(index + 1).ok()?
        }
    };
    Signal::from_named_raw(number)
}

/// What the kernel says of a process.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    user: u32,
    /// Signals that it catches or blocks: bit 0 is signal 1.
    prepared_for: u64,
    cgroup: String,
}

impl Process {
    fn read(pid: Pid) -> Option<Self> {
        let read = |file| fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_pid())).ok();
        Self::parse(&read("status")?, &read("cgroup")?)
    }

    fn parse(status: &str, cgroup: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.split_whitespace().next()
        };
        let mask = |name| u64::from_str_radix(field(name)?, 16).ok();
        let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some(Self {
            user: field("Uid")?.parse().ok()?,
            prepared_for: mask("SigCgt")? | mask("SigBlk")?,
            cgroup: cgroup.to_owned(),
        })
    }

    fn may_get(&self, signal: Signal, owner: u32, cgroup: &str) -> bool {
        let bit = 1_u64 << (signal.as_raw() - 1);
        let below = self.cgroup.strip_prefix(cgroup);
        let is_users = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        is_users && (owner == self.user || owner == 0) && self.prepared_for & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// The cgroup of this process and what it starts, as the agent's `/user`.
    fn own_cgroup() -> String {
        let own = Process::read(rustix::process::getpid()).expect("this process");
        own.cgroup
    }

    /// A shell that prints a line when it is ready and one at SIGUSR1, and then ends. It
    /// waits without starting anything: a shell that forks blocks all signals for a moment.
    fn waiting_shell() -> Child {
        let script = "trap 'echo got it; exit' USR1; echo ready; read never";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        assert_eq!(line(&mut child), "ready");
        child
    }

    fn line(child: &mut Child) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        let stdout = child.stdout.as_mut().expect("piped");
        while stdout.read(&mut byte).expect("read") == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        String::from_utf8(line).expect("text")
    }

    #[test]
    fn a_process_gets_the_signal_that_its_file_names() {
        let folder = tempfile::tempdir().expect("folder");
        for text in ["USR1", "SIGUSR1\n", "10\n"] {
            let mut child = waiting_shell();
            let file = folder.path().join(child.id().to_string());
            fs::write(&file, text).expect("written");
            let notified = notify(folder.path(), &own_cgroup()).expect("notified");
            assert_eq!(notified.sent, 1, "{text:?}");
            assert_eq!(line(&mut child), "got it");
            child.wait().expect("ended");
            let after = notify(folder.path(), &own_cgroup()).expect("notified");
            assert_eq!((after.sent, after.removed), (0, 1));
            assert!(!file.exists(), "of a process that is gone");
        }
    }

    #[test]
    fn nothing_but_a_plain_small_file_with_a_signal_counts() {
        let folder = tempfile::tempdir().expect("folder");
        let mut child = waiting_shell();
        let file = folder.path().join(child.id().to_string());
        let sent = || notify(folder.path(), &own_cgroup()).expect("notified").sent;
        for text in [
            "",
            "USR3",
            "0",
            "-10",
            "65",
            "USR1 and more",
            &"1".repeat(33),
        ] {
            fs::write(&file, text).expect("written");
            assert_eq!(sent(), 0, "{text:?}");
        }
        fs::write(&file, [0xff, 0xfe]).expect("written");
        assert_eq!(sent(), 0, "not text");
        fs::write(&file, "USR1").expect("written");
        let elsewhere = folder.path().join("elsewhere");
        fs::hard_link(&file, &elsewhere).expect("link");
        assert_eq!(sent(), 0, "a file with two names");
        fs::remove_file(&file).expect("removed");
        std::os::unix::fs::symlink(&elsewhere, &file).expect("link");
        assert_eq!(sent(), 0, "a symlink");
        fs::remove_file(&file).expect("removed");
        let mode = Mode::from_raw_mode(0o644);
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &file, pipe, mode, 0).expect("pipe");
        assert_eq!(sent(), 0, "a pipe");
        fs::remove_file(&file).expect("removed");
        fs::create_dir(&file).expect("folder");
        assert_eq!(sent(), 0, "a folder");
        child.kill().expect("killed");
        child.wait().expect("ended");
        // A folder cannot be removed like a file, and must not be in others' way.
        assert_eq!(sent(), 0, "a folder of a process that is gone");
    }

    #[test]
    fn who_is_not_prepared_or_no_user_process_gets_none() {
        let folder = tempfile::tempdir().expect("folder");
        let mut child = waiting_shell();
        let file = folder.path().join(child.id().to_string());
        // Its default would end the shell.
        fs::write(&file, "USR2").expect("written");
        let notified = notify(folder.path(), &own_cgroup()).expect("notified");
        assert_eq!(notified, Notified::default());
        fs::write(&file, "USR1").expect("written");
        let notified = notify(folder.path(), "/elsewhere").expect("notified");
        assert_eq!(notified, Notified::default());
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    #[test]
    fn a_signal_needs_the_process_own_user_or_root() {
        let status = "Name:\tUid: 7\nUid:\t1000\t0\t0\t0\nSigBlk:\t0000000000000800\n\
                      SigIgn:\t0000000000001000\nSigCgt:\t0000000000000200\n";
        let process = Process::parse(status, "0::/user/deeper\n").expect("well-formed");
        assert_eq!(process.user, 1000);
        let may = |signal, owner, cgroup| process.may_get(signal, owner, cgroup);
        assert!(may(Signal::USR1, 1000, "/user"), "its own, caught");
        assert!(may(Signal::USR2, 0, "/user"), "root's, blocked");
        assert!(!may(Signal::USR1, 1001, "/user"), "another's");
        assert!(!may(Signal::PIPE, 1000, "/user"), "ignored");
        assert!(!may(Signal::KILL, 0, "/user"), "cannot be caught");
        assert!(!may(Signal::USR1, 1000, "/use"), "another cgroup");
        assert!(!may(Signal::USR1, 1000, "/agent"), "another cgroup");
    }

    #[test]
    fn names_that_are_no_process_id_are_left_alone() {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["0", "1", "01", "+7", "-1", "99999999999", "7.tmp", ".7"] {
            fs::write(folder.path().join(name), "USR1").expect("written");
        }
        let notified = notify(folder.path(), &own_cgroup()).expect("notified");
        assert_eq!(notified, Notified::default());
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 8);
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let folder = tempfile::tempdir().expect("folder");
        for name in 0..MAX_FILES {
            fs::write(folder.path().join(format!("x{name}")), "").expect("written");
        }
        let cut_off = || notify(folder.path(), "/user").expect("notified").cut_off;
        assert!(!cut_off());
        fs::write(folder.path().join("one more"), "").expect("written");
        assert!(cut_off());
    }

    #[test]
    fn a_folder_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).expect("link");
        assert!(notify(&link, "/user").is_err());
    }

    #[test]
    fn names_and_numbers_agree() {
        for (index, name) in NAMES.iter().enumerate() {
            let number = (index + 1).to_string();
            assert_eq!(parse_signal(name), parse_signal(&number), "{name}");
            assert!(parse_signal(name).is_some(), "{name}");
        }
        assert_eq!(parse_signal("USR1"), Some(Signal::USR1));
        assert_eq!(parse_signal("SYS"), Some(Signal::SYS));
    }
}

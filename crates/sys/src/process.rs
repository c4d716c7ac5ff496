//! Limits of another process of ours, while it runs.

use std::fs;
use std::io;

use rustix::process::{Pid, Resource, Rlimit, prlimit, setpriority_process};

/// The lowest priority that a process can have.
pub const MAX_NICE: i32 = 19;

/// Looks for threads that came while others were made nice, at most so often: a process
/// that makes threads faster than it is looked at is not waited for.
const ROUNDS: usize = 4;

fn pid_of(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Has no file that the process writes grow beyond `bytes`, for good. Needs no privilege
/// for a process of the same account.
///
/// # Errors
/// It is gone or another account's, or had a lower limit.
pub fn limit_file_bytes(pid: u32, bytes: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    prlimit(Some(pid_of(pid)?), Resource::Fsize, limit)?;
    Ok(())
}

/// The most that a file which the process writes may grow to, where it is limited.
///
/// # Errors
/// The process is gone.
pub fn file_bytes_limit(pid: u32) -> io::Result<Option<u64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max file size"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    Ok(soft.and_then(|soft| soft.parse().ok()))
}

/// Gives every thread of the process this priority, from 0 to [`MAX_NICE`]; those that
/// they start later have it too. Needs no privilege for a process of the same account
/// whose priority is not raised by it.
///
/// # Errors
/// The process is gone or another account's.
pub fn be_nice(pid: u32, nice: i32) -> io::Result<()> {
    let mut known = Vec::new();
    for _ in 0..ROUNDS {
        let threads = threads(pid)?;
        let fresh: Vec<_> = threads.iter().filter(|id| !known.contains(*id)).collect();
        if fresh.is_empty() {
            break;
        }
        for thread in fresh {
            match setpriority_process(Some(pid_of(*thread)?), nice) {
                // It has ended meanwhile.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        known = threads;
    }
    Ok(())
}

fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let names = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    Ok(names.collect())
}

/// What a process has used, from `/proc/PID`. Anybody may read it, whoever's it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUse {
    /// Memory that nobody shares with it: anonymous, which a written page of a private file
    /// mapping also is, and what of that is swapped out. In bytes.
    pub private_bytes: u64,
    /// CPU time of all its threads, in ms.
    pub cpu_ms: u64,
}

impl ProcessUse {
    /// Reads it; constant work, however much memory it has.
    ///
    /// # Errors
    /// The process is gone.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let bytes = |name| crate::host::meminfo_bytes(&status, name).unwrap_or(0);
        Ok(Self {
            private_bytes: bytes("RssAnon") + bytes("VmSwap"),
            cpu_ms: cpu_ms(&stat).unwrap_or(0),
        })
    }
}

/// Fields 14 and 15 of `/proc/PID/stat`: time in user code and in the kernel.
fn cpu_ms(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses and may hold spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some((user + kernel).saturating_mul(1000) / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_limited_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        // It waits for a line, so that the limit comes after its start.
        let script = "trap '' XFSZ; read line; head -c 100000 /dev/zero > \"$0\"";
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .arg(&file)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        assert_eq!(file_bytes_limit(pid).unwrap(), None);
        limit_file_bytes(pid, 4096).unwrap();
        be_nice(pid, 7).unwrap();
        assert_eq!(file_bytes_limit(pid).unwrap(), Some(4096));
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let nice = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16);
        assert_eq!(nice, Some("7"));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), 4096);
    }

    #[test]
    fn what_a_process_used_is_read() {
        let used = ProcessUse::of(std::process::id()).unwrap();
        assert!(used.private_bytes > 0);
        assert!(ProcessUse::of(u32::MAX).is_err());
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 7 1";
        assert_eq!(cpu_ms(stat), Some(3000));
        assert_eq!(cpu_ms("7 (x"), None);
    }
}

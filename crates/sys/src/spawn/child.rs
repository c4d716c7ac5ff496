//! The code that runs between fork and exec.
//!
//! Other threads of the parent may have held any lock at the fork, so nothing
//! here allocates, locks or unwinds: raw system calls on memory laid out before.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use seccompiler::sock_filter;

use super::Identity;
use crate::jail::seccomp::set_own_pid;

/// Everything the child touches, laid out by the parent.
pub(super) struct Layout<'a> {
    pub(super) program: &'a CStr,
    pub(super) argv: &'a [*const libc::c_char],
    pub(super) envp: &'a [*const libc::c_char],
    pub(super) directory: Option<&'a CStr>,
    pub(super) copies: &'a [(OwnedFd, RawFd)],
    pub(super) gaps: &'a [RawFd],
    pub(super) limits: &'a [(libc::__rlimit_resource_t, libc::rlimit)],
    pub(super) new_session: bool,
    pub(super) death_signal: Option<i32>,
    pub(super) large_files_fail: bool,
    pub(super) parent_pid: i32,
    pub(super) identity: Option<Identity>,
    pub(super) landlock: Option<RawFd>,
    pub(super) seccomp: Option<&'a [Cell<sock_filter>]>,
    /// Whether the child may gain privileges by an exec.
    pub(super) keeps_privileges: bool,
    pub(super) group: Option<RawFd>,
    pub(super) report: RawFd,
}

/// What the child was doing when it failed.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Step {
    Signals,
    Session,
    Directory,
    Descriptors,
    Limits,
    Identity,
    DeathSignal,
    NoNewPrivileges,
    Landlock,
    Seccomp,
    Exec,
}

impl Step {
    /// The step with this number, as a verb phrase.
    pub(super) fn describe(number: u8) -> &'static str {
        const STEPS: [&str; 11] = [
            "reset its signals",
            "start a session",
            "enter its working directory",
            "arrange its descriptors",
            "set its resource limits",
            "become its user",
            "tie its life to its parent",
            "give up gaining privileges",
            "enter its landlock domain",
            "install its system call filter",
            "execute the program",
        ];
        STEPS
            .get(usize::from(number))
            .copied()
            .unwrap_or("say what it was doing")
    }
}

/// Forks; returns the child's pid in the parent and never in the child.
pub(super) fn fork(layout: &Layout<'_>) -> io::Result<i32> {
    let forked = match layout.group {
        // SAFETY: the child runs only `run`, which keeps to async-signal-safe calls.
        None => unsafe { libc::fork() },
        Some(group) => fork_into(group),
    };
    match forked {
        -1 => Err(io::Error::last_os_error()),
        0 => run(layout),
        pid => Ok(pid),
    }
}

/// As `fork`, but the child begins in this control group (Linux 5.7). To move it there
/// afterwards would wait for every CPU of the host, tens of milliseconds.
fn fork_into(group: RawFd) -> i32 {
    // SAFETY: an all-zero clone_args is a valid one: no flags, no addresses.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = group as u64;
    // SAFETY: `arguments` is a clone_args of the size given. Without CLONE_VM and a stack
    // of its own the child goes on with copies, as after fork. What glibc's fork does
    // besides is for children that use its locks and handlers; this one runs only `run`,
    // which keeps to system calls.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<libc::clone_args>(),
        )
    };
    result as i32
}

/// The kernel's `CLONE_INTO_CGROUP`, which is wider than libc's type for flags.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn run(layout: &Layout<'_>) -> ! {
    let Err((step, errno)) = prepare_and_exec(layout);
    let [a, b, c, d] = errno.to_ne_bytes();
    let report = [step as u8, a, b, c, d];
    // SAFETY: `report` is five readable bytes; both calls are async-signal-safe.
    unsafe {
        libc::write(layout.report, report.as_ptr().cast(), report.len());
        libc::_exit(127)
    }
}

type Failed = (Step, i32);

fn prepare_and_exec(layout: &Layout<'_>) -> Result<std::convert::Infallible, Failed> {
    reset_signals(layout.large_files_fail)?;
    if layout.new_session {
        // SAFETY: takes no argument.
        check(Step::Session, unsafe { libc::setsid() })?;
    }
    if let Some(directory) = layout.directory {
        // SAFETY: a C string that outlives the call.
        check(Step::Directory, unsafe { libc::chdir(directory.as_ptr()) })?;
    }
    arrange_descriptors(layout)?;
    for (resource, limit) in layout.limits {
        // SAFETY: `limit` is a valid rlimit that outlives the call.
        check(Step::Limits, unsafe { libc::setrlimit(*resource, limit) })?;
    }
    if let Some(identity) = layout.identity {
        become_user(identity)?;
    }
    // After the identity: a change of credentials clears it.
    if let Some(signal) = layout.death_signal {
        tie_to_parent(signal, layout.parent_pid)?;
    }
    if !layout.keeps_privileges {
        prctl(Step::NoNewPrivileges, libc::PR_SET_NO_NEW_PRIVS, 1)?;
    }
    if let Some(ruleset) = layout.landlock {
        // SAFETY: a descriptor number and flags; no memory is passed.
        let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) };
        check(Step::Landlock, result as i32)?;
    }
    if let Some(program) = layout.seccomp {
        install_filter(program)?;
    }
    // SAFETY: both arrays end in a null pointer, and all strings outlive the call.
    let result = unsafe {
        libc::execve(
            layout.program.as_ptr(),
            layout.argv.as_ptr(),
            layout.envp.as_ptr(),
        )
    };
    check(Step::Exec, result)?;
    Err((Step::Exec, libc::EINVAL))
}

/// Rust ignores SIGPIPE and the parent may block others; exec would pass both on.
fn reset_signals(large_files_fail: bool) -> Result<(), Failed> {
    // SAFETY: an all-zero sigset_t is a valid, empty set on Linux, and `signal`
    // with SIG_DFL or SIG_IGN installs no code.
    unsafe {
        let empty: libc::sigset_t = std::mem::zeroed();
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if large_files_fail {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
        check(
            Step::Signals,
            libc::sigprocmask(libc::SIG_SETMASK, &empty, std::ptr::null_mut()),
        )
    }
}

fn arrange_descriptors(layout: &Layout<'_>) -> Result<(), Failed> {
    let step = Step::Descriptors;
    for (copy, target) in layout.copies {
        // SAFETY: descriptor numbers only. The copy lies above every target, so
        // none is overwritten before its turn; dup2 clears close-on-exec.
        check(step, unsafe { libc::dup2(copy.as_raw_fd(), *target) })?;
    }
    for gap in layout.gaps {
        // SAFETY: a number; that it may not be open is fine.
        unsafe { libc::close(*gap) };
    }
    let highest = layout
        .copies
        .iter()
        .map(|(_, target)| *target)
        .max()
        .unwrap_or(2);
    // Marked, not closed: the report pipe and the ruleset are up there until exec.
    // SAFETY: numbers only.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            highest as libc::c_uint + 1,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    check(step, result as i32)
}

/// Groups first: after the user id has changed they can no longer be given up.
fn become_user(identity: Identity) -> Result<(), Failed> {
    let step = Step::Identity;
    // Raw system calls: glibc's wrappers signal every thread of the process,
    // which after a fork are only in its bookkeeping.
    // SAFETY: an empty list needs no memory; the others pass numbers.
    unsafe {
        let none = std::ptr::null::<libc::gid_t>();
        check(step, libc::syscall(libc::SYS_setgroups, 0, none) as i32)?;
        let (gid, uid) = (identity.gid, identity.uid);
        check(
            step,
            libc::syscall(libc::SYS_setresgid, gid, gid, gid) as i32,
        )?;
        check(
            step,
            libc::syscall(libc::SYS_setresuid, uid, uid, uid) as i32,
        )
    }
}

fn tie_to_parent(signal: i32, parent_pid: i32) -> Result<(), Failed> {
    prctl(
        Step::DeathSignal,
        libc::PR_SET_PDEATHSIG,
        signal as libc::c_ulong,
    )?;
    // The parent may have died before the signal was asked for.
    // SAFETY: takes no argument.
    if unsafe { libc::getppid() } != parent_pid {
        return Err((Step::DeathSignal, libc::ESRCH));
    }
    Ok(())
}

fn install_filter(program: &[Cell<sock_filter>]) -> Result<(), Failed> {
    // SAFETY: takes no argument.
    set_own_pid(program, unsafe { libc::getpid() }.unsigned_abs());
    let filter = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        // A `Cell` is laid out as what is in it.
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `filter` points to `len` instructions (the length was checked when
    // the program was made), laid out as the kernel's sock_filter; the kernel
    // copies them and writes nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const filter,
        )
    };
    check(Step::Seccomp, result as i32)
}

fn prctl(step: Step, option: libc::c_int, value: libc::c_ulong) -> Result<(), Failed> {
    // SAFETY: both options used here take one number and no memory.
    check(step, unsafe { libc::prctl(option, value, 0, 0, 0) })
}

fn check(step: Step, result: i32) -> Result<(), Failed> {
    if result >= 0 {
        return Ok(());
    }
    // SAFETY: errno is thread-local and always readable.
    Err((step, unsafe { *libc::__errno_location() }))
}

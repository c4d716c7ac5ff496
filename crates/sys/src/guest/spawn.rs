//! Starting a user's process from the agent.
//!
//! `clone3` with a shared address space (no page table is copied, and the agent's
//! memory may be locked), straight into a cgroup (limits and the freezer hold from
//! the first instruction; no migration, which costs an RCU grace period). The
//! calling thread is suspended until the child has executed its program or failed,
//! so call it where blocking is allowed.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use thiserror::Error;

/// What to start, and as whom.
pub struct Spawn<'a> {
    /// The program's candidate paths, tried in order until one exists.
    pub programs: Vec<CString>,
    /// Arguments, the program's own name first.
    pub arguments: Vec<CString>,
    /// `NAME=value` strings.
    pub environment: Vec<CString>,
    /// Working directory, entered with the identity's rights.
    pub directory: CString,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// Becomes descriptors 0, 1 and 2. All others are closed on exec.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Descriptor 0 is a terminal that becomes the controlling one.
    pub terminal: bool,
    /// The folder of the cgroup to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Soft and hard limit on open files.
    pub open_files: (u64, u64),
}

/// What could not be done in the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Creating the process.
    Clone,
    /// Session, terminal or descriptors.
    Prepare,
    /// Taking on the identity.
    Identity,
    /// Entering the working directory.
    Directory,
    /// Executing the program.
    Execute,
}

/// The process was not started.
#[derive(Debug, Error)]
#[error("cannot start the process ({step:?}): {source}")]
pub struct SpawnError {
    /// What failed.
    pub step: Step,
    /// Why.
    pub source: io::Error,
}

/// All that the child reads, laid out before it exists: it must not allocate.
struct Plan {
    programs: Vec<*const libc::c_char>,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    directory: *const libc::c_char,
    uid: u32,
    gid: u32,
    groups: *const u32,
    groups_length: usize,
    stdio: [RawFd; 3],
    terminal: bool,
    open_files: libc::rlimit,
    /// Written by the child: the step that failed, and errno.
    failure: Option<(Step, i32)>,
}

impl Spawn<'_> {
    /// Starts the process in a session and process group of its own, with the usual
    /// priority, file mask and signal dispositions. Returns its id.
    ///
    /// A child that failed has already ended when this returns; it still has to be
    /// reaped, like every child.
    ///
    /// # Errors
    /// See [`Step`]. With [`Step::Execute`] the error is that of the first candidate
    /// that exists, or "not found".
    pub fn start(&self) -> Result<u32, SpawnError> {
        let pointers = |strings: &[CString]| {
            let pointers = strings.iter().map(|string| string.as_ptr());
            pointers.chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        let mut plan = Plan {
            programs: pointers(&self.programs),
            arguments: pointers(&self.arguments),
            environment: pointers(&self.environment),
            directory: self.directory.as_ptr(),
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.as_ptr(),
            groups_length: self.groups.len(),
            stdio: self.stdio.map(|fd| fd.as_raw_fd()),
            terminal: self.terminal,
            open_files: libc::rlimit {
                rlim_cur: self.open_files.0,
                rlim_max: self.open_files.1,
            },
            failure: None,
        };
        let signals = SignalsBlocked::new();
        let cloned = clone_and_run(&mut plan, self.cgroup);
        drop(signals);
        let pid = cloned.map_err(|source| SpawnError {
            step: Step::Clone,
            source,
        })?;
        match plan.failure {
            None => Ok(pid),
            Some((step, errno)) => Err(SpawnError {
                step,
                source: io::Error::from_raw_os_error(errno),
            }),
        }
    }
}

/// All signals of this thread are blocked while it lives: a handler must not run in
/// the child, which shares the agent's memory.
struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: signal sets are plain data; both are written before they are read,
        // and `pthread_sigmask` does not keep the pointers.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `before` is a whole signal set; nothing is written.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` of <linux/sched.h>, up to the field `cgroup`.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

#[cfg(target_arch = "x86_64")]
fn clone_and_run(plan: &mut Plan, cgroup: Option<BorrowedFd<'_>>) -> io::Result<u32> {
    let mut arguments = CloneArguments {
        flags: (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArguments::default()
    };
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    let result: i64;
    // SAFETY: the kernel reads `arguments`, a whole `clone_args` of the given size.
    // The child runs on this thread's stack while this thread is suspended
    // (CLONE_VFORK), calls `run_child`, which never returns, and so never leaves this
    // block: the compiler sees one return, the parent's. What the child pushes lies
    // below this frame's stack pointer, which `asm!` without `nostack` keeps aligned
    // and clear of the red zone. `plan` outlives the child's use of it. All registers
    // that the C ABI lets a callee change are declared clobbered.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, r12",
            "call {run_child}",
            "ud2",
            "2:",
            run_child = sym run_child,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw const arguments,
            in("rsi") size_of::<CloneArguments>(),
            in("r12") std::ptr::from_mut(plan),
            clobber_abi("C"),
        );
    }
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32))
}

/// The child, from birth to `execve` or its end.
unsafe extern "C" fn run_child(plan: *mut Plan) -> ! {
    // SAFETY: `plan` is the parent's, which is suspended until this process has
    // executed or ended.
    let plan = unsafe { &mut *plan };
    // SAFETY: called in the child, with the plan.
    let failure = unsafe { become_program(plan) };
    plan.failure = Some(failure);
    // SAFETY: ends this process only, without running the parent's exit handlers.
    unsafe {
        libc::syscall(libc::SYS_exit_group, 127);
    }
    loop {
        std::hint::spin_loop();
    }
}

/// Returns only on failure.
///
/// # Safety
/// Only in a child that shares the parent's memory: raw system calls throughout, as
/// glibc's wrappers of set*id would act on the parent's threads.
unsafe fn become_program(plan: &Plan) -> (Step, i32) {
    // SAFETY: pointers in the plan are null-terminated strings and arrays that the
    // suspended parent keeps alive; the other arguments are numbers.
    unsafe {
        if let Err(errno) = prepare(plan) {
            return (Step::Prepare, errno);
        }
        if let Err(errno) = take_identity(plan) {
            return (Step::Identity, errno);
        }
        if let Err(errno) = call(libc::SYS_chdir, [plan.directory as usize, 0, 0, 0]) {
            return (Step::Directory, errno);
        }
        reset_signals();
        (Step::Execute, execute(plan))
    }
}

/// # Safety
/// See [`become_program`].
unsafe fn prepare(plan: &Plan) -> Result<(), i32> {
    // SAFETY: see `become_program`.
    unsafe {
        call(libc::SYS_setsid, [0; 4])?;
        for (target, fd) in plan.stdio.into_iter().enumerate() {
            // The agent keeps 0, 1 and 2 open, so no source is among the targets.
            call(libc::SYS_dup3, [fd as usize, target, 0, 0])?;
        }
        if plan.terminal {
            call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0])?;
        }
        let limit = &raw const plan.open_files as usize;
        let files = libc::RLIMIT_NOFILE as usize;
        call(libc::SYS_prlimit64, [0, files, limit, 0])?;
        call(libc::SYS_umask, [0o022, 0, 0, 0])?;
        // The caller may have raised its own.
        call(
            libc::SYS_setpriority,
            [libc::PRIO_PROCESS as usize, 0, 0, 0],
        )?;
        reset_oom_score();
        Ok(())
    }
}

/// The agent is exempt from the OOM killer; its children are not. Best effort: the
/// file is missing only where `/proc` is.
///
/// # Safety
/// See [`become_program`].
unsafe fn reset_oom_score() {
    let path = c"/proc/self/oom_score_adj".as_ptr() as usize;
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: see `become_program`.
    unsafe {
        if let Ok(fd) = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0]) {
            let _ = call(libc::SYS_write, [fd, c"0".as_ptr() as usize, 1, 0]);
            let _ = call(libc::SYS_close, [fd, 0, 0, 0]);
        }
    }
}

/// # Safety
/// See [`become_program`].
unsafe fn take_identity(plan: &Plan) -> Result<(), i32> {
    // SAFETY: see `become_program`.
    unsafe {
        let groups = [plan.groups_length, plan.groups as usize, 0, 0];
        let (uid, gid) = (plan.uid as usize, plan.gid as usize);
        call(libc::SYS_setgroups, groups)?;
        call(libc::SYS_setresgid, [gid, gid, gid, 0])?;
        call(libc::SYS_setresuid, [uid, uid, uid, 0])?;
        Ok(())
    }
}

/// Default dispositions (also of what the agent ignores) and an empty mask.
///
/// # Safety
/// See [`become_program`].
unsafe fn reset_signals() {
    // The kernel's `struct sigaction` and its 8-byte signal set.
    let default = [0usize; 4];
    let empty = 0u64;
    for signal in 1..=64 {
        let action = [signal, &raw const default as usize, 0, 8];
        // SAFETY: see `become_program`. SIGKILL and SIGSTOP are refused, harmlessly.
        let _ = unsafe { call(libc::SYS_rt_sigaction, action) };
    }
    let set = &raw const empty as usize;
    let mask = [libc::SIG_SETMASK as usize, set, 0, 8];
    // SAFETY: see `become_program`.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, mask) };
}

/// Tries the candidates as `execvp` would. Returns only on failure.
///
/// # Safety
/// See [`become_program`].
unsafe fn execute(plan: &Plan) -> i32 {
    let mut failure = libc::ENOENT;
    for &program in &plan.programs {
        if program.is_null() {
            break;
        }
        let arguments = plan.arguments.as_ptr() as usize;
        let environment = plan.environment.as_ptr() as usize;
        let call_arguments = [program as usize, arguments, environment, 0];
        // SAFETY: see `become_program`.
        match unsafe { call(libc::SYS_execve, call_arguments) } {
            Err(libc::ENOENT | libc::ENOTDIR) => {}
            // Remembered, but a later candidate may do.
            Err(libc::EACCES) => failure = libc::EACCES,
            Err(errno) => return errno,
            Ok(_) => {}
        }
    }
    failure
}

/// # Safety
/// The arguments must be right for the system call.
unsafe fn call(number: libc::c_long, arguments: [usize; 4]) -> Result<usize, i32> {
    let [a, b, c, d] = arguments;
    // SAFETY: the caller's.
    let result = unsafe { libc::syscall(number, a, b, c, d) };
    if result < 0 {
        // SAFETY: the address of this thread's errno is always valid.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(result as usize)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    fn strings(strings: &[&str]) -> Vec<CString> {
        let string = |s: &&str| CString::new(*s).expect("no zero byte");
        strings.iter().map(string).collect()
    }

    /// Runs it to its end; returns what it wrote and its exit status.
    fn run(change: impl FnOnce(&mut Spawn<'_>)) -> (Result<i32, SpawnError>, String) {
        let null = File::open("/dev/null").expect("null");
        let (mut reader, writer) = io::pipe().expect("pipe");
        let mut spawn = Spawn {
            programs: strings(&["/nowhere/sh", "/bin/sh"]),
            arguments: strings(&["sh", "-c", "echo $NAME; pwd; id -u; ulimit -n; exit 3"]),
            environment: strings(&["NAME=grove", "PATH=/usr/bin:/bin"]),
            directory: c"/usr".into(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            groups: Vec::new(),
            stdio: [null.as_fd(), writer.as_fd(), writer.as_fd()],
            terminal: false,
            cgroup: None,
            open_files: (123, 200),
        };
        change(&mut spawn);
        let started = spawn.start();
        drop(writer);
        let mut output = String::new();
        reader.read_to_string(&mut output).expect("output");
        let status = started.map(|pid| {
            let pid = rustix::process::Pid::from_raw(pid as i32);
            let status = waitpid(pid, WaitOptions::empty()).expect("wait");
            status.expect("ended").1.exit_status().unwrap_or(-1)
        });
        (status, output)
    }

    fn step_of(result: Result<i32, SpawnError>) -> (Step, Option<i32>) {
        let error = result.expect_err("it should not start");
        (error.step, error.source.raw_os_error())
    }

    #[test]
    fn a_process_has_what_it_was_given() {
        let uid = rustix::process::getuid().as_raw();
        let (status, output) = run(|_| {});
        assert_eq!(status.expect("started"), 3);
        assert_eq!(output, format!("grove\n/usr\n{uid}\n123\n"));
    }

    #[test]
    fn a_failure_names_its_step() {
        let (result, _) = run(|spawn| spawn.directory = c"/nowhere".into());
        assert_eq!(step_of(result), (Step::Directory, Some(libc::ENOENT)));
        let (result, _) = run(|spawn| spawn.programs = strings(&["/nowhere", "/bin/nothing"]));
        assert_eq!(step_of(result), (Step::Execute, Some(libc::ENOENT)));
        let (result, _) = run(|spawn| spawn.programs = strings(&["/etc/passwd"]));
        assert_eq!(step_of(result), (Step::Execute, Some(libc::EACCES)));
    }

    #[test]
    fn an_identity_is_taken_on_with_its_groups() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (status, output) = run(|spawn| {
            spawn.uid = 12345;
            spawn.gid = 54321;
            spawn.groups = vec![54321, 777];
            spawn.arguments = strings(&["sh", "-c", "id -u; id -G"]);
        });
        assert_eq!(status.expect("started"), 0);
        assert_eq!(output, "12345\n54321 777\n");
        assert!(
            rustix::process::geteuid().is_root(),
            "the parent kept its own"
        );
    }
}

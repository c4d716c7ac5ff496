//! Starting a child that holds only what it was given.
//!
//! `std::process::Command` cannot close inherited descriptors, cannot apply a
//! prepared landlock ruleset and seccomp filter, and returns no pidfd. [`Spawn`]
//! does all of it between fork and exec, without allocating there: everything
//! the child needs is laid out in the parent first.
//!
//! ```text
//! parent                               child
//! lay out argv, envp, descriptors
//! fork ------------------------------> default signals, new session, directory,
//! read the report pipe                 descriptors, limits, identity, death signal,
//!   end of file: exec succeeded        no_new_privs, landlock, seccomp, exec
//!   (step, errno): it failed  <------- or report the step that failed
//! ```

mod child;
mod exit;

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use exit::{Child, ChildExit};

use crate::jail::{Layer, Layers, landlock::Ruleset, seccomp::Program};
use child::{Layout, Step};
use seccompiler::sock_filter;
use std::cell::Cell;

/// Highest descriptor number a child may be given. Far more than any VMM
/// needs, and low enough that the copies made above it stay below the common
/// soft limit of 1024.
const TARGET_FD_MAX: RawFd = 255;

/// The user that the child becomes, with no supplementary groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A limit on the child, soft and hard alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Open descriptors.
    OpenFiles(u64),
    /// Bytes in one file; writing past it raises `SIGXFSZ`.
    FileBytes(u64),
    /// Bytes of address space.
    AddressSpaceBytes(u64),
}

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// An argument, variable or path holds a NUL byte.
    #[error("the argument {0:?} holds a NUL byte")]
    Nul(OsString),
    /// A target descriptor is negative, above 255, or given twice.
    #[error("descriptor {0} cannot be given to the child")]
    Target(RawFd),
    /// The parent could not prepare it.
    #[error("the child could not be prepared")]
    Prepare(#[source] io::Error),
    /// The child failed before it ran the program.
    #[error("the child failed to {step} before running the program")]
    Child {
        /// What it was doing, as a verb phrase.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// A child to be started.
///
/// The child has an empty environment unless given one, `/dev/null` as
/// descriptors 0 to 2 unless given others, no core dumps, `no_new_privs`, and
/// default signal dispositions.
#[derive(Debug)]
pub struct Spawn {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<OsString>,
    directory: Option<PathBuf>,
    descriptors: Vec<(OwnedFd, RawFd)>,
    new_session: bool,
    death_signal: Option<i32>,
    large_files_fail: bool,
    identity: Option<Identity>,
    limits: Vec<Limit>,
    landlock: Option<Ruleset>,
    seccomp: Option<Program>,
    layers: Layers,
    group: Option<OwnedFd>,
}

impl Spawn {
    /// A child that runs `program`, an absolute path; `argv[0]` is the same.
    pub fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            args: vec![program.as_os_str().to_owned()],
            env: Vec::new(),
            directory: None,
            descriptors: Vec::new(),
            new_session: false,
            death_signal: None,
            large_files_fail: false,
            identity: None,
            limits: Vec::new(),
            landlock: None,
            seccomp: None,
            layers: Layers::ALL,
            group: None,
        }
    }

    /// Of `no_new_privs` and the limits, keeps what is among these layers. Without this both
    /// are there: only a test of what they stop has a reason to take one off.
    pub fn layers(mut self, layers: Layers) -> Self {
        self.layers = layers;
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds a variable to the environment, which starts empty.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let mut pair = OsString::from(name);
        pair.push("=");
        pair.push(value);
        self.env.push(pair);
        self
    }

    /// Sets the working directory; without it the child has the parent's.
    pub fn current_dir(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Gives the child `descriptor` under the number `target` (0 to 255).
    pub fn descriptor(mut self, descriptor: OwnedFd, target: RawFd) -> Self {
        self.descriptors.push((descriptor, target));
        self
    }

    /// Puts the child in a session of its own.
    pub fn new_session(mut self) -> Self {
        self.new_session = true;
        self
    }

    /// Has the kernel send `signal` to the child when the *thread* that calls
    /// [`Spawn::spawn`] ends. Call it from a thread that lives as long as the
    /// child should: never from a pool that retires idle threads, such as
    /// tokio's blocking pool.
    pub fn death_signal(mut self, signal: i32) -> Self {
        self.death_signal = Some(signal);
        self
    }

    /// Has the child ignore `SIGXFSZ`: a write past its limit of bytes in a file fails with
    /// `EFBIG` and does not end it.
    pub fn large_files_fail(mut self) -> Self {
        self.large_files_fail = true;
        self
    }

    /// Has the child become another user, which needs privilege.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Adds a resource limit.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Confines the child to what the ruleset allows, below whatever confines the parent.
    pub fn landlock(mut self, ruleset: Ruleset) -> Self {
        self.landlock = Some(ruleset);
        self
    }

    /// Installs a system call filter as the last thing before exec.
    pub fn seccomp(mut self, program: Program) -> Self {
        self.seccomp = Some(program);
        self
    }

    /// Has the child be born in the control group whose directory this is
    /// ([`crate::cgroup::Cgroups::create`]): it is never outside of it.
    pub fn group(mut self, directory: OwnedFd) -> Self {
        self.group = Some(directory);
        self
    }

    /// Starts the child and returns once its exec has succeeded.
    ///
    /// # Errors
    /// Says whether the parent or the child failed, and in the child at which step.
    pub fn spawn(self) -> Result<Child, SpawnError> {
        let prepared = Prepared::new(&self)?;
        let (report_read, report_write) = report_pipe().map_err(SpawnError::Prepare)?;
        let layout = prepared.layout(&self, report_write.as_raw_fd());
        let pid = child::fork(&layout).map_err(SpawnError::Prepare)?;
        drop(report_write);
        // Until it is waited for below, the pid cannot be reused: the child is ours.
        let child = Child::adopt(pid).map_err(SpawnError::Prepare)?;
        match read_report(report_read) {
            Ok(None) => Ok(child),
            Ok(Some((step, source))) => {
                let _ = child.wait();
                Err(SpawnError::Child { step, source })
            }
            Err(error) => {
                let _ = child.kill(libc::SIGKILL);
                let _ = child.wait();
                Err(SpawnError::Prepare(error))
            }
        }
    }
}

/// What the child's layout borrows from.
struct Prepared {
    program: CString,
    _args: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    _env: Vec<CString>,
    envp: Vec<*const libc::c_char>,
    directory: Option<CString>,
    /// Copies above every target, so that no `dup2` overwrites a source.
    copies: Vec<(OwnedFd, RawFd)>,
    /// Numbers below the highest target that the child must not have.
    gaps: Vec<RawFd>,
    limits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    /// The child changes it, in its own copy of this memory.
    seccomp: Option<Vec<Cell<sock_filter>>>,
}

impl Prepared {
    fn new(spawn: &Spawn) -> Result<Self, SpawnError> {
        let args = c_strings(&spawn.args)?;
        let env = c_strings(&spawn.env)?;
        let copies = descriptor_copies(&spawn.descriptors)?;
        let highest = copies.iter().map(|(_, target)| *target).max().unwrap_or(2);
        let gaps = (0..=highest)
            .filter(|number| copies.iter().all(|(_, target)| target != number))
            .collect();
        Ok(Self {
            program: c_string(spawn.program.as_os_str())?,
            argv: null_terminated(&args),
            _args: args,
            envp: null_terminated(&env),
            _env: env,
            directory: spawn
                .directory
                .as_deref()
                .map(|path| c_string(path.as_os_str()))
                .transpose()?,
            copies,
            gaps,
            limits: if spawn.layers.has(Layer::Limits) {
                rlimits(&spawn.limits)
            } else {
                Vec::new()
            },
            seccomp: spawn.seccomp.as_ref().map(Program::instructions),
        })
    }

    fn layout<'a>(&'a self, spawn: &'a Spawn, report: RawFd) -> Layout<'a> {
        Layout {
            program: &self.program,
            argv: &self.argv,
            envp: &self.envp,
            directory: self.directory.as_deref(),
            copies: &self.copies,
            gaps: &self.gaps,
            limits: &self.limits,
            new_session: spawn.new_session,
            death_signal: spawn.death_signal,
            large_files_fail: spawn.large_files_fail,
            parent_pid: rustix::process::getpid().as_raw_nonzero().get(),
            identity: spawn.identity,
            landlock: spawn.landlock.as_ref().and_then(Ruleset::raw_fd),
            seccomp: self.seccomp.as_deref(),
            keeps_privileges: !spawn.layers.has(Layer::NoNewPrivileges),
            group: spawn.group.as_ref().map(AsRawFd::as_raw_fd),
            report,
        }
    }
}

fn c_string(value: &OsStr) -> Result<CString, SpawnError> {
    CString::new(value.as_bytes()).map_err(|_| SpawnError::Nul(value.to_owned()))
}

fn c_strings(values: &[OsString]) -> Result<Vec<CString>, SpawnError> {
    values.iter().map(|value| c_string(value)).collect()
}

fn null_terminated(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

fn rlimits(limits: &[Limit]) -> Vec<(libc::__rlimit_resource_t, libc::rlimit)> {
    let value = |bytes| libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    limits
        .iter()
        .map(|limit| match *limit {
            Limit::OpenFiles(count) => (libc::RLIMIT_NOFILE, value(count)),
            Limit::FileBytes(bytes) => (libc::RLIMIT_FSIZE, value(bytes)),
            Limit::AddressSpaceBytes(bytes) => (libc::RLIMIT_AS, value(bytes)),
        })
        .chain([(libc::RLIMIT_CORE, value(0))])
        .collect()
}

/// Copies every descriptor above the targets, adding `/dev/null` for 0 to 2.
fn descriptor_copies(
    descriptors: &[(OwnedFd, RawFd)],
) -> Result<Vec<(OwnedFd, RawFd)>, SpawnError> {
    let mut copies: Vec<(OwnedFd, RawFd)> = Vec::new();
    for (descriptor, target) in descriptors {
        let taken = copies.iter().any(|(_, other)| other == target);
        if !(0..=TARGET_FD_MAX).contains(target) || taken {
            return Err(SpawnError::Target(*target));
        }
        copies.push((
            copy_above(descriptor).map_err(SpawnError::Prepare)?,
            *target,
        ));
    }
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(SpawnError::Prepare)?;
    let null = OwnedFd::from(null);
    for target in 0..=2 {
        if copies.iter().all(|(_, other)| *other != target) {
            copies.push((copy_above(&null).map_err(SpawnError::Prepare)?, target));
        }
    }
    Ok(copies)
}

/// A close-on-exec copy whose number is above every possible target.
fn copy_above(descriptor: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(
        descriptor,
        TARGET_FD_MAX + 1,
    )?)
}

fn report_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors that pipe2 writes.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: pipe2 succeeded, so both are open and nobody else owns them.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    Ok((read, copy_above(&write)?))
}

fn read_report(pipe: OwnedFd) -> io::Result<Option<(&'static str, io::Error)>> {
    use std::io::Read;
    let mut report = Vec::new();
    std::fs::File::from(pipe).read_to_end(&mut report)?;
    if report.is_empty() {
        return Ok(None);
    }
    let Ok([step, errno @ ..]) = <[u8; 5]>::try_from(report) else {
        return Err(io::Error::other("the child's report was cut short"));
    };
    let errno = i32::from_ne_bytes(errno);
    Ok(Some((
        Step::describe(step),
        io::Error::from_raw_os_error(errno),
    )))
}

#[cfg(test)]
mod tests;

//! The system call filters around a VMM and around its shim.
//!
//! A VMM that its guest has taken over can run any code. The filter takes from
//! it what it never needs: new sockets (all of its own are inherited), other
//! processes, names and modes of files, new kernel interfaces. It is a list of
//! what is denied (`calls`), since QEMU's needs differ by version and accelerator;
//! QEMU's own `-sandbox on` adds exec, fork, scheduling and obsolete calls to it.
//! A shim has the same taken from it but for what it does: TCP and UDP, its own
//! files, its VMM's memory. The VMM inherits the shim's filter.
//!
//! Denied calls answer `EPERM`. QEMU tries some of them and copes (io_uring). Two answer
//! `ENOSYS`, so that callers fall back to a call whose arguments can be read.
//!
//! `userfaultfd` is left for faults of user code alone: with it the kernel tracks which
//! pages of the guest are written (`crates/preload`). What it has its bad name for, holding
//! up the kernel in the middle of its work, needs the other kind.
//!
//! `tgkill` is left for threads of the VMM's own process, since `pthread_kill` needs it: the
//! process number is put into the filter between fork and exec.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::calls;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// Bit of a system call number that selects the x32 table on x86-64, whose
/// calls have the same architecture value and would pass a list of numbers.
const X32_BIT: u32 = 0x4000_0000;

/// `BPF_LD | BPF_W | BPF_ABS`: load a word of `struct seccomp_data`.
const LOAD_WORD: u16 = 0x20;
/// `BPF_JMP | BPF_JGE | BPF_K`: jump when the word is at least a constant.
const JUMP_IF_AT_LEAST: u16 = 0x35;
/// `BPF_JMP | BPF_JEQ | BPF_K`: jump when the word is a constant.
const JUMP_IF_EQUAL: u16 = 0x15;
/// `BPF_RET | BPF_K`: return a constant action.
const RETURN: u16 = 0x06;
/// Offset of the system call number in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;

/// `UFFD_USER_MODE_ONLY`, a flag of `userfaultfd`.
const USERFAULTFD_USER_MODE_ONLY: u64 = 1;

/// Stands for the process that the filter is for, until that is known. No process has this
/// number: `PID_MAX_LIMIT` is 2^22.
const OWN_PID: u32 = 0x7eed_0001;

/// Flags of `clone` that make namespaces, in which a process has privileges: mounts, cgroups,
/// host name, IPC, users, processes, network (`linux/sched.h`).
const CLONE_NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Flags of an open with which it makes a file; the second is `O_TMPFILE` without the
/// `O_DIRECTORY` that is in it.
const MAKES_FILE: [libc::c_int; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Bits of a mode that lend the owner's or the group's rights to whoever runs the file.
const LENDS_RIGHTS: [libc::mode_t; 2] = [libc::S_ISUID, libc::S_ISGID];

/// The bits of a socket's type that are no flags (`SOCK_TYPE_MASK`).
const SOCKET_TYPE: u64 = 0xf;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The build's architecture is not one of seccomp's.
    #[error("no system call filter is known for this architecture")]
    Architecture,
    /// The filter could not be compiled.
    #[error("the system call filter could not be compiled")]
    Compile(#[source] seccompiler::BackendError),
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A compiled filter, to be applied to a child.
#[derive(Clone, Debug)]
pub struct Program {
    instructions: Vec<sock_filter>,
}

impl Program {
    /// The filter for a VMM.
    ///
    /// # Errors
    /// When the architecture is unknown.
    pub fn vmm() -> Result<Self, FilterError> {
        let mut rules = denied(calls::of_vmm());
        restrict_both(&mut rules).map_err(FilterError::Compile)?;
        restrict_vmm(&mut rules).map_err(FilterError::Compile)?;
        Self::compile(rules)
    }

    /// The filter for a shim.
    ///
    /// # Errors
    /// When the architecture is unknown.
    pub fn shim() -> Result<Self, FilterError> {
        let mut rules = denied(calls::of_shim());
        restrict_both(&mut rules).map_err(FilterError::Compile)?;
        restrict_shim(&mut rules).map_err(FilterError::Compile)?;
        Self::compile(rules)
    }

    fn compile(rules: Rules) -> Result<Self, FilterError> {
        let architecture =
            TargetArch::try_from(std::env::consts::ARCH).map_err(|_| FilterError::Architecture)?;
        let denied = SeccompAction::Errno(libc::EPERM as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, architecture)
            .map_err(FilterError::Compile)?;
        let compiled = BpfProgram::try_from(filter).map_err(FilterError::Compile)?;
        Ok(Self {
            instructions: [refuse_x32(), know_not(), compiled].concat(),
        })
    }

    /// The instructions, to be finished by [`set_own_pid`].
    pub(crate) fn instructions(&self) -> Vec<Cell<sock_filter>> {
        self.instructions.iter().cloned().map(Cell::new).collect()
    }
}

/// Puts the number of the process that the filter is for into it. Called between fork and
/// exec: allocates nothing.
pub(crate) fn set_own_pid(instructions: &[Cell<sock_filter>], pid: u32) {
    for cell in instructions {
        // Not `Copy`, and copying it out field by field allocates nothing either.
        let instruction = cell.replace(sock_filter {
            code: 0,
            jt: 0,
            jf: 0,
            k: 0,
        });
        let is_own = instruction.code == JUMP_IF_EQUAL && instruction.k == OWN_PID;
        cell.set(sock_filter {
            k: if is_own { pid } else { instruction.k },
            ..instruction
        });
    }
}

/// Refused whatever the arguments are.
fn denied(calls: Vec<i64>) -> Rules {
    calls.into_iter().map(|call| (call, vec![])).collect()
}

type Compiled<T> = Result<T, seccompiler::BackendError>;

fn rule(conditions: impl IntoIterator<Item = (u8, SeccompCmpOp, u64)>) -> Compiled<SeccompRule> {
    let conditions = conditions
        .into_iter()
        .map(|(argument, operator, value)| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
        })
        .collect::<Compiled<Vec<_>>>()?;
    SeccompRule::new(conditions)
}

/// Whether all bits of `mask` are set in an argument.
fn all_of(argument: u8, mask: u64) -> (u8, SeccompCmpOp, u64) {
    (argument, SeccompCmpOp::MaskedEq(mask), mask)
}

fn restrict_both(rules: &mut Rules) -> Compiled<()> {
    rules.insert(libc::SYS_userfaultfd, vec![kernel_faults()?]);
    let namespaces = CLONE_NAMESPACES.map(|flag| rule([all_of(0, flag as u64)]));
    let namespaces = namespaces.into_iter().collect::<Compiled<_>>()?;
    rules.insert(libc::SYS_clone, namespaces);
    // Limits of other processes: those of the same account could be ended by them.
    let others = rule([(0, SeccompCmpOp::Ne, 0)])?;
    rules.insert(libc::SYS_prlimit64, vec![others]);
    // Files that lend rights can be made with their mode, without any change of it.
    rules.insert(libc::SYS_openat, lending(2)?);
    #[cfg(target_arch = "x86_64")]
    {
        rules.insert(libc::SYS_open, lending(1)?);
        let creat = LENDS_RIGHTS.map(|bit| rule([all_of(1, bit.into())]));
        rules.insert(libc::SYS_creat, creat.into_iter().collect::<Compiled<_>>()?);
    }
    Ok(())
}

/// An open that makes a file which lends rights; the mode is the argument after `flags`.
fn lending(flags: u8) -> Compiled<Vec<SeccompRule>> {
    let mut rules = Vec::new();
    for makes in MAKES_FILE {
        for lends in LENDS_RIGHTS {
            rules.push(rule([
                all_of(flags, makes as u64),
                all_of(flags + 1, lends.into()),
            ])?);
        }
    }
    Ok(rules)
}

fn restrict_vmm(rules: &mut Rules) -> Compiled<()> {
    let others = rule([(0, SeccompCmpOp::Ne, OWN_PID.into())])?;
    rules.insert(libc::SYS_tgkill, vec![others]);
    Ok(())
}

/// A shim reaches the network and what it has open. Sockets in the file system are none of
/// landlock's business, and as an ordinary user those of other shims are the user's own.
fn restrict_shim(rules: &mut Rules) -> Compiled<()> {
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let other = families.map(|family| (0, SeccompCmpOp::Ne, family as u64));
    // Of netlink the list of interfaces (`NETLINK_ROUTE`), and no other protocol.
    let netlink = [
        (0, SeccompCmpOp::Eq, libc::AF_NETLINK as u64),
        (2, SeccompCmpOp::Ne, libc::NETLINK_ROUTE as u64),
    ];
    rules.insert(libc::SYS_socket, vec![rule(other)?, rule(netlink)?]);
    // A pair for datagrams can send to any socket by its path; the kernel takes a raw one
    // for the same.
    let datagrams = [libc::SOCK_DGRAM, libc::SOCK_RAW];
    let datagrams =
        datagrams.map(|kind| rule([(1, SeccompCmpOp::MaskedEq(SOCKET_TYPE), kind as u64)]));
    let datagrams = datagrams.into_iter().collect::<Compiled<_>>()?;
    rules.insert(libc::SYS_socketpair, datagrams);
    Ok(())
}

/// A `userfaultfd` that is not for faults of user code alone.
fn kernel_faults() -> Compiled<SeccompRule> {
    rule([(0, SeccompCmpOp::MaskedEq(USERFAULTFD_USER_MODE_ONLY), 0)])
}

/// Jumps are relative, so this can stand before any other program.
fn refuse_x32() -> Vec<sock_filter> {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    vec![
        instruction(LOAD_WORD, 0, 0, NUMBER_OFFSET),
        instruction(JUMP_IF_AT_LEAST, 0, 1, X32_BIT),
        refuse(libc::EPERM),
    ]
}

/// The calls that answer as if the kernel were older.
fn know_not() -> Vec<sock_filter> {
    let one = |call: i64| {
        // Numbers of calls are small.
        let number = u32::try_from(call).unwrap_or(u32::MAX);
        [
            instruction(LOAD_WORD, 0, 0, NUMBER_OFFSET),
            instruction(JUMP_IF_EQUAL, 0, 1, number),
            refuse(libc::ENOSYS),
        ]
    };
    calls::UNKNOWN.into_iter().flat_map(one).collect()
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn refuse(errno: libc::c_int) -> sock_filter {
    let action = SeccompAction::Errno(errno as u32);
    instruction(RETURN, 0, 0, action.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_fits_the_kernels_limit() {
        for program in [Program::vmm().unwrap(), Program::shim().unwrap()] {
            assert!(program.instructions.len() <= usize::from(u16::MAX).min(4096));
            assert!(program.instructions.len() > 100);
        }
    }

    #[test]
    fn the_vmms_own_number_is_put_in_once() {
        let instructions = Program::vmm().unwrap().instructions();
        set_own_pid(&instructions, 4711);
        let constants: Vec<u32> = instructions
            .into_iter()
            .map(|cell| cell.into_inner().k)
            .collect();
        let count = |number| constants.iter().filter(|k| **k == number).count();
        assert_eq!((count(OWN_PID), count(4711)), (0, 1));
    }

    /// The error of `userfaultfd` with these flags on a thread in the jail.
    fn userfaultfd(flags: libc::c_long) -> Option<i32> {
        let call = move || {
            let program = Program::vmm().unwrap();
            seccompiler::apply_filter(&program.instructions).unwrap();
            // SAFETY: a number and flags; no memory is passed.
            let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            let error = std::io::Error::last_os_error();
            if descriptor < 0 {
                return error.raw_os_error();
            }
            // SAFETY: opened above, and nobody else knows it.
            unsafe { libc::close(descriptor as libc::c_int) };
            None
        };
        std::thread::spawn(call).join().unwrap()
    }

    #[test]
    fn faults_of_user_code_may_be_tracked_and_those_of_the_kernel_may_not() {
        let flags = libc::c_long::from(libc::O_CLOEXEC | libc::O_NONBLOCK);
        assert_eq!(userfaultfd(flags), Some(libc::EPERM));
        assert_ne!(
            userfaultfd(flags | USERFAULTFD_USER_MODE_ONLY as libc::c_long),
            Some(libc::EPERM)
        );
    }
}

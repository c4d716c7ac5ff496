//! The system call filter around a VMM.
//!
//! A VMM that its guest has taken over can run any code. The filter takes from
//! it what it never needs: new sockets (all of its own are inherited), other
//! processes, names and modes of files, new kernel interfaces. It is a list of
//! what is denied, since QEMU's needs differ by version and accelerator; QEMU's
//! own `-sandbox on` adds exec, fork, scheduling and obsolete calls to it.
//!
//! Denied calls answer `EPERM`. QEMU tries some of them and copes (io_uring).
//!
//! `userfaultfd` is left for faults of user code alone: with it the kernel tracks which
//! pages of the guest are written (`crates/preload`). What it has its bad name for, holding
//! up the kernel in the middle of its work, needs the other kind.
//!
//! `tgkill` stays, since `pthread_kill` needs it and a filter made before the
//! fork cannot name the pid; where landlock scopes signals (Linux 6.12) it
//! reaches the VMM's own threads only, elsewhere processes of the same user.

use std::collections::BTreeMap;

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
/// `BPF_RET | BPF_K`: return a constant action.
const RETURN: u16 = 0x06;
/// Offset of the system call number in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;

/// Sockets: every one that a VMM uses is inherited.
const SOCKETS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Reaching into other processes.
const PROCESSES: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_kcmp,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_perf_event_open,
];

/// Names, modes and owners of files. `ftruncate` stays: it needs an open file.
const FILES: &[i64] = &[
    libc::SYS_truncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
];

/// The same by their older names, which only x86-64 has.
#[cfg(target_arch = "x86_64")]
const FILES_OLD: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_mknod,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const FILES_OLD: &[i64] = &[];

/// Kernel interfaces with a long record of holes, and the machine itself.
const KERNEL: &[i64] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_personality,
    libc::SYS_memfd_secret,
];

/// `UFFD_USER_MODE_ONLY`, a flag of `userfaultfd`.
const USERFAULTFD_USER_MODE_ONLY: u64 = 1;

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
        Self::denying([SOCKETS, PROCESSES, FILES, FILES_OLD, KERNEL].concat())
    }

    fn denying(calls: Vec<i64>) -> Result<Self, FilterError> {
        let architecture =
            TargetArch::try_from(std::env::consts::ARCH).map_err(|_| FilterError::Architecture)?;
        // No rule: whatever the arguments are.
        let mut rules: BTreeMap<i64, Vec<_>> =
            calls.into_iter().map(|call| (call, vec![])).collect();
        let kernel_faults = kernel_faults().map_err(FilterError::Compile)?;
        rules.insert(libc::SYS_userfaultfd, vec![kernel_faults]);
        let denied = SeccompAction::Errno(libc::EPERM as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, architecture)
            .map_err(FilterError::Compile)?;
        let compiled = BpfProgram::try_from(filter).map_err(FilterError::Compile)?;
        Ok(Self {
            instructions: [refuse_x32(), compiled].concat(),
        })
    }

    pub(crate) fn instructions(&self) -> &[sock_filter] {
        &self.instructions
    }
}

/// A `userfaultfd` that is not for faults of user code alone.
fn kernel_faults() -> Result<SeccompRule, seccompiler::BackendError> {
    let flags = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(USERFAULTFD_USER_MODE_ONLY),
        0,
    )?;
    SeccompRule::new(vec![flags])
}

/// Jumps are relative, so this can stand before any other program.
fn refuse_x32() -> Vec<sock_filter> {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    let denied = u32::from(SeccompAction::Errno(libc::EPERM as u32));
    vec![
        sock_filter {
            code: LOAD_WORD,
            jt: 0,
            jf: 0,
            k: NUMBER_OFFSET,
        },
        sock_filter {
            code: JUMP_IF_AT_LEAST,
            jt: 0,
            jf: 1,
            k: X32_BIT,
        },
        sock_filter {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: denied,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_fits_the_kernels_limit() {
        let program = Program::vmm().unwrap();
        assert!(program.instructions.len() <= usize::from(u16::MAX).min(4096));
        assert!(program.instructions.len() > 100);
    }

    /// The error of `userfaultfd` with these flags on a thread in the jail.
    fn userfaultfd(flags: libc::c_long) -> Option<i32> {
        let call = move || {
            let program = Program::vmm().unwrap();
            seccompiler::apply_filter(program.instructions()).unwrap();
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

//! Which system calls the filters refuse whatever their arguments are.
//!
//! Lists of what is denied, since what QEMU needs differs by version and accelerator. A
//! call that is newer than the lists is allowed until it is added here: on each new kernel
//! its table (`arch/x86/entry/syscalls/syscall_64.tbl` of Linux) is read for more.

/// Newer than the table of `libc`; from 424 on the numbers are the same everywhere.
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FILE_SETATTR: i64 = 469;
const SYS_LSM_SET_SELF_ATTR: i64 = 460;

/// Sockets: every one that a VMM uses is inherited. A pair too could be used to send
/// datagrams to sockets of others, which landlock does not keep.
const SOCKETS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Reaching into other processes.
const PROCESSES: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_perf_event_open,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// The same, of what a shim does with its VMM; and other processes' share of the CPU, which
/// those of the same account may set.
const OWN_VMM: &[i64] = &[
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

/// Memory and messages that processes of one account share without a file, so that no file
/// system right keeps them.
const IPC: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Modes and owners of files, which landlock does not keep: a sealed layer is a file that
/// nobody may write, and as an ordinary user it is the user's own. And truncation by name,
/// which landlock keeps since Linux 6.2 only. `ftruncate` stays: it needs an open file.
const MODES: &[i64] = &[
    libc::SYS_truncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mknodat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SYS_SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
];

/// Names and times of files.
const NAMES: &[i64] = &[
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_utimensat,
];

/// The same by their older names, which only x86-64 has.
#[cfg(target_arch = "x86_64")]
const MODES_OLD: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mknod,
];
#[cfg(not(target_arch = "x86_64"))]
const MODES_OLD: &[i64] = &[];

#[cfg(target_arch = "x86_64")]
const NAMES_OLD: &[i64] = &[
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const NAMES_OLD: &[i64] = &[];

/// Kernel interfaces with a long record of holes, the machine itself, and programs that are
/// in no file, which no rule about files stops.
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
    SYS_OPEN_TREE_ATTR,
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
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_personality,
    libc::SYS_memfd_secret,
    libc::SYS_memfd_create,
    libc::SYS_execveat,
    SYS_LSM_SET_SELF_ATTR,
];

/// Calls that answer as if the kernel did not know them: programs then use older ones, whose
/// arguments a filter can read.
pub(super) const UNKNOWN: [i64; 2] = [libc::SYS_clone3, libc::SYS_openat2];

/// What a shim is refused. Its VMM inherits that.
pub(super) fn of_shim() -> Vec<i64> {
    [PROCESSES, IPC, MODES, MODES_OLD, KERNEL].concat()
}

/// What a VMM is refused.
pub(super) fn of_vmm() -> Vec<i64> {
    let more = [SOCKETS, OWN_VMM, NAMES, NAMES_OLD].concat();
    [of_shim(), more].concat()
}

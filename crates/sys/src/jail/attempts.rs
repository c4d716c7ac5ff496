//! Ways out of a jail, for the program with which the jail is tested.
//!
//! Not in any program that people get: the feature `attempts` is only a test's. All of it
//! is harmless where it succeeds: signals are ones that are ignored, sizes and limits are
//! set to what they are. An attempt is good as soon as the kernel has let it through, so
//! arguments that it looks at only then are nonsense, and its complaint of them is success.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_int, c_long, c_ulong, c_void};

/// How long one attempt may take; many times what any does on a busy machine.
const SECONDS: libc::c_uint = 20;

/// A signal that does nothing to whoever has not asked for it.
const SIGNAL: c_int = libc::SIGURG;

/// How an attempt ended that did not say its error number.
const UNCLEAR: c_int = 255;

/// A program for x86-64 Linux that ends with 0 where it runs with the rights of another than
/// who started it, and with 1 (`EPERM`) otherwise; it needs no other file.
///
/// Layout of the headers: System V ABI, "Object Files" and "Program Loading".
pub const WHOSE_RIGHTS: &[u8] = &program(&[
    0xb8, 0x66, 0, 0, 0, 0x0f, 0x05, // mov eax, 102 (getuid); syscall
    0x89, 0xc3, // mov ebx, eax
    0xb8, 0x6b, 0, 0, 0, 0x0f, 0x05, // mov eax, 107 (geteuid); syscall
    0x31, 0xff, // xor edi, edi
    0x39, 0xd8, // cmp eax, ebx
    0x40, 0x0f, 0x94, 0xc7, // sete dil
    0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // mov eax, 60 (exit); syscall
]);

/// A program for x86-64 Linux that ends with 0.
pub const NOTHING: &[u8] = &program(&[
    0x31, 0xff, // xor edi, edi
    0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // mov eax, 60 (exit); syscall
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
]);

const CODE_BYTES: usize = 31;
const HEADER_BYTES: usize = 64 + 56;

/// Puts code into the smallest ELF file: a header, one segment, the code.
const fn program(code: &[u8; CODE_BYTES]) -> [u8; HEADER_BYTES + CODE_BYTES] {
    const SIZE: u8 = (HEADER_BYTES + CODE_BYTES) as u8;
    let mut file = [0; HEADER_BYTES + CODE_BYTES];
    let header: [u8; HEADER_BYTES] = [
        0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, // identification
        2, 0, 62, 0, 1, 0, 0, 0, // executable, x86-64, version 1
        0x78, 0, 0x40, 0, 0, 0, 0, 0, // entry 0x400078
        0x40, 0, 0, 0, 0, 0, 0, 0, // program headers at 64
        0, 0, 0, 0, 0, 0, 0, 0, // no section headers
        0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0, // sizes and counts
        1, 0, 0, 0, 5, 0, 0, 0, // to be loaded; read and execute
        0, 0, 0, 0, 0, 0, 0, 0, // from the file's start
        0, 0, 0x40, 0, 0, 0, 0, 0, // to 0x400000
        0, 0, 0x40, 0, 0, 0, 0, 0, //
        SIZE, 0, 0, 0, 0, 0, 0, 0, // bytes in the file
        SIZE, 0, 0, 0, 0, 0, 0, 0, // and in memory
        0, 0x10, 0, 0, 0, 0, 0, 0, // aligned to pages
    ];
    let mut index = 0;
    while index < file.len() {
        file[index] = if index < HEADER_BYTES {
            header[index]
        } else {
            code[index - HEADER_BYTES]
        };
        index += 1;
    }
    file
}

/// Makes an attempt in a child, which it may change and which may not come back from it.
/// Call it while this process has no other threads.
///
/// # Errors
/// What the kernel said to the attempt; another where the child did not end by itself.
pub fn in_child(attempt: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: there are no other threads, so the child is as good as this process.
    let pid = check(unsafe { libc::fork() }.into())? as libc::pid_t;
    if pid == 0 {
        // SAFETY: numbers only. A panic must not go on into the caller's copy.
        unsafe {
            libc::alarm(SECONDS);
            let attempt = std::panic::AssertUnwindSafe(attempt);
            let code = match std::panic::catch_unwind(attempt) {
                Ok(Ok(())) => 0,
                Ok(Err(error)) => error.raw_os_error().unwrap_or(UNCLEAR),
                Err(_) => UNCLEAR,
            };
            libc::_exit(code)
        }
    }
    ended(pid)
}

/// Waits for a child; its exit code is an error number.
fn ended(pid: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, UNCLEAR) => Err(io::Error::other("an error without a number")),
        (true, code) => Err(io::Error::from_raw_os_error(code)),
        (false, _) => Err(io::Error::other(format!("a signal, status {status:#x}"))),
    }
}

fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// A complaint that comes after the check of rights.
fn let_through(result: c_long, complaint: c_int) -> io::Result<()> {
    match check(result) {
        Err(error) if error.raw_os_error() == Some(complaint) => Ok(()),
        other => other.map(drop),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Reads another process's memory by `process_vm_readv`.
///
/// # Errors
/// What the kernel said.
pub fn read_memory(pid: u32) -> io::Result<()> {
    let mut byte = [0u8; 1];
    let local = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(1),
        iov_len: 1,
    };
    // SAFETY: `local` is one writable byte; the other address is not this process's.
    let result = unsafe {
        libc::process_vm_readv(pid as c_int, &raw const local, 1, &raw const remote, 1, 0)
    };
    let_through(result as c_long, libc::EFAULT)
}

/// Traces another process, without stopping it.
///
/// # Errors
/// What the kernel said.
pub fn trace(pid: u32) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0usize, 0usize) }).map(drop)
}

/// Signals a process.
///
/// # Errors
/// What the kernel said.
pub fn signal(pid: u32) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::kill(pid as c_int, SIGNAL) }.into()).map(drop)
}

/// Signals a process's first thread.
///
/// # Errors
/// What the kernel said.
pub fn signal_thread(pid: u32) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, SIGNAL) }).map(drop)
}

/// Signals a process with a value.
///
/// # Errors
/// What the kernel said.
pub fn signal_with_value(pid: u32) -> io::Result<()> {
    let value = libc::sigval {
        sival_ptr: std::ptr::null_mut(),
    };
    // SAFETY: numbers only.
    check(unsafe { libc::sigqueue(pid as c_int, SIGNAL, value) }.into()).map(drop)
}

fn descriptor_of(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let descriptor = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: just opened, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

/// Signals a process by a descriptor of it.
///
/// # Errors
/// What the kernel said.
pub fn signal_by_descriptor(pid: u32) -> io::Result<()> {
    let process = descriptor_of(pid)?;
    let none = std::ptr::null::<c_void>();
    // SAFETY: an absent siginfo is what the call may be given.
    let result = unsafe {
        let call = libc::SYS_pidfd_send_signal;
        libc::syscall(call, process.as_raw_fd(), SIGNAL, none, 0)
    };
    check(result).map(drop)
}

/// Takes a copy of another process's first descriptor.
///
/// # Errors
/// What the kernel said.
pub fn take_descriptor(pid: u32) -> io::Result<()> {
    let process = descriptor_of(pid)?;
    // SAFETY: numbers only.
    check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), 0, 0) }).map(drop)
}

/// Sets a limit of another process, to what it is.
///
/// # Errors
/// What the kernel said.
pub fn set_limit(pid: u32) -> io::Result<()> {
    let mut old = MaybeUninit::<libc::rlimit>::uninit();
    let (pid, none) = (pid as c_int, std::ptr::null());
    // SAFETY: `old` has room for what is written, and is read only after that.
    unsafe {
        check(libc::prlimit(pid, libc::RLIMIT_NOFILE, none, old.as_mut_ptr()).into())?;
        let same = old.as_ptr();
        check(libc::prlimit(pid, libc::RLIMIT_NOFILE, same, std::ptr::null_mut()).into()).map(drop)
    }
}

/// Lowers another process's share of the CPU by a very little.
///
/// # Errors
/// What the kernel said.
pub fn set_priority(pid: u32) -> io::Result<()> {
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, pid, 1) };
    check(result).map(drop)
}

/// Enters a user namespace of its own, in which it has all privileges.
///
/// # Errors
/// What the kernel said.
pub fn unshare_users() -> io::Result<()> {
    // SAFETY: a number only.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into()).map(drop)
}

/// Starts a child in a user namespace of its own.
///
/// # Errors
/// What the kernel said.
pub fn clone_users() -> io::Result<()> {
    let flags = c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
    // SAFETY: without a stack of its own and without `CLONE_VM` it is a fork.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    leave_child(pid)
}

/// The same by the newer call, whose flags are in memory.
///
/// # Errors
/// What the kernel said.
pub fn clone3_users() -> io::Result<()> {
    /// `struct clone_args` of `linux/sched.h`, in its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Arguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
    }
    let arguments = Arguments {
        flags: libc::CLONE_NEWUSER as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..Arguments::default()
    };
    // SAFETY: `arguments` is readable and of the given size; it is a fork, as above.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<Arguments>(),
        )
    })?;
    leave_child(pid)
}

fn leave_child(pid: c_long) -> io::Result<()> {
    if pid == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) }
    }
    ended(pid as libc::pid_t)
}

/// Enters the network namespace of another process.
///
/// # Errors
/// What the kernel said.
pub fn enter_network(pid: u32) -> io::Result<()> {
    let process = descriptor_of(pid)?;
    // SAFETY: numbers only.
    check(unsafe { libc::setns(process.as_raw_fd(), libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Changes a mount that is none.
///
/// # Errors
/// What the kernel said.
pub fn mount() -> io::Result<()> {
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: a C string, and nothing where nothing is needed.
    let result = unsafe {
        libc::mount(
            none,
            c".".as_ptr(),
            none,
            libc::MS_REMOUNT,
            none.cast::<c_void>(),
        )
    };
    let_through(result.into(), libc::EINVAL)
}

/// Makes the working directory its root.
///
/// # Errors
/// What the kernel said.
pub fn change_root() -> io::Result<()> {
    // SAFETY: a C string.
    check(unsafe { libc::chroot(c".".as_ptr()) }.into()).map(drop)
}

/// Makes a device (`/dev/zero` by its number) in the working directory.
///
/// # Errors
/// What the kernel said.
pub fn make_device() -> io::Result<()> {
    let name = c"device".as_ptr();
    let device = libc::makedev(1, 5);
    // SAFETY: a C string and numbers.
    unsafe {
        check(libc::mknod(name, libc::S_IFCHR | 0o600, device).into())?;
        check(libc::unlink(name).into()).map(drop)
    }
}

/// Truncates a file by its name, to the size that it has.
///
/// # Errors
/// What the kernel said.
pub fn truncate(path: &Path, bytes: u64) -> io::Result<()> {
    // SAFETY: a C string and a number.
    check(unsafe { libc::truncate(c_path(path)?.as_ptr(), bytes as libc::off_t) }.into()).map(drop)
}

/// Changes a file's mode by the newest call for it.
///
/// # Errors
/// What the kernel said.
pub fn change_mode_anew(path: &Path, mode: u32) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a C string and numbers.
    let result = unsafe {
        let call = libc::SYS_fchmodat2;
        libc::syscall(call, libc::AT_FDCWD, path.as_ptr(), mode, 0)
    };
    check(result).map(drop)
}

/// Opens a file by the kernel's own handle of it, past the directories above it.
///
/// # Errors
/// What the kernel said.
pub fn open_by_handle(path: &Path) -> io::Result<()> {
    /// `struct file_handle` with as much as any file system needs (`MAX_HANDLE_SZ`).
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: c_int,
        handle: [u8; 128],
    }
    let mut handle = Handle {
        bytes: 128,
        kind: 0,
        handle: [0; 128],
    };
    let (path, mut mount) = (c_path(path)?, 0);
    // SAFETY: the handle has the room that it says, and is read only after that.
    unsafe {
        check(libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        ))?;
        let flags = libc::O_RDONLY;
        let call = libc::SYS_open_by_handle_at;
        check(libc::syscall(call, libc::AT_FDCWD, &raw mut handle, flags)).map(drop)
    }
}

/// Sets up a ring of io_uring.
///
/// # Errors
/// What the kernel said.
pub fn io_ring() -> io::Result<()> {
    // SAFETY: an address that is none is refused after the check.
    let_through(
        unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) },
        libc::EFAULT,
    )
}

/// Asks the kernel's BPF for a command that there is not.
///
/// # Errors
/// What the kernel said.
pub fn bpf() -> io::Result<()> {
    // SAFETY: no memory is given.
    let_through(
        unsafe { libc::syscall(libc::SYS_bpf, 0x7fff, 0, 0) },
        libc::EINVAL,
    )
}

/// Asks for the keyring of the process, which may be none.
///
/// # Errors
/// What the kernel said.
pub fn keyring() -> io::Result<()> {
    const GET_KEYRING: c_ulong = 0;
    const OF_PROCESS: c_long = -2;
    // SAFETY: numbers only.
    let_through(
        unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING, OF_PROCESS, 0) },
        libc::ENOKEY,
    )
}

/// Asks for performance counters with flags that there are not.
///
/// # Errors
/// What the kernel said.
pub fn performance_counter() -> io::Result<()> {
    // SAFETY: refused before the absent attributes are read.
    let_through(
        unsafe { libc::syscall(libc::SYS_perf_event_open, 0, 0, -1, -1, c_long::MAX) },
        libc::EINVAL,
    )
}

/// Asks which system it runs as, by the call that changes it.
///
/// # Errors
/// What the kernel said.
pub fn personality() -> io::Result<()> {
    // SAFETY: this number asks only.
    check(unsafe { libc::personality(0xffff_ffff) }.into()).map(drop)
}

/// Asks for a userfaultfd that may hold up the kernel.
///
/// # Errors
/// What the kernel said.
pub fn kernel_faults() -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) }).map(drop)
}

/// Makes memory that processes of one account share by its number.
///
/// # Errors
/// What the kernel said.
pub fn make_shared_memory() -> io::Result<i32> {
    // SAFETY: numbers only.
    let result = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) };
    check(result.into()).map(|id| id as i32)
}

/// Removes it.
///
/// # Errors
/// What the kernel said.
pub fn remove_shared_memory(id: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) }.into()).map(drop)
}

/// Maps such memory of another process.
///
/// # Errors
/// What the kernel said.
pub fn attach_shared_memory(id: i32) -> io::Result<()> {
    // SAFETY: the kernel chooses an address where nothing is.
    let address = unsafe { libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY) };
    check(address.addr() as c_long).map(drop)
}

/// Runs a program that is in no file.
///
/// # Errors
/// What the kernel said.
pub fn run_from_memory() -> io::Result<()> {
    use std::io::Write as _;
    // SAFETY: a C string and a number.
    let descriptor = check(unsafe { libc::memfd_create(c"program".as_ptr(), 0) }.into())?;
    // SAFETY: just made, and nobody else owns it.
    let mut file = unsafe { std::fs::File::from_raw_fd(descriptor as RawFd) };
    file.write_all(NOTHING)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Its number must be the same after an exec that keeps it, so it is not written to by then.
    let reader = std::fs::File::open(path)?;
    drop(file);
    let (none, empty) = ([std::ptr::null::<libc::c_char>()], c"".as_ptr());
    // SAFETY: C strings, lists that end at once, a flag.
    check(unsafe {
        libc::syscall(
            libc::SYS_execveat,
            reader.as_raw_fd(),
            empty,
            none.as_ptr(),
            none.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    })
    .map(drop)
}

/// Runs a program; its exit code is the attempt's.
///
/// # Errors
/// What the kernel said.
pub fn run(program: &Path, arguments: &[&str]) -> io::Result<()> {
    let program = c_path(program)?;
    let arguments = arguments
        .iter()
        .map(|argument| CString::new(*argument))
        .collect::<Result<Vec<_>, _>>()?;
    let list: Vec<_> = std::iter::once(program.as_ptr())
        .chain(arguments.iter().map(|argument| argument.as_ptr()))
        .chain([std::ptr::null()])
        .collect();
    let none = [std::ptr::null::<libc::c_char>()];
    // SAFETY: C strings that outlive the call, and lists that end in a null pointer.
    check(unsafe { libc::execve(program.as_ptr(), list.as_ptr(), none.as_ptr()) }.into()).map(drop)
}

/// Opens as many descriptors as it is told.
///
/// # Errors
/// What the kernel said.
pub fn many_descriptors(count: usize) -> io::Result<()> {
    let socket = std::fs::File::open("/dev/null")?;
    let copies = (0..count).map(|_| socket.try_clone());
    copies.collect::<Result<Vec<_>, _>>().map(drop)
}

/// Whether it would leave its memory in a file when it crashes.
///
/// # Errors
/// It would not.
pub fn core_dump() -> io::Result<()> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: `limit` has room for what is written, and is read only after that.
    let limit = unsafe {
        check(libc::getrlimit(libc::RLIMIT_CORE, limit.as_mut_ptr()).into())?;
        limit.assume_init()
    };
    match limit.rlim_max {
        0 => Err(io::Error::from_raw_os_error(libc::EPERM)),
        _ => Ok(()),
    }
}

/// Sends a datagram, by a socket that it already has, to a path where there is none.
/// A socket that takes addresses says so; one that takes none sends it to its own peer.
///
/// # Errors
/// What the kernel said; `EPERM` where the address was not looked at.
pub fn send_elsewhere(socket: RawFd) -> io::Result<()> {
    // SAFETY: all zeroes is a valid address of this kind.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(b"nobody-is-here") {
        *to = *from as libc::c_char;
    }
    // SAFETY: one readable byte, and an address of the given size.
    let result = unsafe {
        libc::sendto(
            socket,
            [0u8].as_ptr().cast(),
            1,
            libc::MSG_DONTWAIT,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_un>() as libc::socklen_t,
        )
    };
    match check(result as c_long) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

/// Sends a datagram by IP.
///
/// # Errors
/// What the kernel said.
pub fn send_datagram(to: std::net::SocketAddr) -> io::Result<()> {
    UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_told_by_its_error_and_by_its_success() {
        in_child(|| Ok(())).unwrap();
        let refused = || Err(io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(
            in_child(refused).unwrap_err().raw_os_error(),
            Some(libc::EACCES)
        );
        let unclear = in_child(|| Err(io::Error::other("?"))).unwrap_err();
        assert_eq!(unclear.raw_os_error(), None);
        in_child(|| std::process::abort()).unwrap_err();
    }

    #[test]
    fn the_programs_run_and_say_whose_rights_they_have() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        for (code, ends_well) in [(NOTHING, true), (WHOSE_RIGHTS, false)] {
            std::fs::write(&path, code).unwrap();
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, executable).unwrap();
            let ran = in_child(|| run(&path, &[]));
            assert_eq!(ran.is_ok(), ends_well, "{ran:?}");
        }
        in_child(run_from_memory).unwrap();
    }

    #[test]
    fn a_socket_for_datagrams_takes_addresses_and_one_with_a_connection_does_not() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        for (kind, takes) in [(SocketType::DGRAM, true), (SocketType::SEQPACKET, false)] {
            let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            assert_eq!(
                send_elsewhere(pair.0.as_raw_fd()).is_ok(),
                takes,
                "{kind:?}"
            );
        }
    }
}

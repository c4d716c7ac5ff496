//! Loaded into QEMU by `LD_PRELOAD`, so that the kernel tells which pages of a guest's
//! memory were written since somebody last asked.
//!
//! The kernel tracks writes to a mapping for a `userfaultfd` with `WP_ASYNC` (Linux 6.7),
//! without a fault handler and at the price of one short fault for each page that is
//! written again. Only the process that owns a mapping can register it, and QEMU has no
//! option for that: so this library stands between QEMU and `mmap`, and registers the one
//! mapping that is the guest's memory. Reading and resetting the marks is done from outside,
//! by `pando_sys::memory`.
//!
//! QEMU runs all the same where any of this fails: the mapping is then left as it is, and
//! whoever asks is told so by the kernel.
//!
//! This is the second crate with `unsafe`, beside `pando-sys`: it replaces a function of
//! libc in somebody else's process, which has no safe form, and must bring nothing along
//! that could panic, allocate or start something there.
//!
//! What is shipped is built with `panic = "abort"` and without `std`, which keeps its runtime
//! and libgcc's unwinder out of QEMU: 5 KiB instead of 260. Other builds, in which nothing
//! but tests uses it, cannot do without `std`.
#![cfg_attr(all(panic = "abort", not(test)), no_std)]
#![allow(unsafe_code)]

use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{off_t, size_t};

/// Names the length of the guest's memory in bytes, in decimal digits.
const RAM_BYTES_VARIABLE: &CStr = c"PANDO_RAM_BYTES";

/// `UFFD_USER_MODE_ONLY`: what an unprivileged process may have. Tracking needs no more,
/// since the kernel itself clears the mark of a page that it writes.
const USER_MODE_ONLY: c_int = 1;
/// `UFFD_API`, the version of the interface.
const API_VERSION: u64 = 0xaa;
/// `UFFD_FEATURE_WP_UNPOPULATED`: pages that are not there yet count, too.
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// `UFFD_FEATURE_WP_ASYNC`: the kernel lets a write through and marks the page.
const FEATURE_WP_ASYNC: u64 = 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`.
const MODE_WRITE_PROTECT: u64 = 1 << 1;

/// `struct uffdio_api` of `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register` of `linux/userfaultfd.h`.
#[repr(C)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// `UFFDIO_API`: `_IOWR(0xaa, 0x3f, struct uffdio_api)`.
const SET_API: libc::Ioctl = read_write(0x3f, size_of::<Api>());
/// `UFFDIO_REGISTER`: `_IOWR(0xaa, 0x00, struct uffdio_register)`.
const REGISTER: libc::Ioctl = read_write(0x00, size_of::<Register>());

const fn read_write(number: libc::Ioctl, bytes: usize) -> libc::Ioctl {
    (3 << 30) | ((bytes as libc::Ioctl) << 16) | (0xaa << 8) | number
}

/// `mmap` of libc.
///
/// # Safety
/// As for `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments and the caller's promises.
    unsafe { map(address, bytes, protection, flags, descriptor, offset) }
}

/// `mmap64` of libc, which is what QEMU calls.
///
/// # Safety
/// As for `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments and the caller's promises.
    unsafe { map(address, bytes, protection, flags, descriptor, offset) }
}

/// The system call, so that nothing must be looked up at a time when the loader may still
/// be at work; then the registration. `errno` is left as the call left it.
unsafe fn map(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // Widened, since the kernel looks at whole registers.
    // SAFETY: exactly the caller's own call.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address,
            bytes,
            c_long::from(protection),
            c_long::from(flags),
            c_long::from(descriptor),
            offset,
        )
    } as *mut c_void;
    if mapped != libc::MAP_FAILED
        && descriptor >= 0
        && is_private_and_writable(protection, flags)
        && bytes as u64 == ram_bytes()
    {
        // SAFETY: this thread's own `errno`, which is valid as long as the thread is.
        let errno = unsafe { *libc::__errno_location() };
        track(mapped as u64, bytes as u64);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    mapped
}

fn is_private_and_writable(protection: c_int, flags: c_int) -> bool {
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE && protection & libc::PROT_WRITE != 0
}

/// The length of the guest's memory; 0, which no mapping has, when it is not known.
fn ram_bytes() -> u64 {
    /// No length that a mapping can have.
    const UNREAD: u64 = u64::MAX;
    static BYTES: AtomicU64 = AtomicU64::new(UNREAD);
    let known = BYTES.load(Ordering::Relaxed);
    if known != UNREAD {
        return known;
    }
    // SAFETY: the name ends with a NUL byte; QEMU does not change its environment.
    let value = unsafe { libc::getenv(RAM_BYTES_VARIABLE.as_ptr()) };
    let bytes = if value.is_null() {
        0
    } else {
        // SAFETY: what getenv returns is a string that ends with a NUL byte.
        parse(unsafe { CStr::from_ptr(value) }.to_bytes())
    };
    BYTES.store(bytes, Ordering::Relaxed);
    bytes
}

/// A decimal number, or 0 for what is none. Without `str::parse`, which brings code for
/// errors along.
fn parse(digits: &[u8]) -> u64 {
    let mut number: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return 0;
        }
        let next = number.checked_mul(10);
        match next.and_then(|next| next.checked_add(u64::from(digit - b'0'))) {
            Some(next) => number = next,
            None => return 0,
        }
    }
    number
}

/// Has the kernel track writes to the mapping for as long as the process lives.
fn track(start: u64, bytes: u64) {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: a number and flags; no memory is passed.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, c_long::from(flags)) } as c_int;
    if descriptor < 0 {
        return;
    }
    if !register(descriptor, start, bytes) {
        // SAFETY: opened above, and nobody else knows it.
        unsafe { libc::close(descriptor) };
    }
    // Else it stays open: closing it would end the tracking.
}

fn register(descriptor: c_int, start: u64, bytes: u64) -> bool {
    let mut api = Api {
        version: API_VERSION,
        features: FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED,
        ioctls: 0,
    };
    let mut range = Register {
        start,
        bytes,
        mode: MODE_WRITE_PROTECT,
        ioctls: 0,
    };
    // SAFETY: both are the kernel's structures, as long as their numbers say, and live on
    // this stack for the calls.
    unsafe {
        libc::ioctl(descriptor, SET_API, &raw mut api) == 0
            && libc::ioctl(descriptor, REGISTER, &raw mut range) == 0
    }
}

/// Never called: nothing here panics. The language wants one where there is no `std`.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process, and takes nothing.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_kernels_header() {
        assert_eq!((SET_API, REGISTER), (0xc018_aa3f, 0xc020_aa00));
    }

    #[test]
    fn a_length_that_is_none_is_no_mappings() {
        assert_eq!(parse(b"268435456"), 256 << 20);
        for none in [&b""[..], b"12x", b"-1", b"99999999999999999999999"] {
            assert_eq!(parse(none), 0);
        }
    }

    #[test]
    fn only_private_mappings_that_can_be_written_are_of_interest() {
        let write = libc::PROT_READ | libc::PROT_WRITE;
        assert!(is_private_and_writable(
            write,
            libc::MAP_PRIVATE | libc::MAP_FIXED
        ));
        assert!(!is_private_and_writable(write, libc::MAP_SHARED));
        assert!(!is_private_and_writable(libc::PROT_READ, libc::MAP_PRIVATE));
    }
}

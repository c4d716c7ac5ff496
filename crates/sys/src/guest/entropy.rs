//! Mixing host entropy into the guest kernel's generator.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Most bytes one call takes; the host sends 64.
pub const MAX_ENTROPY_BYTES: usize = 256;

// <linux/random.h>: _IOW('R', 0x03, int[2]) and _IO('R', 0x07).
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

#[repr(C)]
struct PoolInfo {
    entropy_bits: libc::c_int,
    bytes: libc::c_int,
    pool: [u8; MAX_ENTROPY_BYTES],
}

/// Credits `entropy` to the kernel's pool and reseeds its generator, so that all
/// later output of getrandom, its vDSO form and `/dev/urandom` depends on it.
///
/// # Errors
/// Not privileged, no `/dev/urandom`, or more than [`MAX_ENTROPY_BYTES`].
pub fn reseed(entropy: &[u8]) -> io::Result<()> {
    let mut pool = [0; MAX_ENTROPY_BYTES];
    let Some(room) = pool.get_mut(..entropy.len()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    room.copy_from_slice(entropy);
    let info = PoolInfo {
        entropy_bits: entropy.len() as libc::c_int * 8,
        bytes: entropy.len() as libc::c_int,
        pool,
    };
    let device = File::options().write(true).open("/dev/urandom")?;
    // SAFETY: `info` has the layout of `struct rand_pool_info` with room for
    // `bytes` bytes behind the two ints; the kernel only reads it, during the call.
    let added = unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, &raw const info) };
    if added < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the request takes no argument.
    let reseeded = unsafe { libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG) };
    if reseeded < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

//! The C library's allocator, which Rust's is.

/// Has every allocation of at least [`LARGE_BYTES`] mapped by itself, for the rest of this
/// process's life: zeroed memory is then taken from the kernel page by page as it is
/// touched, and given back when it is freed.
///
/// The GNU allocator begins like this, but raises its bound to the size of what is freed,
/// up to 32 MiB. From then on large zeroed buffers are cut from the heap, cleared at once,
/// and kept.
pub fn map_large_allocations() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call takes two integers and changes how later allocations are made,
        // under the allocator's own lock. A value that it refuses changes nothing.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
    }
}

/// What counts as large: the GNU allocator's own bound at the start of a process.
pub const LARGE_BYTES: libc::c_int = 128 << 10;

//! What only the guest's agent needs: starting processes from PID 1, the kernel's
//! entropy pool, the one network interface.

pub mod entropy;
pub mod net;
pub mod spawn;

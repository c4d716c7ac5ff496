//! Nothing is lost: whatever dies in the middle of whatever is done to a sandbox, when the
//! power fails and when the disk is full, there is the state before or the state after, whole.

mod crash;
mod disk_full;
mod power;
mod reflinks;
mod stage;

/// Whether everything is to be tried, and not the sample that CI has the time for.
fn in_full() -> bool {
    std::env::var_os("PANDO_TEST_FULL").is_some()
}

//! From the kernel's hand-over to a guest that waits for its HELLO.
//!
//! ```text
//!  early: /dev /proc /sys /run, modules, cgroups, network, base image
//!    ├─ pando.bake=pre-mount ─▶ wait for a HELLO that asks to mount ─┐
//!    └─ pando.bake=ready ───────▶ root ◀─────────────────────────────┘
//! ```

pub(crate) mod cgroups;
mod modules;
mod mounts;
mod network;
mod quiet;
mod root;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub(crate) use root::{Root, assemble, write_if_changed};

/// How far a cold boot goes before it waits for HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bake {
    /// The root is assembled.
    Ready,
    /// The writable disk is not opened yet.
    PreMount,
}

impl Bake {
    /// Reads `pando.bake=` from the kernel's command line; *ready* if it is not there.
    fn from_command_line(command_line: &str) -> Self {
        let value = command_line
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix("pando.bake="));
        match value {
            Some("pre-mount") => Self::PreMount,
            _ => Self::Ready,
        }
    }
}

/// Everything before the root. Returns what the command line asks for.
///
/// # Errors
/// A kernel that lacks what every sandbox needs.
pub(crate) fn early() -> Result<Bake> {
    mounts::mount_early().context("cannot mount the kernel's file systems")?;
    crate::log::open();
    quiet::settle();
    modules::load_all()?;
    let command_line = std::fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    network::bring_up();
    root::mount_base()?;
    Ok(Bake::from_command_line(&command_line))
}

/// Devices show up shortly after their driver is loaded.
const DEVICE_WAIT: Duration = Duration::from_secs(10);

/// Waits until `found` finds something.
fn wait_for<T>(what: &str, found: impl Fn() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + DEVICE_WAIT;
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            anyhow::bail!("{what} did not appear within {DEVICE_WAIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_how_far_to_go() {
        let bake = Bake::from_command_line;
        assert_eq!(
            bake("quiet pando.bake=pre-mount panic=-1\n"),
            Bake::PreMount
        );
        assert_eq!(bake("quiet pando.bake=ready"), Bake::Ready);
        assert_eq!(bake("quiet"), Bake::Ready);
    }
}

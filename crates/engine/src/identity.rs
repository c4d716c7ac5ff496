//! The account a sandbox's shim and VMM run as, where the daemon is root.

use pando_store::SandboxDir;
use pando_sys::spawn::Identity;
use pando_types::Accelerator;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;

/// First of the accounts; far above what distributions, containers' subordinate ranges
/// and systemd's dynamic users take. Documented in SECURITY.md.
const FIRST_UID: u32 = 0x7000_0000;

/// Accounts there are.
const UIDS: u32 = 1 << 24;

/// A sandbox's account, by its directory's inode: two directories that exist at once
/// never have the same one, so neither have two sandboxes, but for numbers that far
/// apart as `UIDS`. Without root, everything runs as the daemon's user.
pub(crate) fn for_sandbox(dir: &SandboxDir, accelerator: Accelerator) -> Option<Identity> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let inode = std::fs::metadata(dir.path()).ok()?.ino();
    let uid = FIRST_UID + u32::try_from(inode % u64::from(UIDS)).ok()?;
    Some(Identity {
        uid,
        gid: kvm_group(accelerator).unwrap_or(uid),
    })
}

/// Whether the client of a TCP connection within this host may be a sandbox's shim or VMM:
/// it has the account of one, or is gone before it could be asked. Reads the kernel's
/// tables, which takes a moment. Without root all accounts are one, and it cannot be told.
pub fn may_be_of_a_sandbox(client: SocketAddr, server: SocketAddr) -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    match pando_sys::tcp::owner_of(client, server) {
        Ok(Some(uid)) => (FIRST_UID..FIRST_UID + UIDS).contains(&uid),
        Ok(None) => true,
        Err(error) => {
            tracing::warn!(%error, "cannot tell whose a connection is");
            true
        }
    }
}

/// The group that may open `/dev/kvm`.
fn kvm_group(accelerator: Accelerator) -> Option<u32> {
    match accelerator {
        Accelerator::Kvm => std::fs::metadata("/dev/kvm")
            .ok()
            .map(|metadata| metadata.gid()),
        Accelerator::Tcg => None,
    }
}

//! New ids and other random words.

use pando_types::{SandboxId, SnapshotId};

/// A new sandbox id.
pub(crate) fn sandbox() -> SandboxId {
    SandboxId::from_random(numbers())
}

/// A new snapshot id.
pub(crate) fn snapshot() -> SnapshotId {
    SnapshotId::from_random(numbers())
}

fn numbers() -> [u64; 19] {
    let bytes: [u8; 19 * 8] = random();
    std::array::from_fn(|index| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
        u64::from_le_bytes(number)
    })
}

/// `/etc/machine-id` of a sandbox: its own, and the same after a stop and a start.
pub(crate) fn machine_id(id: &SandboxId) -> String {
    blake3::derive_key("pando machine-id v1", id.as_str().as_bytes())[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Random bytes from the kernel.
///
/// # Panics
/// The kernel has none to give, which ends before any program runs.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    pando_sys::random::fill(&mut bytes)
        .expect("the kernel's generator is up before any program runs");
    bytes
}

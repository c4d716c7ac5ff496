//! What stands between a sandbox and the host.

use std::fmt;

/// How the guest's instructions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// By the CPU's virtualization, through the kernel.
    Kvm,
    /// By QEMU's translator; works everywhere, several times slower.
    Tcg,
}

impl Accelerator {
    /// QEMU's word for it, also used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The isolation a sandbox has; never weakened silently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// The VMM and its version, such as `qemu 10.0.2`.
    pub vmm: String,
    /// How instructions are run.
    pub accelerator: Accelerator,
    /// Why this accelerator was chosen, for a person.
    pub reason: String,
    /// The jail layers in force around the VMM and its shim.
    pub layers: Vec<String>,
}

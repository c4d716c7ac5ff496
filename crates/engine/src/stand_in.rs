//! A program of a test's own in the place of a shim or of QEMU.
//!
//! What a jail keeps out can only be shown by what is in it: a test starts a program there
//! that tries to get out. It is started by the very function that starts shims, in a
//! sandbox's directory, with a sandbox's spec; the spec names the program that is QEMU.
//! This is the only way to take a layer off. The daemon has none: whatever its settings are,
//! its [`crate::Engine`] puts all layers on.

use crate::shims::{Shim, ShimProcess, ShimStarter};
use crate::{EngineError, identity};
use pando_shim::spec::ShimSpec;
use pando_store::SandboxDir;
use pando_sys::jail::Layers;
use pando_types::Accelerator;
use std::path::Path;

/// A process that was started as a shim.
#[derive(Debug)]
pub struct StandIn {
    shim: Shim,
}

impl StandIn {
    /// Starts `program` as the shim of `dir`, whose VMM is the spec's, with these layers.
    ///
    /// # Errors
    /// As for any shim.
    pub async fn start(
        program: &Path,
        dir: &SandboxDir,
        spec: &ShimSpec,
        jail: Layers,
    ) -> Result<Self, EngineError> {
        let starter = ShimStarter {
            program: program.to_owned(),
            qemu: spec.qemu.clone(),
            preload: spec.preload.clone(),
            jail,
        };
        let spec = ShimSpec {
            loosened: starter.loosened(),
            ..spec.clone()
        };
        let accelerator = match spec.accelerator.as_str() {
            "kvm" => Accelerator::Kvm,
            _ => Accelerator::Tcg,
        };
        let identity = identity::for_sandbox(dir, accelerator);
        let shim = starter.start(dir, &spec, identity).await?;
        Ok(Self { shim })
    }

    /// Waits until it has ended, or says that it has a VM or that it has none.
    pub async fn settled(&self) {
        // Either is what was waited for.
        let _ = self.shim.ready().await;
    }

    /// Kills it, and with it its VMM.
    pub async fn kill(self) {
        if let Some(process) = self.shim.process {
            ShimProcess::kill(process).await;
        }
    }
}

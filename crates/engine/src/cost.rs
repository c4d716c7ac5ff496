//! What a sandbox costs its host now.

use crate::EngineError;
use crate::engine::Engine;
use crate::request::{Caller, Sandbox, SandboxUsage};
use crate::sandboxes::Entry;
use crate::shims::{Shim, ShimProcess};
use futures::stream::{self, StreamExt as _};
use pando_sys::process::ProcessUse;
use pando_wire::shim;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Sandboxes that are looked at at once.
const AT_ONCE: usize = 16;

/// How long a shim may take to say what its guest's network did: it has it in memory. One
/// that a guest has taken over is not waited for.
const SHIM_TIMEOUT: Duration = Duration::from_secs(1);

/// Directories of a sandbox lie in one another no deeper than this.
const DEPTH: usize = 4;

impl Engine {
    /// A sandbox's description, with what it costs.
    ///
    /// # Errors
    /// There is none that the caller may see.
    pub async fn get_with_usage(
        &self,
        caller: &Caller,
        sandbox: &str,
    ) -> Result<Sandbox, EngineError> {
        let entry = self.inner.sandboxes.find(caller, sandbox)?;
        self.describe_with_usage(entry).await
    }

    /// The caller's sandboxes, oldest first, with what they cost.
    ///
    /// # Errors
    /// The index is damaged.
    pub async fn list_with_usage(&self, caller: &Caller) -> Result<Vec<Sandbox>, EngineError> {
        let entries = stream::iter(self.inner.sandboxes.of(caller));
        let described = entries
            .map(|entry| self.describe_with_usage(entry))
            .buffered(AT_ONCE);
        let described: Vec<_> = described.collect().await;
        described.into_iter().collect()
    }

    async fn describe_with_usage(&self, entry: Arc<Entry>) -> Result<Sandbox, EngineError> {
        let mut sandbox = entry.describe()?;
        sandbox.usage = Some(self.usage(&entry).await?);
        Ok(sandbox)
    }

    async fn usage(&self, entry: &Entry) -> Result<SandboxUsage, EngineError> {
        let shim = entry.shim();
        let process = shim.as_ref().and_then(|shim| shim.process);
        let dir = self.dir_of(entry).path().to_owned();
        let paused_in = entry.row().paused_in;
        let measured = self.aside(move |inner| {
            // A paused one is all in its snapshot.
            let paused = paused_in.map(|id| inner.snapshots.dir().join(id));
            let disk = own_bytes(&dir, DEPTH).unwrap_or(0);
            let paused = paused.and_then(|dir| own_bytes(&dir, DEPTH).ok());
            let used = process.map(ShimProcess::usage).unwrap_or_default();
            (used, disk + paused.unwrap_or(0))
        });
        let network = async {
            let shim: &Shim = shim.as_deref()?;
            let asked = shim.client.rpc.network(shim::NetworkRequest::default());
            let answer = tokio::time::timeout(SHIM_TIMEOUT, asked).await.ok()?;
            let answer = answer.ok()?.into_owned();
            Some((answer.sent_bytes, answer.received_bytes))
        };
        let (measured, network) = tokio::join!(measured, network);
        let (used, disk_bytes) = measured?;
        let (net_sent_bytes, net_received_bytes) = network.unwrap_or_default();
        Ok(SandboxUsage {
            memory_bytes: used.private_bytes,
            cpu_ms: used.cpu_ms,
            disk_bytes,
            net_sent_bytes,
            net_received_bytes,
        })
    }
}

impl ShimProcess {
    /// What it and its VMM have used. Nothing, once they are gone.
    pub(crate) fn usage(self) -> ProcessUse {
        let own = self.pid();
        let all = own.into_iter().chain(self.children_pids());
        let used = all.filter_map(|pid| ProcessUse::of(pid).ok());
        used.fold(ProcessUse::default(), |sum, used| ProcessUse {
            private_bytes: sum.private_bytes + used.private_bytes,
            cpu_ms: sum.cpu_ms + used.cpu_ms,
        })
    }
}

/// Allocated bytes of files that nothing else has: what would be free if they were removed.
fn own_bytes(dir: &Path, depth: usize) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        // Never through a link that a sandbox's account may have put there.
        let metadata = match entry.as_ref().map(fs::DirEntry::metadata) {
            Ok(Ok(metadata)) => metadata,
            _ => continue,
        };
        if metadata.is_dir() && depth > 0 {
            total += own_bytes(&entry?.path(), depth - 1).unwrap_or(0);
        } else if metadata.is_file() && metadata.nlink() == 1 {
            total += metadata.blocks() * 512;
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_others_have_too_cost_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, own) = (dir.path().join("shared"), dir.path().join("s/slot"));
        fs::create_dir_all(&own).unwrap();
        fs::write(&shared, vec![1; 100_000]).unwrap();
        fs::hard_link(&shared, own.join("layer")).unwrap();
        assert_eq!(own_bytes(&own, DEPTH).unwrap(), 0);
        fs::write(own.join("disk"), vec![1; 100_000]).unwrap();
        let bytes = own_bytes(&dir.path().join("s"), DEPTH).unwrap();
        assert!((100_000..200_000).contains(&bytes), "{bytes}");
        assert!(own_bytes(&dir.path().join("gone"), DEPTH).is_err());
    }
}

//! The client's part that is about snapshots: take, fork, go back, pause.

use crate::client::{Client, NO_BODY, call};
use crate::transport::Call;
use crate::{ClientError, api};
use pando_api::route::Operation;

/// Every method fails with the [`ClientError`] that says why.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Client {
    /// Keeps a sandbox's present state.
    pub async fn snapshot(
        &self,
        sandbox: &str,
        request: &api::TakeSnapshotRequest,
    ) -> Result<api::Snapshot, ClientError> {
        self.transport
            .json(&call(Operation::TakeSnapshot, sandbox), Some(request))
            .await
    }

    /// Lists the caller's snapshots that have all of these labels, each `NAME=VALUE`.
    pub async fn snapshots(&self, labels: &[String]) -> Result<Vec<api::Snapshot>, ClientError> {
        let query: Vec<_> = labels.iter().map(|label| ("label", &**label)).collect();
        let call = Call {
            operation: Operation::ListSnapshots,
            target: "",
            second: "",
            query: &query,
        };
        let list: api::SnapshotList = self.transport.json(&call, NO_BODY).await?;
        Ok(list.snapshots)
    }

    /// Describes a snapshot.
    pub async fn get_snapshot(&self, snapshot: &str) -> Result<api::Snapshot, ClientError> {
        self.transport
            .json(&call(Operation::GetSnapshot, snapshot), NO_BODY)
            .await
    }

    /// Removes a snapshot; what came from it is kept.
    pub async fn remove_snapshot(&self, snapshot: &str) -> Result<(), ClientError> {
        self.transport
            .send_json(&call(Operation::RemoveSnapshot, snapshot), NO_BODY)
            .await
            .map(drop)
    }

    /// Makes running children of a running sandbox. Those that could not be made are in the answer.
    pub async fn fork(
        &self,
        sandbox: &str,
        request: &api::ForkRequest,
    ) -> Result<api::Forked, ClientError> {
        self.transport
            .json(&call(Operation::ForkSandbox, sandbox), Some(request))
            .await
    }

    /// Puts a sandbox back into a kept state.
    pub async fn roll_back(
        &self,
        sandbox: &str,
        request: &api::RollbackRequest,
    ) -> Result<api::RolledBack, ClientError> {
        self.transport
            .json(&call(Operation::RollBackSandbox, sandbox), Some(request))
            .await
    }

    /// Puts a running sandbox on disk, memory included.
    pub async fn pause(&self, sandbox: &str) -> Result<api::Sandbox, ClientError> {
        self.transport
            .json(&call(Operation::PauseSandbox, sandbox), NO_BODY)
            .await
    }

    /// Lets a paused sandbox go on.
    pub async fn resume(&self, sandbox: &str) -> Result<api::Sandbox, ClientError> {
        self.transport
            .json(&call(Operation::ResumeSandbox, sandbox), NO_BODY)
            .await
    }

    /// The caller's snapshots and sandboxes.
    pub async fn tree(&self) -> Result<api::Tree, ClientError> {
        self.transport
            .json(&call(Operation::Tree, ""), NO_BODY)
            .await
    }

    /// Where disk space has gone.
    pub async fn disk_usage(&self) -> Result<api::DiskUsage, ClientError> {
        self.transport
            .json(&call(Operation::DiskUsage, ""), NO_BODY)
            .await
    }
}

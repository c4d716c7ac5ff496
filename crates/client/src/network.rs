//! The client's part that is about what sandboxes may reach.

use crate::client::{Client, NO_BODY, call};
use crate::{ClientError, api};
use pando_api::route::Operation;

/// Every method fails with the [`ClientError`] that says why.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Client {
    /// Changes a sandbox.
    pub async fn change(
        &self,
        sandbox: &str,
        request: &api::ChangeSandboxRequest,
    ) -> Result<api::Sandbox, ClientError> {
        self.transport
            .json(&call(Operation::ChangeSandbox, sandbox), Some(request))
            .await
    }

    /// Changes a template.
    pub async fn change_template(
        &self,
        template: &str,
        request: &api::ChangeRequest,
    ) -> Result<api::Template, ClientError> {
        self.transport
            .json(&call(Operation::ChangeTemplate, template), Some(request))
            .await
    }

    /// What a sandbox is connected with, and what it was refused.
    pub async fn network(&self, sandbox: &str) -> Result<api::Network, ClientError> {
        self.transport
            .json(&call(Operation::Network, sandbox), NO_BODY)
            .await
    }
}

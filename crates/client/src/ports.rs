//! The client's part that is about ports.

use crate::client::{Client, NO_BODY, call};
use crate::transport::Call;
use crate::{ClientError, api};
use pando_api::route::Operation;

/// Every method fails with the [`ClientError`] that says why.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Client {
    /// What listens in a sandbox, and what else was said of its ports.
    pub async fn ports(&self, sandbox: &str) -> Result<api::PortList, ClientError> {
        self.transport
            .json(&call(Operation::ListPorts, sandbox), NO_BODY)
            .await
    }

    /// Lets a port of the host lead to one of a sandbox's, or says who may use it.
    pub async fn open_port(
        &self,
        sandbox: &str,
        request: &api::OpenPortRequest,
    ) -> Result<api::Port, ClientError> {
        self.transport
            .json(&call(Operation::OpenPort, sandbox), Some(request))
            .await
    }

    /// Takes back what was said of a port.
    pub async fn close_port(&self, sandbox: &str, port: u16) -> Result<(), ClientError> {
        let port = port.to_string();
        let call = Call {
            second: &port,
            ..call(Operation::ClosePort, sandbox)
        };
        self.transport.send_json(&call, NO_BODY).await.map(drop)
    }
}

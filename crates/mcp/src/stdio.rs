//! The server on stdin and stdout, for clients that start it themselves.

use crate::server::Server;
use pando_client::Client;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::io::stdio_pipes;
use std::sync::Arc;
use std::time::Duration;

/// How long commands in the foreground may take to be killed once the client is gone.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// The session on stdin and stdout could not begin or broke off.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// What came on stdin was not the beginning of a session.
    #[error("the client did not begin a session")]
    Begin(#[source] Box<ServerInitializeError>),
    /// The server's task ended by itself.
    #[error("the session broke off")]
    Broken(#[source] tokio::task::JoinError),
}

/// Serves one client on stdin and stdout until it closes stdin. Nothing else may write to
/// stdout meanwhile.
///
/// # Errors
/// [`StdioError`] says which.
pub async fn serve_stdio(client: Client) -> Result<(), StdioError> {
    let server = Server::new(Arc::new(client));
    let afterwards = server.afterwards.clone();
    let ended = match server.serve(stdio_pipes()).await {
        Ok(session) => session
            .waiting()
            .await
            .map(drop)
            .map_err(StdioError::Broken),
        // A client that looked and left.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(StdioError::Begin(Box::new(error))),
    };
    afterwards.close();
    let _ = tokio::time::timeout(END_DEADLINE, afterwards.wait()).await;
    ended
}

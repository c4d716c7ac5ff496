//! The server on stdin and stdout, for clients that start it themselves.

use crate::server::{Link, Server};
use pando_client::{Client, ClientError};
use rmcp::ServiceExt;
use rmcp::model::Extensions;
use rmcp::service::ServerInitializeError;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;
use std::sync::Arc;
use std::time::Duration;

/// How long commands in the foreground may take to be killed once the client is gone.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// The longest message. A longer one is dropped with a line in the log and no answer, since
/// its id was not read; so this is far more than any tool takes, which then says so in words.
const LINE_BYTES: usize = 16 << 20;

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

/// Finds the daemon anew for each call: the client may have started this server before the
/// daemon's first start, which makes the key.
struct Finding<F>(F);

impl<F> Link for Finding<F>
where
    F: Fn() -> Result<Client, ClientError> + Send + Sync + 'static,
{
    fn client(&self, _: &Extensions) -> Result<Client, ClientError> {
        (self.0)()
    }
}

/// Serves one client on stdin and stdout until it closes stdin. Nothing else may write to
/// stdout meanwhile. `find` says where the daemon is and with which key, at each call.
///
/// # Errors
/// [`StdioError`] says which.
pub async fn serve_stdio(
    find: impl Fn() -> Result<Client, ClientError> + Send + Sync + 'static,
) -> Result<(), StdioError> {
    let server = Server::new(Arc::new(Finding(find)));
    let afterwards = server.afterwards.clone();
    let (stdin, stdout) = stdio_pipes();
    let transport = AsyncRwTransport::new_server(stdin, stdout).with_max_line_length(LINE_BYTES);
    let ended = match server.serve(transport).await {
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

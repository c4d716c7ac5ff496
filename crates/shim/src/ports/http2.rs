//! HTTP/2 from the first byte on, for gRPC: one connection for each port.

use super::tunnel::Dialler;
use super::{HEAD_BYTES, PortError};
use crate::passthrough::Body;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Ports whose connection is kept; the one more costs another its own, once it is unused.
const MAX_KEPT: usize = 16;

/// Bytes of one stream that may be on their way unread.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// All streams of one connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// The connections that are kept.
#[derive(Default)]
pub(super) struct Http2 {
    kept: Mutex<BTreeMap<u16, SendRequest<Body>>>,
}

impl Http2 {
    /// A connection to a port, ready for a request.
    pub(super) async fn sender(
        &self,
        port: u16,
        dialler: &Dialler,
    ) -> Result<SendRequest<Body>, PortError> {
        if let Some(mut sender) = self.find(port)
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let tunnel = dialler.clone().dial(port).await?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEAD_BYTES as u32)
            .handshake(TokioIo::new(tunnel))
            .await?;
        // Ends when nobody can send any more, or the server breaks off.
        tokio::spawn(async move { drop(connection.await) });
        self.keep(port, sender.clone());
        Ok(sender)
    }

    fn find(&self, port: u16) -> Option<SendRequest<Body>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(&port)
            .filter(|sender| !sender.is_closed())
            .cloned()
    }

    fn keep(&self, port: u16, sender: SendRequest<Body>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, sender| !sender.is_closed());
        if kept.len() >= MAX_KEPT {
            kept.pop_first();
        }
        kept.insert(port, sender);
    }
}

//! Running a program to its end, over the end of a daemon.

use crate::EngineError;
use crate::engine::Engine;
use crate::sandboxes::Entry;
use crate::shims::Shim;
use crate::trace;
use crate::usage::guest_error;
use connectrpc::ErrorCode;
use pando_wire::shim::{ExecRequest, ExecResponse, run_response};
use std::sync::Arc;
use std::time::SystemTime;

/// Characters of a request's id: a UUID has 36.
const REQUEST_ID_CHARACTERS: usize = 64;

impl Engine {
    /// Runs a program to its end. When the daemon ends before it, the caller learns which
    /// process it is.
    pub(crate) async fn run_to_end(
        &self,
        entry: &Arc<Entry>,
        shim: &Arc<Shim>,
        request: ExecRequest,
    ) -> Result<ExecResponse, EngineError> {
        use run_response::Event;
        let failed = |error| guest_error(entry, shim, error);
        let nonsense = || EngineError::Internal("the shim did not say how it ended".to_owned());
        let from = SystemTime::now();
        let mut answers = shim.client.rpc.run(request.clone()).await.map_err(failed)?;
        let process_id = match answers.message().await {
            Ok(Some(begun)) => match begun.to_owned_message().event {
                Some(Event::ProcessId(process_id)) => process_id,
                _ => return Err(nonsense()),
            },
            Ok(None) => return Err(nonsense()),
            // It was started by an older Pando, which tells the end alone.
            Err(error) if error.code == ErrorCode::Unimplemented => {
                let answer = shim.client.rpc.exec(request).await.map_err(failed)?;
                return Ok(answer.into_owned());
            }
            Err(error) => return Err(failed(error)),
        };
        tokio::select! {
            biased;
            ended = answers.message() => match ended.map_err(failed)? {
                Some(ended) => match ended.to_owned_message().event {
                    Some(Event::Result(result)) => {
                        trace::exec(from, &result);
                        Ok(*result)
                    }
                    _ => Err(nonsense()),
                },
                None => Err(nonsense()),
            },
            () = self.ending() => Err(EngineError::DaemonRestarted {
                id: entry.id.to_string(),
                process_id,
            }),
        }
    }
}

/// Refuses what cannot be a request's id.
pub(crate) fn check_request_id(id: Option<&str>) -> Result<(), EngineError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match id {
        Some(id)
            if id.is_empty() || id.len() > REQUEST_ID_CHARACTERS || !id.chars().all(allowed) =>
        {
            Err(EngineError::Invalid(format!(
                "`request_id` must have 1 to {REQUEST_ID_CHARACTERS} letters, digits, `.`, `_` or `-`"
            )))
        }
        _ => Ok(()),
    }
}

//! A daemon that went away in the middle of a call, and is waited for.

use crate::ClientError;
use std::time::{Duration, Instant};

/// How long we wait: a restart takes seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// How often we try.
const PAUSE: Duration = Duration::from_millis(250);

/// The error of a daemon that ends while a program runs on.
const RESTARTED: &str = "daemon_restarted";

/// Since when the daemon is away.
#[derive(Debug, Default)]
pub(crate) struct Away {
    since: Option<Instant>,
}

impl Away {
    /// It answers again.
    pub(crate) fn is_back(&mut self) {
        self.since = None;
    }

    /// Waits a moment after a call failed, before it is made again. Gives back an error that
    /// waiting does not help, and the last one when it took too long.
    pub(crate) async fn wait_after(&mut self, error: ClientError) -> Result<(), ClientError> {
        let went_away = matches!(error, ClientError::Broken(_)) || error.code() == Some(RESTARTED);
        // One that was never there is not waited for.
        let is_away = self.since.is_some() && matches!(error, ClientError::NotReachable { .. });
        if !went_away && !is_away {
            return Err(error);
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > DEADLINE {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// An id for a request, so that asking again under it starts nothing twice.
pub(crate) fn request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

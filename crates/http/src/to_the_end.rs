//! Work that a client's hanging up does not cut off.

use crate::error::ApiError;
use pando_engine::EngineError;
use std::future::Future;
use tracing::Instrument as _;

/// Runs to its end even if the client hangs up, so that no operation stops half-way.
pub(crate) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(result) => result.map_err(ApiError::from),
        Err(error) => Err(ApiError::Internal(error.to_string())),
    }
}

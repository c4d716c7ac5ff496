//! Between the API's words for how long a sandbox is there and the engine's.

use super::invalid;
use crate::error::ApiError;
use pando_api as api;
use pando_engine::request::{Lifetime, LifetimeChange};
use pando_types::{Lifespan, OnTimeout};

/// That of a new sandbox.
pub(in crate::v1) fn of_new(request: &api::CreateSandboxRequest) -> Result<Lifetime, ApiError> {
    Ok(Lifetime {
        timeout: span("timeout_s", request.timeout_s)?,
        idle_timeout: span("idle_timeout_s", request.idle_timeout_s)?,
        on_timeout: on_timeout(request.on_timeout.as_deref())?.unwrap_or_default(),
        auto_resume: request.auto_resume,
    })
}

/// How a fork's children differ from their parent.
pub(in crate::v1) fn of_children(request: &api::ForkRequest) -> Result<LifetimeChange, ApiError> {
    change(
        (request.timeout_s, request.idle_timeout_s),
        request.on_timeout.as_deref(),
        request.auto_resume,
    )
}

/// How a sandbox is to differ from what it is.
pub(in crate::v1) fn change_of(
    request: &api::ChangeSandboxRequest,
) -> Result<LifetimeChange, ApiError> {
    change(
        (request.timeout_s, request.idle_timeout_s),
        request.on_timeout.as_deref(),
        request.auto_resume,
    )
}

fn change(
    (timeout, idle_timeout): (Option<Option<f64>>, Option<Option<f64>>),
    word: Option<&str>,
    auto_resume: Option<bool>,
) -> Result<LifetimeChange, ApiError> {
    Ok(LifetimeChange {
        timeout: timeout
            .map(|seconds| span("timeout_s", seconds))
            .transpose()?,
        idle_timeout: idle_timeout
            .map(|seconds| span("idle_timeout_s", seconds))
            .transpose()?,
        on_timeout: on_timeout(word)?,
        auto_resume,
    })
}

fn span(field: &str, seconds: Option<f64>) -> Result<Option<Lifespan>, ApiError> {
    let span = |seconds| {
        Lifespan::from_seconds(seconds)
            .map_err(|error| invalid(format!("`{field}` cannot be {seconds}: {error}")))
    };
    seconds.map(span).transpose()
}

fn on_timeout(word: Option<&str>) -> Result<Option<OnTimeout>, ApiError> {
    let read = |word: &str| {
        word.parse().map_err(|()| {
            let start: String = word.chars().take(64).collect();
            invalid(format!(
                "`on_timeout` cannot be `{start}`: choose `kill` or `pause`"
            ))
        })
    };
    word.map(read).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_read_or_refused_by_name() {
        let request = api::CreateSandboxRequest {
            timeout_s: Some(1.5),
            on_timeout: Some("pause".into()),
            ..Default::default()
        };
        let Ok(read) = of_new(&request) else {
            panic!("it is right");
        };
        assert_eq!(read.timeout.map(Lifespan::as_millis), Some(1500));
        assert_eq!(read.on_timeout, OnTimeout::Pause);
        assert!(read.idle_timeout.is_none() && !read.auto_resume);

        let refused = |request: &api::ChangeSandboxRequest| match change_of(request) {
            Err(ApiError::BadParameter(text)) => text,
            _ => panic!("{request:?} is refused"),
        };
        let mut wrong = api::ChangeSandboxRequest {
            idle_timeout_s: Some(Some(-1.0)),
            ..Default::default()
        };
        assert_eq!(
            refused(&wrong),
            "`idle_timeout_s` cannot be -1: choose 1 second to 30 days (2592000 seconds)"
        );
        wrong.idle_timeout_s = Some(None);
        assert!(change_of(&wrong).is_ok_and(|change| change.idle_timeout == Some(None)));
        wrong.on_timeout = Some("sleep".into());
        assert_eq!(
            refused(&wrong),
            "`on_timeout` cannot be `sleep`: choose `kill` or `pause`"
        );
    }
}

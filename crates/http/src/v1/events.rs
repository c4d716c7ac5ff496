//! The journal: a page of it as JSON, or as server-sent events that go on as things happen.
//!
//! ```text
//! GET /v1/events            Accept: text/event-stream, or ?follow=true
//!   retry: 1000
//!   id: 7
//!   data: {"sequence":7,"at":"…","kind":"sandbox.running","subject":"…","detail":""}
//!   : a comment, when nothing happened for a while
//! ```
//!
//! The id is the event's number, so that a client that comes back with `Last-Event-ID`
//! goes on where it was, also under another daemon. Source of the format: the HTML
//! standard, "Server-sent events". The events have no type of their own: a browser's
//! `onmessage` gets them all.

use super::{Api, convert};
use crate::error::ApiError;
use crate::json::Params;
use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::stream::{self, BoxStream, StreamExt as _};
use http::{HeaderMap, HeaderName, header};
use pando_api as api;
use pando_engine::EngineError;
use pando_engine::request::{Caller, Event, EventFilter};
use serde::Deserialize;
use std::time::Duration;

/// Events in one answer when none is asked for.
const DEFAULT_EVENTS: u32 = 100;

/// Events in one answer at most: about 200 KiB.
const MAX_EVENTS: u32 = 1000;

/// Characters of a filter; longer than any id, name or kind.
const FILTER_CHARACTERS: usize = 128;

/// A comment this often keeps the connection open in middleboxes and finds dead clients.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// When a browser comes back after the connection broke: a daemon's restart takes about that.
const RETRY: Duration = Duration::from_secs(1);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The query of `GET /v1/events`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventQuery {
    after: Option<u64>,
    limit: Option<u32>,
    #[serde(default)]
    follow: bool,
    sandbox: Option<String>,
    kind: Option<String>,
}

/// Reads the journal, or follows it.
pub(super) async fn events(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<EventQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let filter = filter(&query)?;
    if query.follow || wants_stream(&headers) {
        if query.limit.is_some() {
            return Err(ApiError::BadParameter(
                "`limit` is for a page of the journal, a stream has none".to_owned(),
            ));
        }
        let after = match headers.get(LAST_EVENT_ID) {
            // It says more than the query, which a browser repeats as it was.
            Some(value) => last_event_id(value)?,
            None => query.after.unwrap_or(0),
        };
        let pages = api.engine.follow_events(&caller, &filter, after);
        return Ok(stream_of(pages));
    }
    let limit = query.limit.unwrap_or(DEFAULT_EVENTS);
    if limit == 0 || limit > MAX_EVENTS {
        return Err(ApiError::BadParameter(format!(
            "`limit` must be 1 to {MAX_EVENTS}"
        )));
    }
    let after = query.after.unwrap_or(0);
    let events = api.engine.events(&caller, &filter, after, limit).await?;
    let events = events.into_iter().map(convert::event).collect();
    Ok(Json(api::EventList { events }).into_response())
}

fn filter(query: &EventQuery) -> Result<EventFilter, ApiError> {
    let checked = |name: &str, value: &Option<String>| match value {
        Some(value) if value.is_empty() || value.chars().count() > FILTER_CHARACTERS => {
            Err(ApiError::BadParameter(format!(
                "`{name}` must have 1 to {FILTER_CHARACTERS} characters"
            )))
        }
        value => Ok(value.clone()),
    };
    Ok(EventFilter {
        sandbox: checked("sandbox", &query.sandbox)?,
        kind_prefix: checked("kind", &query.kind)?.unwrap_or_default(),
    })
}

/// Whether the client names the media type; `*/*` is JSON, as everywhere.
fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let mut types = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    types.any(|one| {
        let essence = one.split(';').next().unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("text/event-stream")
    })
}

fn last_event_id(value: &http::HeaderValue) -> Result<u64, ApiError> {
    let number = value
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| {
        ApiError::BadParameter("`Last-Event-ID` must be the number of an event".to_owned())
    })
}

fn stream_of(pages: BoxStream<'static, Result<Vec<Event>, EngineError>>) -> Response {
    let first = stream::once(async { Ok(sse::Event::default().retry(RETRY)) });
    let events = pages.flat_map(|page| {
        let events = match page {
            Ok(events) => events.into_iter().map(message).collect(),
            // The client sees the connection break, and comes back.
            Err(error) => vec![Err(axum::Error::new(error))],
        };
        stream::iter(events)
    });
    let mut response = Sse::new(first.chain(events))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response();
    // nginx would keep them back otherwise.
    let unbuffered = http::HeaderValue::from_static("no");
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, unbuffered);
    response
}

fn message(event: Event) -> Result<sse::Event, axum::Error> {
    let id = event.sequence.to_string();
    sse::Event::default()
        .id(id)
        .json_data(convert::event(event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_stream_is_for_who_names_it() {
        for (accept, stream) in [
            ("text/event-stream", true),
            ("application/json, Text/Event-Stream;q=0.9", true),
            ("*/*", false),
            ("application/json", false),
            ("text/*", false),
            ("text/event-streams", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(wants_stream(&headers), stream, "{accept}");
        }
        assert!(!wants_stream(&HeaderMap::new()));
    }

    #[test]
    fn an_id_that_is_no_number_is_refused() {
        let id = |text: &'static str| last_event_id(&HeaderValue::from_static(text));
        assert_eq!(id(" 12 ").unwrap(), 12);
        for text in ["", "-1", "1.5", "x", "99999999999999999999", "1 2"] {
            assert!(id(text).is_err(), "{text}");
        }
    }
}

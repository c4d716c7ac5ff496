//! The journal from the client's side: a page of it, or a stream that outlives the daemon.

use crate::away::Away;
use crate::client::{Client, NO_BODY};
use crate::transport::{Call, full};
use crate::{ClientError, api};
use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use http::HeaderValue;
use http::header::ACCEPT;
use http_body_util::BodyDataStream;
use hyper::body::Incoming;
use pando_api::route::Operation;
use sse_stream::SseByteStream;
use std::time::Duration;

/// The daemon sends a comment every 15 s: a connection that is this silent is dead.
const SILENCE: Duration = Duration::from_secs(60);

/// Which events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Those with a higher number alone.
    pub after: u64,
    /// Those about this sandbox alone: its id, or the name of one that is there.
    pub sandbox: Option<String>,
    /// Those alone whose kind begins like this.
    pub kind: Option<String>,
}

/// Events as they come.
pub type Events = BoxStream<'static, Result<api::Event, ClientError>>;

impl EventFilter {
    fn query(&self) -> Vec<(&'static str, String)> {
        let after = [("after", self.after.to_string())];
        let sandbox = self.sandbox.clone().map(|sandbox| ("sandbox", sandbox));
        let kind = self.kind.clone().map(|kind| ("kind", kind));
        after.into_iter().chain(sandbox).chain(kind).collect()
    }
}

/// Every method fails with the [`ClientError`] that says why.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Client {
    /// Reads the journal: at most `limit` events that fit.
    pub async fn events(
        &self,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<Vec<api::Event>, ClientError> {
        let mut query = filter.query();
        query.push(("limit", limit.to_string()));
        let query: Vec<_> = query
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        let list: api::EventList = self.transport.json(&call(&query), NO_BODY).await?;
        Ok(list.events)
    }

    /// Events that fit, as they happen, over one connection. It ends with the connection;
    /// a filter whose `after` is the last event's number goes on there.
    pub async fn event_stream(&self, filter: &EventFilter) -> Result<Events, ClientError> {
        let query = filter.query();
        let query: Vec<_> = query
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        let accept = (ACCEPT, HeaderValue::from_static("text/event-stream"));
        let answer = self
            .transport
            .send(&call(&query), full(Bytes::new()), &[accept])
            .await?;
        let messages = SseByteStream::new(heard(answer.into_body()).boxed());
        let events = messages.filter_map(async |message| match message {
            Ok(message) => message.data.map(|data| {
                serde_json::from_str(&data)
                    .map_err(|error| ClientError::Nonsense(error.to_string()))
            }),
            Err(error) => Some(Err(ClientError::Broken(error.to_string()))),
        });
        Ok(events.boxed())
    }

    /// Events that fit, as they happen. A daemon that goes away is waited for, and the next
    /// one goes on where this one was: no event is lost and none comes twice.
    pub fn follow_events(&self, filter: EventFilter) -> Events {
        let follower = Follower {
            client: self.clone(),
            filter,
            events: None,
            away: Away::default(),
        };
        stream::try_unfold(follower, Follower::next).boxed()
    }
}

fn call<'a>(query: &'a [(&'a str, &'a str)]) -> Call<'a> {
    Call {
        operation: Operation::ListEvents,
        target: "",
        second: "",
        query,
    }
}

/// The body's bytes, until it ends or is silent for too long.
fn heard(body: Incoming) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    stream::unfold(Some(BodyDataStream::new(body)), async |body| {
        let mut body = body?;
        match tokio::time::timeout(SILENCE, body.next()).await {
            Ok(Some(Ok(bytes))) => Some((Ok(bytes), Some(body))),
            Ok(Some(Err(error))) => Some((Err(std::io::Error::other(error)), None)),
            Ok(None) => None,
            Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
        }
    })
}

struct Follower {
    client: Client,
    filter: EventFilter,
    /// `None` while there is no connection.
    events: Option<Events>,
    away: Away,
}

impl Follower {
    async fn next(mut self) -> Result<Option<(api::Event, Self)>, ClientError> {
        loop {
            let lost = match &mut self.events {
                Some(events) => match events.next().await {
                    Some(Ok(event)) => {
                        self.filter.after = event.sequence;
                        return Ok(Some((event, self)));
                    }
                    Some(Err(error)) => error,
                    None => ClientError::Broken("the daemon closed the stream".to_owned()),
                },
                None => match self.client.event_stream(&self.filter).await {
                    Ok(events) => {
                        self.events = Some(events);
                        self.away.is_back();
                        continue;
                    }
                    Err(error) => error,
                },
            };
            self.events = None;
            self.away.wait_after(lost).await?;
        }
    }
}

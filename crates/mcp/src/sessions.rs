//! Sessions of `/mcp`: whose they are, how many, and what happens when a client is gone.
//!
//! Revisions of the protocol before 2026-07-28 have sessions; later ones have none, and a
//! connection that goes ends its request. With a session, a client may come back for an
//! answer, so a request whose connection went is cancelled only some time later.

use futures::Stream;
use rmcp::model::{
    CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage, ClientNotification,
    RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionConfig,
};
use rmcp::transport::streamable_http_server::session::{
    ServerSseMessage, SessionId, SessionManager,
};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Sessions of one key; the one unused for longest ends where another is begun. A person has a
/// few programs with one or two each.
pub(crate) const SESSIONS_PER_KEY: usize = 32;

/// Sessions in all: a task and some KiB each.
pub(crate) const SESSIONS: usize = 1024;

/// A session in which nothing happens for so long is ended. Longer than any call may take
/// (see `MAX_TIMEOUT_S` of `run_command`), since a silent one looks idle.
pub(crate) const IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// How long a client whose connection went may take to come back for its answer. Clients are
/// told to wait 3 s before they do.
const COMES_BACK: Duration = Duration::from_secs(10);

/// Who began a session: a hash of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(blake3::Hash);

impl Owner {
    pub(crate) fn of(key: &str) -> Self {
        Self(blake3::hash(key.as_bytes()))
    }
}

tokio::task_local! {
    /// Whose request is being served.
    static ASKING: Owner;
}

/// Serves a request of `owner`: sessions that it begins are theirs.
pub(crate) async fn owned_by<T>(owner: Owner, serving: impl Future<Output = T>) -> T {
    ASKING.scope(owner, serving).await
}

#[derive(Clone, Copy, Debug)]
struct Held {
    owner: Owner,
    used: Instant,
    /// How often its client came back for an answer.
    returns: u64,
}

/// All sessions of the door.
#[derive(Debug)]
pub(crate) struct Sessions {
    local: Arc<LocalSessionManager>,
    held: Arc<Mutex<HashMap<SessionId, Held>>>,
    /// One begins at a time, so that no two take the same room.
    beginning: tokio::sync::Mutex<()>,
}

impl Sessions {
    /// None yet; each will end when nothing happens in it for `idle`.
    pub(crate) fn new(idle: Duration) -> Self {
        let mut local = LocalSessionManager::default();
        local.session_config = SessionConfig::default();
        local.session_config.keep_alive = Some(idle);
        Self {
            local: Arc::new(local),
            held: Arc::default(),
            beginning: tokio::sync::Mutex::default(),
        }
    }
}

/// Why a session does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionsError {
    #[error("there are {SESSIONS} sessions, which is the most")]
    TooMany,
    #[error("nobody asks")]
    NoOwner,
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
}

impl Sessions {
    fn held(&self) -> MutexGuard<'_, HashMap<SessionId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `owner` began this session, which is used now.
    pub(crate) fn is_of(&self, session: &str, owner: Owner) -> bool {
        match self.held().get_mut(session) {
            Some(held) if held.owner == owner => {
                held.used = Instant::now();
                true
            }
            _ => false,
        }
    }

    /// Whether `owner` may begin a session, in place of another if need be.
    pub(crate) fn has_room(&self, owner: Owner) -> bool {
        let held = self.held();
        held.len() < SESSIONS || held.values().any(|each| each.owner == owner)
    }

    /// Makes room for one more of `owner`.
    async fn make_room(&self, owner: Owner) -> Result<(), SessionsError> {
        let oldest = {
            let held = self.held();
            let own = || held.iter().filter(|(_, held)| held.owner == owner);
            let full = own().count() >= SESSIONS_PER_KEY || held.len() >= SESSIONS;
            let oldest = own().min_by_key(|(_, held)| held.used);
            match (full, oldest) {
                (false, _) => return Ok(()),
                (true, None) => return Err(SessionsError::TooMany),
                (true, Some((id, _))) => id.clone(),
            }
        };
        self.close_session(&oldest).await
    }
}

impl SessionManager for Sessions {
    type Error = SessionsError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let owner = ASKING.try_get().map_err(|_| SessionsError::NoOwner)?;
        let _turn = self.beginning.lock().await;
        self.make_room(owner).await?;
        let (id, transport) = self.local.create_session().await?;
        let held = Held {
            owner,
            used: Instant::now(),
            returns: 0,
        };
        self.held().insert(id.clone(), held);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        Ok(self.local.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.held().remove(id);
        Ok(self.local.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let stream = self.local.create_stream(id, message).await?;
        Ok(AnswerStream {
            stream: Box::pin(stream),
            unanswered: request.map(|request| Unanswered {
                local: Arc::clone(&self.local),
                held: Arc::clone(&self.held),
                session: id.clone(),
                request,
            }),
        })
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        Ok(self.local.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.local.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        if let Some(held) = self.held().get_mut(id) {
            held.returns += 1;
        }
        Ok(self.local.resume(id, last_event_id).await?)
    }
}

/// The answer to a request on its way to the client.
struct AnswerStream<S> {
    stream: Pin<Box<S>>,
    /// Until the stream has come to its end.
    unanswered: Option<Unanswered>,
}

struct Unanswered {
    local: Arc<LocalSessionManager>,
    held: Arc<Mutex<HashMap<SessionId, Held>>>,
    session: SessionId,
    request: RequestId,
}

impl<S: Stream<Item = ServerSseMessage>> Stream for AnswerStream<S> {
    type Item = ServerSseMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.stream.as_mut().poll_next(context);
        if let Poll::Ready(None) = polled {
            self.unanswered = None;
        }
        polled
    }
}

impl<S> Drop for AnswerStream<S> {
    fn drop(&mut self) {
        let Some(unanswered) = self.unanswered.take() else {
            return;
        };
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(unanswered.give_up());
        }
    }
}

impl Unanswered {
    fn returns(&self) -> Option<u64> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(&self.session).map(|held| held.returns)
    }

    /// Cancels the request unless its client comes back. One that was answered meanwhile is
    /// not known any more, and nothing happens.
    async fn give_up(self) {
        let before = self.returns();
        tokio::time::sleep(COMES_BACK).await;
        if before.is_none() || self.returns() != before {
            return;
        }
        let reason = "the client is gone".to_owned();
        let cancel = CancelledNotificationParam::new(Some(self.request), Some(reason));
        let cancel = CancelledNotification::new(cancel);
        let message =
            ClientJsonRpcMessage::notification(ClientNotification::CancelledNotification(cancel));
        let _ = self.local.accept_message(&self.session, message).await;
    }
}

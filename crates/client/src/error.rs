//! What can go wrong on the way to the daemon and back.

use pando_api::ErrorBody;

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon's address cannot be used.
    #[error("`{url}` is not an address of a daemon: {reason}")]
    BadUrl {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The API key cannot be sent in a header.
    #[error("the API key holds characters that no key has")]
    BadKey,
    /// Nothing answers there.
    #[error("no daemon answers at `{url}`: {reason}")]
    NotReachable {
        /// Where.
        url: String,
        /// Why, as far as it is known.
        reason: String,
    },
    /// The daemon refused or failed.
    #[error("{}", .0.message)]
    Api(Box<ApiRefusal>),
    /// The connection broke off in the middle.
    #[error("the connection to the daemon broke off: {0}")]
    Broken(String),
    /// What answered does not speak this API.
    #[error("the daemon's answer makes no sense: {0}")]
    Nonsense(String),
    /// A file to be sent could not be read.
    #[error("cannot read the file to send")]
    Source(#[source] std::io::Error),
}

/// An answer of the daemon with a status of 400 and above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRefusal {
    /// The HTTP status, 0 where it came on a stream.
    pub status: u16,
    /// The stable word.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
    /// What can be done about it.
    pub hint: Option<String>,
    /// The process that runs on, where the daemon's end cut off its call.
    pub process_id: Option<String>,
    /// Names the request in the daemon's log.
    pub request_id: String,
    /// After so many seconds the same request may succeed.
    pub retry_after_s: Option<u64>,
}

impl ClientError {
    /// The daemon's code, if it was the daemon that refused.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Api(refusal) => Some(&refusal.code),
            _ => None,
        }
    }

    /// What can be done about it, in the daemon's words.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Api(refusal) => refusal.hint.as_deref(),
            _ => None,
        }
    }

    pub(crate) fn refused(status: u16, body: ErrorBody) -> Self {
        Self::Api(Box::new(ApiRefusal {
            status,
            code: body.code,
            message: body.message,
            hint: body.hint,
            process_id: body.process_id,
            request_id: body.request_id,
            retry_after_s: None,
        }))
    }

    /// The same, and when to ask again.
    pub(crate) fn after(mut self, seconds: Option<u64>) -> Self {
        if let Self::Api(refusal) = &mut self {
            refusal.retry_after_s = seconds;
        }
        self
    }

    /// After how long the same request may succeed, if the daemon said so.
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        match self {
            Self::Api(refusal) => refusal.retry_after_s.map(std::time::Duration::from_secs),
            _ => None,
        }
    }
}

//! What a connection says about whom it is for, before its bytes go out.
//!
//! An [`Inspector`] stands between guest and world on connections whose rule goes by a
//! name. It holds the guest's bytes until whoever they name was found allowed:
//!
//! ```text
//!           ┌─► TLS: the hello, and another if the server asked for one ──┐
//! first ────┼─► HTTP/1: every request's head; bodies are followed ──► 101 ┼─► through
//! bytes     └─► neither ──────────────────────────────────────────────────┘
//! ```
//!
//! Decisions in it:
//! - Bytes from the world are never held, so servers that speak first are not slowed.
//! - Only the first bytes tell what a connection is: TLS that begins later (STARTTLS) is
//!   not looked into.
//! - `Upgrade: websocket` on a connection's first request is let through, and with the
//!   server's 101 the rest is not looked into. Another upgrade, which may carry requests
//!   for other hosts, ends the connection if the server agrees to it. So does an upgrade
//!   after other requests, whose answer could not be told from theirs.
//! - `CONNECT` and HTTP/2 without TLS are refused: behind them are other hosts.

pub mod http;
pub mod tls;

use crate::policy::Claim;
use http::{Body, Chunk, Head, Look, Upgrade};
use tls::{Record, Tls};

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Bytes that may wait here: a head or a hello, and what came in the same segment.
const HELD_BYTES: usize = 24 << 10;

/// What it takes to let a claim pass: the refusing rule's text is the error.
pub type Check<'a> = dyn FnMut(Claim<'_>) -> Result<(), String> + 'a;

/// Looks into one connection.
#[derive(Debug)]
pub struct Inspector {
    port: u16,
    /// See [`Inspector::lenient`].
    lenient: bool,
    held: Vec<u8>,
    /// The first bytes of `held` that may go out.
    ready: usize,
    stage: Stage,
    /// Requests that were let through.
    requests: u64,
    /// What the server answered to an upgrade, so far.
    response: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is known.
    First,
    /// Behind a TLS hello.
    Records { early_data: bool },
    /// This much of a record that is no hello.
    Record { early_data: bool, left: usize },
    /// Before a request.
    Request,
    /// This much of a body.
    Data { left: u64, then: Then },
    /// Before a chunk.
    Chunk,
    /// Before the end of a chunked body.
    Trailers,
    /// An upgrade was asked for.
    Upgrading(Upgrade),
    /// Nothing is looked at any more.
    Through,
}

/// What comes behind data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Request,
    Chunk,
    Upgrading(Upgrade),
}

impl Then {
    fn stage(self) -> Stage {
        match self {
            Self::Request => Stage::Request,
            Self::Chunk => Stage::Chunk,
            Self::Upgrading(to) => Stage::Upgrading(to),
        }
    }
}

impl Inspector {
    /// For a connection to this port.
    pub fn new(port: u16) -> Self {
        Self {
            port,
            lenient: false,
            held: Vec::new(),
            ready: 0,
            stage: Stage::First,
            requests: 0,
            response: Vec::new(),
        }
    }

    /// One that takes only what begins with a capital letter for HTTP, as all methods in use
    /// do. For policies that allow what they do not name: there an odd method gains nothing
    /// that another protocol would not, and a program that says `hello` need not wait.
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Bytes that it can take now.
    pub fn room(&self) -> usize {
        HELD_BYTES.saturating_sub(self.held.len())
    }

    /// Takes bytes of the guest, at most [`Inspector::room`].
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The bytes that may go out now.
    pub fn ready(&self) -> &[u8] {
        &self.held[..self.ready]
    }

    /// Notes that the first `count` of them went out.
    pub fn sent(&mut self, count: usize) {
        let count = count.min(self.ready);
        self.held.drain(..count);
        self.ready -= count;
        if self.held.is_empty() && self.stage == Stage::Through {
            self.held = Vec::new();
        }
    }

    /// Whether it holds bytes whose fate is open: who goes on so for long is cut.
    pub fn waits(&self) -> bool {
        self.held.len() > self.ready && !matches!(self.stage, Stage::Upgrading(_))
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether all that comes may pass it by.
    pub fn is_through(&self) -> bool {
        self.stage == Stage::Through && self.held.is_empty()
    }

    /// Whether it must see what the server says ([`Inspector::observe`]).
    pub fn observes(&self) -> bool {
        matches!(
            self.stage,
            Stage::Upgrading(_)
                | Stage::Data {
                    then: Then::Upgrading(_),
                    ..
                }
        )
    }

    /// Looks at what it holds. `check` is asked about each claim, once.
    ///
    /// # Errors
    /// Why the connection must end.
    pub fn advance(&mut self, check: &mut Check<'_>) -> Result<(), String> {
        while self.step(check)? {}
        if self.room() == 0 && self.ready == 0 && !matches!(self.stage, Stage::Upgrading(_)) {
            return Err("long head".into());
        }
        Ok(())
    }

    /// One step; whether there was one.
    fn step(&mut self, check: &mut Check<'_>) -> Result<bool, String> {
        let open = &self.held[self.ready..];
        if open.is_empty() && self.stage != Stage::Through {
            return Ok(false);
        }
        match self.stage {
            Stage::First => self.first(check),
            Stage::Records { early_data } => self.records(early_data, check),
            Stage::Record { early_data, left } => {
                let count = left.min(open.len());
                self.ready += count;
                self.stage = match left - count {
                    0 => Stage::Records { early_data },
                    left => Stage::Record { early_data, left },
                };
                Ok(true)
            }
            Stage::Request => match http::request_head(open)? {
                Some(head) => self.request(&head, check),
                None => Ok(false),
            },
            Stage::Data { left, then } => {
                let count = open.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                self.ready += count;
                self.stage = match left - count as u64 {
                    0 => then.stage(),
                    left => Stage::Data { left, then },
                };
                Ok(true)
            }
            Stage::Chunk => self.chunk(),
            Stage::Trailers => match http::trailers(open)? {
                Some(count) => {
                    self.ready += count;
                    self.stage = Stage::Request;
                    Ok(true)
                }
                None => Ok(false),
            },
            Stage::Upgrading(_) => Ok(false),
            Stage::Through => {
                self.ready = self.held.len();
                Ok(false)
            }
        }
    }

    fn first(&mut self, check: &mut Check<'_>) -> Result<bool, String> {
        match tls::client_hello(&self.held) {
            Tls::More => return Ok(false),
            Tls::Hello(hello) => return self.hello(&hello, check).map(|()| true),
            Tls::Other => {}
        }
        let odd = self.lenient && self.held.first().is_some_and(u8::is_ascii_lowercase);
        let look = if odd {
            Look::Other
        } else {
            http::look(&self.held)
        };
        match look {
            Look::More if self.held.len() <= http::HEAD_BYTES => return Ok(false),
            Look::More => return Err("long HTTP head".into()),
            Look::Http2 => return Err("HTTP/2 without TLS".into()),
            Look::Request => self.stage = Stage::Request,
            Look::Other => {
                check(match self.port {
                    // What begins like a hello and is none a rule can be asked about.
                    _ if self.held.starts_with(&[22, 3]) => Claim::Nameless("unclear TLS"),
                    HTTPS_PORT => Claim::Nameless("not TLS"),
                    HTTP_PORT => Claim::Nameless("not HTTP"),
                    _ => Claim::Opaque,
                })?;
                self.stage = Stage::Through;
            }
        }
        Ok(true)
    }

    fn hello(&mut self, hello: &tls::Hello, check: &mut Check<'_>) -> Result<(), String> {
        check(match &hello.name {
            Some(name) => Claim::Named(name),
            None => Claim::Nameless("no SNI"),
        })?;
        self.ready += hello.bytes;
        self.stage = Stage::Records {
            early_data: hello.early_data,
        };
        Ok(())
    }

    fn records(&mut self, early_data: bool, check: &mut Check<'_>) -> Result<bool, String> {
        let open = &self.held[self.ready..];
        match tls::record_after_hello(open, early_data) {
            Record::More => return Ok(false),
            Record::Skip(left) => self.stage = Stage::Record { early_data, left },
            Record::Encrypted => self.stage = Stage::Through,
            Record::Hello => match tls::client_hello(open) {
                Tls::More => return Ok(false),
                Tls::Hello(hello) => self.hello(&hello, check)?,
                Tls::Other => return Err("unclear TLS".into()),
            },
        }
        Ok(true)
    }

    fn request(&mut self, head: &Head, check: &mut Check<'_>) -> Result<bool, String> {
        if head.connect {
            return Err("CONNECT under domain rules".into());
        }
        check(match &head.host {
            Some(host) => Claim::Named(host),
            None => Claim::Nameless("no Host"),
        })?;
        if head.upgrade.is_some() && (self.requests > 0 || head.body == Body::Chunked) {
            return Err("upgrade after other requests".into());
        }
        self.requests += 1;
        self.ready += head.bytes;
        let then = head.upgrade.map_or(Then::Request, Then::Upgrading);
        self.stage = match head.body {
            Body::Length(0) => then.stage(),
            Body::Length(left) => Stage::Data { left, then },
            Body::Chunked => Stage::Chunk,
        };
        Ok(true)
    }

    fn chunk(&mut self) -> Result<bool, String> {
        let (line, stage) = match http::chunk(&self.held[self.ready..])? {
            Chunk::More => return Ok(false),
            Chunk::Last { line } => (line, Stage::Trailers),
            Chunk::Data { line, data } => (
                line,
                Stage::Data {
                    left: data,
                    then: Then::Chunk,
                },
            ),
        };
        self.ready += line;
        self.stage = stage;
        Ok(true)
    }

    /// Looks at what the server answers to an upgrade; its bytes go on to the guest.
    ///
    /// # Errors
    /// Why the connection must end.
    pub fn observe(&mut self, bytes: &[u8]) -> Result<(), String> {
        const SWITCHING: u16 = 101;
        const FINAL: u16 = 200;
        if !self.observes() {
            return Ok(());
        }
        self.response.extend_from_slice(bytes);
        while let Some((status, length)) = http::response_head(&self.response)? {
            if status < FINAL && status != SWITCHING {
                self.response.drain(..length);
                continue;
            }
            self.response = Vec::new();
            self.stage = match self.stage {
                Stage::Upgrading(Upgrade::WebSocket) if status == SWITCHING => Stage::Through,
                Stage::Upgrading(_) if status != SWITCHING => Stage::Request,
                // It answers before it has the whole request: the rest still comes.
                Stage::Data { left, .. } if status != SWITCHING => Stage::Data {
                    left,
                    then: Then::Request,
                },
                _ => return Err("upgrade to another protocol".into()),
            };
            return Ok(());
        }
        Ok(())
    }
}

/// What the first bytes of a connection that nobody holds say of it, for reports and for
/// rules that come later.
pub(crate) fn glance(bytes: &[u8], port: u16) -> Glance {
    match tls::client_hello(bytes) {
        Tls::Hello(hello) => return Glance::Tls(hello.name),
        Tls::More => return Glance::Tls(None),
        Tls::Other => {}
    }
    match http::look(bytes) {
        Look::Request | Look::Http2 => Glance::Http,
        Look::More | Look::Other if port == HTTP_PORT || port == HTTPS_PORT => Glance::Http,
        Look::More | Look::Other => Glance::Opaque,
    }
}

/// What was seen of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Glance {
    /// The guest has sent nothing.
    #[default]
    Nothing,
    /// TLS, and the name.
    Tls(Option<String>),
    /// Requests, each of which may name another host.
    Http,
    /// Something that names nobody.
    Opaque,
}

#[cfg(test)]
mod tests;

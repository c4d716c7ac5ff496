//! How the daemon asks a shim for a port: paths and headers of their private connection.
//!
//! | request | is |
//! |---|---|
//! | `/port/PORT/…` | an HTTP request, with the guest's own path after the port |
//! | `/tcp/PORT` | a TCP connection as two bodies, see `wire::tunnel` |
//!
//! The daemon takes these headers out of what clients send, and the shim out of what guests
//! answer: what carries one is from the other end.

use http::HeaderName;

/// Begins the path of an HTTP request to a port.
pub(crate) const HTTP: &str = "/port/";

/// Begins the path of a request for a TCP connection.
pub(crate) const TCP: &str = "/tcp/";

/// The `Host` that the server in the guest is to see.
pub(crate) const HOST: HeaderName = HeaderName::from_static("x-pando-host");

/// `h2`: HTTP/2 from the first byte on; else a word that HTTP/1.1 is to be upgraded to.
pub(crate) const PROTOCOL: HeaderName = HeaderName::from_static("x-pando-protocol");

/// See [`PROTOCOL`].
pub(crate) const H2: &str = "h2";

/// An answer that the shim gives for the port: one of the words below.
pub(crate) const ANSWER: HeaderName = HeaderName::from_static("x-pando-port");

/// The protocol was switched: what follows are its bytes, both ways.
pub(crate) const UPGRADED: &str = "upgraded";
/// Nothing listens.
pub(crate) const CLOSED: &str = "closed";
/// The sandbox has as many connections as it may.
pub(crate) const BUSY: &str = "busy";
/// The server broke off, or does not speak HTTP.
pub(crate) const FAILED: &str = "failed";
/// The VM stands still: the host cannot write for it.
pub(crate) const STALLED: &str = "stalled";
/// The VM does not run.
pub(crate) const GONE: &str = "gone";

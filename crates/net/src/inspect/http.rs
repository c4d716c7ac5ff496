//! HTTP/1 requests, as strictly as two readers must agree on them.
//!
//! The gateway checks the name of each request on a connection, so it must see the same
//! requests as the server. Whatever two readers could take for two different things is
//! therefore refused: bare line feeds, two lengths, a length beside an encoding, encodings
//! other than `chunked`, two hosts, a target that names another host than `Host`.

use crate::dns::is_name;

/// Longest head. Servers take 8 to 32 KiB; cookies are the bulk of it.
pub const HEAD_BYTES: usize = 16 << 10;

/// Longest line with a chunk's size; extensions are hardly used.
const CHUNK_LINE_BYTES: usize = 256;

const HEADERS: usize = 128;

/// What the first bytes of a connection look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// They may become a request.
    More,
    /// A request of HTTP/1.
    Request,
    /// HTTP/2 that was agreed on beforehand.
    Http2,
    /// No HTTP.
    Other,
}

/// A request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its bytes, the empty line included.
    pub bytes: usize,
    /// The host it is for, lower case, without port; HTTP/1.0 may name none.
    pub host: Option<String>,
    /// How its body ends.
    pub body: Body,
    /// The protocol that it asks to go on with.
    pub upgrade: Option<Upgrade>,
    /// It asks for a tunnel.
    pub connect: bool,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// After this many bytes.
    Length(u64),
    /// After an empty chunk.
    Chunked,
}

/// What a request wants to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// A WebSocket, to the same host.
    WebSocket,
    /// Something that might name other hosts: HTTP/2.
    Other,
}

/// Why a request cannot be let through, in the words of a refusal.
pub type Unclear = &'static str;

/// Part of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The line with its size is not whole.
    More,
    /// A line of this many bytes, with a chunk of that many bytes behind it, the line end
    /// behind the chunk included.
    Data {
        /// Bytes of the line.
        line: usize,
        /// Bytes behind it.
        data: u64,
    },
    /// The last chunk's line; trailers follow.
    Last {
        /// Bytes of the line.
        line: usize,
    },
}

/// What the first bytes look like. Never [`Look::Other`] for what a server could take for
/// a request.
pub fn look(bytes: &[u8]) -> Look {
    let blank = bytes
        .iter()
        .take_while(|byte| b"\r\n".contains(byte))
        .count();
    let bytes = &bytes[blank..];
    let end = bytes.iter().position(|&byte| byte == b'\n');
    let line = &bytes[..end.unwrap_or(bytes.len())];
    let method = line.iter().take_while(|byte| is_token(**byte)).count();
    let behind = &line[method..];
    if behind.is_empty() {
        return if end.is_none() {
            Look::More
        } else {
            Look::Other
        };
    }
    let printable = line
        .iter()
        .all(|byte| *byte >= b' ' || b"\t\r".contains(byte));
    if method == 0 || !b" \t".contains(&behind[0]) || !printable {
        return Look::Other;
    }
    if end.is_none() {
        return Look::More;
    }
    if line.starts_with(b"PRI * HTTP/2.0") {
        return Look::Http2;
    }
    let is_request = line
        .windows(5)
        .any(|part| part.eq_ignore_ascii_case(b"HTTP/"));
    if is_request {
        Look::Request
    } else {
        Look::Other
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Reads a request's head at the beginning of `bytes`; `None` where it is not whole.
///
/// # Errors
/// Two readers might disagree about it.
pub fn request_head(bytes: &[u8]) -> Result<Option<Head>, Unclear> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() > HEAD_BYTES => return Err("long HTTP head"),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err("unclear HTTP"),
    };
    if length > HEAD_BYTES || !has_clear_lines(&bytes[..length]) {
        return Err("unclear HTTP");
    }
    let connect = request.method == Some("CONNECT");
    let by_target = target_host(request.path.unwrap_or_default(), connect)?;
    let host = match only(request.headers, "host")? {
        Some(value) => Some(host_name(value)?),
        None => None,
    };
    if by_target.is_some() && host.is_some() && by_target != host {
        return Err("two hosts");
    }
    let upgrade = only(request.headers, "upgrade")?.map(|value| {
        if value.eq_ignore_ascii_case(b"websocket") {
            Upgrade::WebSocket
        } else {
            Upgrade::Other
        }
    });
    Ok(Some(Head {
        bytes: length,
        host: host.or(by_target),
        body: body(request.headers, request.version)?,
        upgrade,
        connect,
    }))
}

/// Lines end in CR LF, and neither stands elsewhere.
fn has_clear_lines(head: &[u8]) -> bool {
    let pairs = head.iter().zip(head.iter().skip(1));
    let apart = pairs.filter(|(first, second)| (**first == b'\r') != (**second == b'\n'));
    head.first() != Some(&b'\n') && apart.count() == 0 && !head.contains(&0)
}

/// The value of a header that may stand once.
fn only<'a>(headers: &[httparse::Header<'a>], name: &str) -> Result<Option<&'a [u8]>, Unclear> {
    let mut found = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name));
    let first = found.next().map(|header| header.value.trim_ascii());
    if found.next().is_some() {
        return Err("a header twice");
    }
    Ok(first)
}

/// The host in the request's target, where it stands there: it counts more than `Host`.
fn target_host(target: &str, connect: bool) -> Result<Option<String>, Unclear> {
    if target.starts_with('/') || target == "*" {
        return Ok(None);
    }
    if connect {
        return host_name(target.as_bytes()).map(Some);
    }
    let (scheme, rest) = target.split_once("://").ok_or("unclear HTTP target")?;
    if !(scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")) {
        return Err("unclear HTTP target");
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    host_name(&rest.as_bytes()[..end]).map(Some)
}

/// `a.example.org` from `A.example.org:8080`; addresses as they are.
fn host_name(value: &[u8]) -> Result<String, Unclear> {
    let text = std::str::from_utf8(value).map_err(|_| "unclear Host")?;
    let (name, port) = match text.rfind(':') {
        Some(at) if !text.ends_with(']') => (&text[..at], &text[at + 1..]),
        _ => (text, ""),
    };
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("unclear Host");
    }
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok());
    if !address && !is_name(name) {
        return Err("unclear Host");
    }
    Ok(name.to_owned())
}

fn body(headers: &[httparse::Header<'_>], version: Option<u8>) -> Result<Body, Unclear> {
    /// Enough for any length, and no overflow.
    const DIGITS: usize = 18;
    let encoding = only(headers, "transfer-encoding")?;
    let length = only(headers, "content-length")?;
    match (encoding, length) {
        (None, None) => Ok(Body::Length(0)),
        (Some(encoding), None)
            if version == Some(1) && encoding.eq_ignore_ascii_case(b"chunked") =>
        {
            Ok(Body::Chunked)
        }
        (None, Some(length))
            if (1..=DIGITS).contains(&length.len()) && length.iter().all(u8::is_ascii_digit) =>
        {
            let digits = length.iter().map(|digit| u64::from(digit - b'0'));
            Ok(Body::Length(digits.fold(0, |sum, digit| sum * 10 + digit)))
        }
        _ => Err("unclear HTTP body"),
    }
}

/// Reads the line before a chunk, at the beginning of `bytes`.
///
/// # Errors
/// It is no such line.
pub fn chunk(bytes: &[u8]) -> Result<Chunk, Unclear> {
    /// 60 bits.
    const DIGITS: usize = 15;
    const LINE_END: u64 = 2;
    let Some(line) = whole_line(bytes, CHUNK_LINE_BYTES)? else {
        return Ok(Chunk::More);
    };
    let digits = line
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let (size, extension) = line.split_at(digits);
    let plain = extension.is_empty()
        || extension[0] == b';' && extension.iter().all(|byte| (b' '..0x7f).contains(byte));
    if !(1..=DIGITS).contains(&digits) || !plain {
        return Err("unclear HTTP chunk");
    }
    let size = size.iter().fold(0_u64, |sum, digit| {
        sum << 4 | u64::from(char::from(*digit).to_digit(16).unwrap_or(0))
    });
    let line = line.len() + 2;
    Ok(match size {
        0 => Chunk::Last { line },
        size => Chunk::Data {
            line,
            data: size + LINE_END,
        },
    })
}

/// The bytes of the trailers at the beginning of `bytes`, the empty line included.
///
/// # Errors
/// They are no trailers.
pub fn trailers(bytes: &[u8]) -> Result<Option<usize>, Unclear> {
    let mut at = 0;
    loop {
        let Some(line) = whole_line(&bytes[at..], HEAD_BYTES)? else {
            return if bytes.len() > HEAD_BYTES {
                Err("long HTTP trailers")
            } else {
                Ok(None)
            };
        };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
        let name = line.iter().take_while(|byte| is_token(**byte)).count();
        if name == 0 || line.get(name) != Some(&b':') {
            return Err("unclear HTTP trailers");
        }
    }
}

/// The line at the beginning of `bytes`, without its CR LF.
fn whole_line(bytes: &[u8], longest: usize) -> Result<Option<&[u8]>, Unclear> {
    let Some(end) = bytes.iter().position(|byte| b"\r\n".contains(byte)) else {
        return if bytes.len() > longest {
            Err("long HTTP line")
        } else {
            Ok(None)
        };
    };
    match bytes[end..] {
        _ if end > longest => Err("long HTTP line"),
        [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => Ok(Some(&bytes[..end])),
        _ => Err("unclear HTTP line"),
    }
}

/// The status of a response and the bytes of its head; `None` where it is not whole.
///
/// # Errors
/// It is no response.
pub fn response_head(bytes: &[u8]) -> Result<Option<(u16, usize)>, Unclear> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => {
            Ok(Some((response.code.unwrap_or_default(), length)))
        }
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES => Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => Err("unclear HTTP response"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<Head>, Unclear> {
        request_head(text.as_bytes())
    }

    #[test]
    fn a_head_is_read() {
        let text = "POST /a HTTP/1.1\r\nHost: A.Example.org:8080\r\nContent-Length: 12\r\n\r\nrest";
        let expected = Head {
            bytes: text.len() - 4,
            host: Some("a.example.org".into()),
            body: Body::Length(12),
            upgrade: None,
            connect: false,
        };
        assert_eq!(head(text), Ok(Some(expected)));
        for end in 0..text.len() - 4 {
            assert_eq!(head(&text[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn hosts_are_read_from_wherever_they_stand() {
        let host = |text: &str| head(text).unwrap().unwrap().host;
        assert_eq!(host("GET / HTTP/1.0\r\n\r\n"), None);
        assert_eq!(
            host("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n").unwrap(),
            "[2001:db8::1]"
        );
        assert_eq!(
            host("GET http://B.org:80/x HTTP/1.1\r\n\r\n").unwrap(),
            "b.org"
        );
        assert_eq!(
            host("GET http://b.org?x HTTP/1.1\r\nHost: b.org\r\n\r\n").unwrap(),
            "b.org"
        );
        assert_eq!(
            host("OPTIONS * HTTP/1.1\r\nhOST:\t c.org. \r\n\r\n").unwrap(),
            "c.org"
        );
        assert!(
            head("CONNECT b.org:443 HTTP/1.1\r\nHost: b.org:443\r\n\r\n")
                .unwrap()
                .unwrap()
                .connect
        );
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        for text in [
            "GET / HTTP/1.1\nHost: a.org\n\n",
            "GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
            "GET http://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "GET http://a.org@b.org/ HTTP/1.1\r\n\r\n",
            "GET b.org HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org, b.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org:8x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org\r\n folded\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.0\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(head(text).is_err(), "{text}");
        }
        let long = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(HEAD_BYTES));
        assert!(head(&long).is_err());
    }

    #[test]
    fn chunks_and_trailers_are_followed() {
        assert_eq!(
            chunk(b"1a;x=y\r\nabc"),
            Ok(Chunk::Data { line: 8, data: 28 })
        );
        assert_eq!(chunk(b"0\r\n\r\n"), Ok(Chunk::Last { line: 3 }));
        assert_eq!(chunk(b"000\r\n"), Ok(Chunk::Last { line: 5 }));
        for part in [&b""[..], b"1", b"1\r"] {
            assert_eq!(chunk(part), Ok(Chunk::More));
        }
        for bad in [
            &b"\r\n"[..],
            b"1\n",
            b"1\rx",
            b"x\r\n",
            b" 1\r\n",
            b"1 \r\n",
            b"-1\r\n",
            b"0x1\r\n",
        ] {
            assert!(chunk(bad).is_err(), "{bad:?}");
        }
        assert!(chunk(b"1234567890abcdef\r\n").is_err());
        assert_eq!(trailers(b"\r\nGET"), Ok(Some(2)));
        assert_eq!(trailers(b"A: b\r\n\r\n"), Ok(Some(8)));
        assert_eq!(trailers(b"A: b\r\n"), Ok(None));
        assert!(trailers(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }

    #[test]
    fn what_looks_like_a_request_is_one_and_other_protocols_are_not() {
        for text in ["", "G", "GET", "GET ", "GET /x HTTP/1.1", "\r\n", "EHLO a"] {
            assert_eq!(look(text.as_bytes()), Look::More, "{text}");
        }
        for text in [
            "GET / HTTP/1.1\r\n",
            "\r\n\nx\t/ http/1.0\n",
            "LONG-METHOD / HTTP/9\n",
        ] {
            assert_eq!(look(text.as_bytes()), Look::Request, "{text}");
        }
        for text in [
            "EHLO mail.org\r\n",
            "SSH-2.0-x\r\n",
            "{\"a\": 1}",
            "\u{16}\u{3}",
            "*1\r\n$4\r\nPING\r\n",
            "QUIT\r\n",
        ] {
            assert_eq!(look(text.as_bytes()), Look::Other, "{text}");
        }
        assert_eq!(look(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Look::Http2);
    }

    #[test]
    fn a_response_says_its_status() {
        let text = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nx";
        assert_eq!(response_head(text), Ok(Some((101, text.len() - 1))));
        assert_eq!(response_head(&text[..20]), Ok(None));
        assert!(response_head(b"SSH-2.0-OpenSSH\r\n").is_err());
    }
}

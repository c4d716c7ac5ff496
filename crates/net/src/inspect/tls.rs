//! The name in a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3).

use std::borrow::Cow;

use crate::dns::is_name;

/// Longest hello, over all its records. Those with post-quantum keys take 2 KiB; nobody
/// needs the rest, which stays far below what the protocol allows.
pub const HELLO_BYTES: usize = 16 << 10;

/// Longest record: 2^14 bytes and what compression might once have added.
const RECORD_BYTES: usize = (16 << 10) + 256;

const RECORD_HEADER: usize = 5;
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const EARLY_DATA: u16 = 42;
const HOST_NAME: u8 = 0;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// The beginning of a hello.
    More,
    /// A whole hello.
    Hello(Hello),
    /// Something else, or a broken one.
    Other,
}

/// A hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name it asks for, lower case; it may ask for none.
    pub name: Option<String>,
    /// Whether data may follow before the server's answer.
    pub early_data: bool,
    /// Bytes of its records.
    pub bytes: usize,
}

/// What follows a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Too little to say.
    More,
    /// Another hello begins: the server asked for one, and it must be looked at too.
    Hello,
    /// This many bytes that are no hello; one may follow.
    Skip(usize),
    /// From here on it is encrypted.
    Encrypted,
}

/// Reads the ClientHello at the beginning of `bytes`.
pub fn client_hello(bytes: &[u8]) -> Tls {
    let mut message = Cow::Borrowed(&[][..]);
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let is_handshake = rest.first().is_none_or(|&kind| kind == HANDSHAKE)
            && rest.get(1).is_none_or(|&major| major == 3);
        if !is_handshake {
            return Tls::Other;
        }
        let Some(length) = record_length(rest) else {
            return Tls::More;
        };
        if length == 0 || length > RECORD_BYTES {
            return Tls::Other;
        }
        let end = RECORD_HEADER + length;
        let part = &rest[RECORD_HEADER..rest.len().min(end)];
        if message.is_empty() {
            message = Cow::Borrowed(part);
        } else {
            message.to_mut().extend(part);
        }
        if message.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
            return Tls::Other;
        }
        if let Some([high, middle, low]) = message.get(1..4) {
            let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            if length > HELLO_BYTES {
                return Tls::Other;
            }
            let whole = 4 + length;
            if message.len() > whole {
                return Tls::Other;
            }
            if message.len() == whole && rest.len() >= end {
                return read_hello(&message[4..]).map_or(Tls::Other, |(name, early_data)| {
                    Tls::Hello(Hello {
                        name,
                        early_data,
                        bytes: at + end,
                    })
                });
            }
        }
        if rest.len() < end {
            return Tls::More;
        }
        at += end;
    }
}

/// What follows a hello, at the beginning of `bytes`. Where the hello announced early
/// data, such data may stand before a second hello.
pub fn record_after_hello(bytes: &[u8], early_data: bool) -> Record {
    let (Some(&kind), Some(length)) = (bytes.first(), record_length(bytes)) else {
        return Record::More;
    };
    match kind {
        CHANGE_CIPHER_SPEC => Record::Skip(RECORD_HEADER + length),
        APPLICATION_DATA if early_data => Record::Skip(RECORD_HEADER + length),
        HANDSHAKE => match bytes.get(RECORD_HEADER) {
            None => Record::More,
            Some(&CLIENT_HELLO) => Record::Hello,
            Some(_) => Record::Encrypted,
        },
        _ => Record::Encrypted,
    }
}

fn record_length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..RECORD_HEADER)?;
    Some(usize::from(u16::from_be_bytes([header[3], header[4]])))
}

/// The parts of a message, taken from its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn word(&mut self) -> Option<u16> {
        let word = self.take(2)?;
        Some(u16::from_be_bytes([word[0], word[1]]))
    }

    fn behind_byte(&mut self) -> Option<&'a [u8]> {
        let count = self.byte()?;
        self.take(count.into())
    }

    fn behind_word(&mut self) -> Option<&'a [u8]> {
        let count = self.word()?;
        self.take(count.into())
    }
}

/// The name and whether there is early data; `None` where it is broken or says it twice.
fn read_hello(body: &[u8]) -> Option<(Option<String>, bool)> {
    const VERSION_AND_RANDOM: usize = 2 + 32;
    let mut body = Reader(body);
    body.take(VERSION_AND_RANDOM)?;
    let _session = body.behind_byte()?;
    let _ciphers = body.behind_word()?;
    let _compressions = body.behind_byte()?;
    let (mut name, mut early_data) = (None, false);
    if body.0.is_empty() {
        return Some((name, early_data));
    }
    let mut extensions = Reader(body.behind_word()?);
    if !body.0.is_empty() {
        return None;
    }
    while !extensions.0.is_empty() {
        let kind = extensions.word()?;
        let content = extensions.behind_word()?;
        match kind {
            SERVER_NAME if name.is_some() => return None,
            SERVER_NAME => name = Some(read_name(content)?),
            EARLY_DATA => early_data = true,
            _ => {}
        }
    }
    Some((name, early_data))
}

fn read_name(content: &[u8]) -> Option<String> {
    let mut content = Reader(content);
    let mut list = Reader(content.behind_word()?);
    let kind = list.byte()?;
    let name = list.behind_word()?;
    if kind != HOST_NAME || !list.0.is_empty() || !content.0.is_empty() {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    is_name(name).then(|| name.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A hello's message for `name`, with GREASE around it.
    pub(crate) fn message(name: Option<&str>, more_extensions: &[u8]) -> Vec<u8> {
        let mut extensions = vec![0x0a, 0x0a, 0, 0];
        if let Some(name) = name {
            let length = u16::try_from(name.len()).unwrap();
            extensions.extend([0, 0]);
            extensions.extend((length + 5).to_be_bytes());
            extensions.extend((length + 3).to_be_bytes());
            extensions.push(0);
            extensions.extend(length.to_be_bytes());
            extensions.extend(name.as_bytes());
        }
        extensions.extend(more_extensions);
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(32);
        body.extend([9; 32]);
        body.extend([0, 4, 0x13, 1, 0x13, 2, 1, 0]);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(&extensions);
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let mut message = vec![CLIENT_HELLO, length[1], length[2], length[3]];
        message.extend(body);
        message
    }

    pub(crate) fn records(message: &[u8], size: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in message.chunks(size) {
            bytes.extend([HANDSHAKE, 3, 1]);
            bytes.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
            bytes.extend(part);
        }
        bytes
    }

    /// A hello in one record.
    pub(crate) fn hello(name: Option<&str>) -> Vec<u8> {
        records(&message(name, &[]), 1 << 14)
    }

    #[test]
    fn the_name_is_found_however_it_is_cut() {
        for size in [1, 3, 4, 5, 100, 10_000] {
            let mut bytes = records(&message(Some("A.Example.org."), &[]), size);
            let whole = bytes.len();
            for end in 0..whole {
                assert_eq!(client_hello(&bytes[..end]), Tls::More, "{size} {end}");
            }
            bytes.extend(b"\x14\x03\x03\0\x01\x01");
            let expected = Tls::Hello(Hello {
                name: Some("a.example.org".into()),
                early_data: false,
                bytes: whole,
            });
            assert_eq!(client_hello(&bytes), expected);
        }
    }

    #[test]
    fn ech_grease_changes_nothing_and_no_name_is_none() {
        let ech = [&[0xfe, 0x0d, 0, 4][..], &[0, 1, 2, 3]].concat();
        let bytes = records(&message(Some("a.org"), &ech), 500);
        assert!(
            matches!(client_hello(&bytes), Tls::Hello(Hello { name: Some(name), .. }) if name == "a.org")
        );
        assert!(matches!(
            client_hello(&hello(None)),
            Tls::Hello(Hello { name: None, .. })
        ));
    }

    #[test]
    fn two_names_and_what_is_no_hello_are_refused() {
        let second = b"\0\0\0\x0a\0\x08\0\0\x05b.org";
        let twice = records(&message(Some("a.org"), second), 500);
        assert_eq!(client_hello(&twice), Tls::Other);
        assert_eq!(client_hello(&hello(Some("a b.org"))), Tls::Other);
        assert_eq!(client_hello(&hello(Some("bücher.example"))), Tls::Other);
        assert_eq!(client_hello(b"GET / HTTP/1.1\r\n"), Tls::Other);
        assert_eq!(client_hello(b"\x16\x03\x01\0\x04\x02\0\0\0"), Tls::Other);
        assert_eq!(client_hello(b"\x16\x03\x01\xff\xff\x01"), Tls::Other);
        assert_eq!(
            client_hello(b"\x16\x03\x01\0\x04\x01\xff\xff\xff"),
            Tls::Other
        );
    }

    #[test]
    fn a_second_hello_is_seen_behind_what_may_stand_before_it() {
        let change = b"\x14\x03\x03\0\x01\x01";
        assert_eq!(record_after_hello(change, false), Record::Skip(6));
        assert_eq!(record_after_hello(&hello(None), false), Record::Hello);
        assert_eq!(
            record_after_hello(b"\x16\x03\x03\0\x10", false),
            Record::More
        );
        assert_eq!(
            record_after_hello(b"\x16\x03\x03\0\x10\x10", false),
            Record::Encrypted
        );
        let data = b"\x17\x03\x03\0\x10";
        assert_eq!(record_after_hello(data, false), Record::Encrypted);
        assert_eq!(record_after_hello(data, true), Record::Skip(21));
    }
}

//! A client that sends exactly the bytes it is given, and reads one answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Far above what any answer takes, so that a hang is a failed test.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to the daemon.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    reader: BufReader<TcpStream>,
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Connection {
    pub(crate) fn to(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// The next answer's head.
    pub(crate) fn head(&mut self) -> Head {
        let status = self.line();
        let status = status
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or_else(|| panic!("no status line: {status:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            match line.split_once(':') {
                Some((name, value)) => {
                    headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
                None => break,
            }
        }
        Head { status, headers }
    }

    /// The next line, without its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn read_exact(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The next answer with its body.
    pub(crate) fn answer(&mut self) -> (Head, String) {
        let head = self.head();
        let body = match head.header("transfer-encoding") {
            Some("chunked") => self.chunks(),
            _ => {
                let length = head
                    .header("content-length")
                    .map_or(0, |length| length.parse().unwrap());
                self.read_exact(length)
            }
        };
        (head, String::from_utf8(body).unwrap())
    }

    /// One chunk of a body; empty at its end.
    pub(crate) fn chunk(&mut self) -> Vec<u8> {
        let length = usize::from_str_radix(&self.line(), 16).unwrap();
        let chunk = self.read_exact(length);
        self.line();
        chunk
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            match self.chunk() {
                chunk if chunk.is_empty() => return body,
                chunk => body.extend(chunk),
            }
        }
    }

    /// What follows, up to the end; an error if the connection was reset.
    pub(crate) fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }
}

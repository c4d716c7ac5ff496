//! The messages of `exec/stream`, a WebSocket.
//!
//! ```text
//! client                                             daemon
//!   text   {"argv":["cat"],"stdin":true}  ────────►
//!          ◄────────  text   {"type":"started","process_id":"…"}
//!   binary 00 DATA…                       ────────►            stdin
//!          ◄────────  text   {"type":"stdin_consumed","bytes":N}
//!          ◄────────  binary SS OOOOOOOOOOOOOOOO DATA…         output
//!   text   {"type":"close_stdin"}         ────────►
//!          ◄────────  text   {"type":"exit","exit_code":0,…}, close
//! ```
//!
//! `SS` is the stream (1 stdout, 2 stderr, 3 terminal), the `O`s are a 64-bit
//! big-endian offset: attach `from_offset` there to go on after these bytes.
//! Closing the WebSocket detaches; the process runs on.

use crate::ErrorBody;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Unacknowledged stdin a client may have under way. Within it the daemon never
/// stops reading the WebSocket, so that a signal overtakes stdin nobody reads.
pub const STDIN_WINDOW_BYTES: usize = 1 << 20;

/// The largest message in either direction; longer output comes in several.
pub const MESSAGE_BYTES: usize = 256 << 10;

/// First byte of a binary message from the client.
pub const STDIN_BYTE: u8 = 0;

/// Bytes before the data in a binary message from the daemon: stream and offset.
const OUTPUT_HEADER_BYTES: usize = 9;

/// The first message of the client: start a process, or attach to one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamRequest {
    /// Program and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A command line for the sandbox's `/bin/sh -c`, instead of `argv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Working directory; the user's home when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Account to run as; `user` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Give it a terminal of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<WindowSize>,
    /// Whether its stdin will be fed; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// Seconds after which it and all that it started are killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// An id of your own for this request, as for `exec`: asked again, the process that it started is followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Attach to this process instead of starting one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach: Option<String>,
    /// With `attach`: the offset to go on from; 0 replays all that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_offset: Option<u64>,
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowSize {
    /// Columns.
    pub cols: u32,
    /// Rows.
    pub rows: u32,
}

/// A text message of the client after its first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage {
    /// Send a signal to the process and all in its group.
    Signal {
        /// A Linux signal number, such as 15.
        signal: u32,
    },
    /// The terminal has a new size.
    Resize {
        /// Columns.
        cols: u32,
        /// Rows.
        rows: u32,
    },
    /// There is no more stdin.
    CloseStdin {},
}

/// A text message of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServerMessage {
    /// The process runs, or was attached to; always the first message.
    Started {
        /// Pass it as `attach` to come back.
        process_id: String,
    },
    /// Stdin was handed to the process's pipe or terminal.
    StdinConsumed {
        /// How many bytes more.
        bytes: u64,
    },
    /// Output that is no longer kept.
    Gap {
        /// How many bytes are missing here.
        lost_bytes: u64,
    },
    /// The process ended; the daemon closes after it.
    Exit {
        /// Its exit code; absent when a signal ended it.
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<u32>,
        /// The timeout ended it.
        timed_out: bool,
    },
    /// The stream cannot go on; the daemon closes after it.
    Error {
        /// What went wrong.
        error: ErrorBody,
    },
}

/// Which of its outputs a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Its terminal.
    Tty,
}

impl OutputStream {
    const ALL: [Self; 3] = [Self::Stdout, Self::Stderr, Self::Tty];

    fn byte(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::Tty => 3,
        }
    }
}

/// A binary message of the daemon, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFrame<'a> {
    /// Where it was written.
    pub stream: OutputStream,
    /// Where to attach to go on after `data`.
    pub next_offset: u64,
    /// What was written.
    pub data: &'a [u8],
}

impl<'a> OutputFrame<'a> {
    /// The message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(OUTPUT_HEADER_BYTES + self.data.len());
        message.push(self.stream.byte());
        message.extend_from_slice(&self.next_offset.to_be_bytes());
        message.extend_from_slice(self.data);
        message
    }

    /// Takes a message apart; `None` if it is not one of ours.
    pub fn decode(message: &'a [u8]) -> Option<Self> {
        let (header, data) = message.split_first_chunk::<OUTPUT_HEADER_BYTES>()?;
        let [stream, offset @ ..] = *header;
        let stream = OutputStream::ALL
            .into_iter()
            .find(|known| known.byte() == stream)?;
        Some(Self {
            stream,
            next_offset: u64::from_be_bytes(offset),
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_frame_survives_the_wire() {
        for stream in OutputStream::ALL {
            let frame = OutputFrame {
                stream,
                next_offset: 0x0102_0304_0506_0708,
                data: b"\x00\xff",
            };
            assert_eq!(OutputFrame::decode(&frame.encode()), Some(frame));
        }
        let bytes = OutputFrame {
            stream: OutputStream::Stderr,
            next_offset: 5,
            data: b"hi",
        }
        .encode();
        assert_eq!(bytes, b"\x02\x00\x00\x00\x00\x00\x00\x00\x05hi");
    }

    #[test]
    fn short_and_unknown_frames_are_refused() {
        assert_eq!(OutputFrame::decode(b""), None);
        assert_eq!(OutputFrame::decode(b"\x01\x00\x00"), None);
        assert_eq!(
            OutputFrame::decode(b"\x04\x00\x00\x00\x00\x00\x00\x00\x00x"),
            None
        );
    }

    #[test]
    fn messages_have_the_documented_text() {
        let text = |message: &ServerMessage| serde_json::to_string(message).unwrap();
        let exit = ServerMessage::Exit {
            exit_code: Some(0),
            signal: None,
            timed_out: false,
        };
        assert_eq!(
            text(&exit),
            r#"{"type":"exit","exit_code":0,"signal":null,"timed_out":false}"#
        );
        assert_eq!(
            serde_json::from_str::<ClientMessage>(r#"{"type":"resize","cols":80,"rows":24}"#)
                .unwrap(),
            ClientMessage::Resize { cols: 80, rows: 24 }
        );
        assert_eq!(
            serde_json::from_str::<ClientMessage>(r#"{"type":"close_stdin"}"#).unwrap(),
            ClientMessage::CloseStdin {}
        );
        assert!(serde_json::from_str::<ClientMessage>(r#"{"type":"signal"}"#).is_err());
        assert!(serde_json::from_str::<StreamRequest>(r#"{"argv":["a"],"nope":1}"#).is_err());
    }
}

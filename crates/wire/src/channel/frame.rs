//! The frame codec: pure, and safe against hostile bytes.
//!
//! ```text
//!  0      4     5        8             16            20
//!  ┌──────┬─────┬────────┬─────────────┬─────────────┬───────────┐
//!  │ PNDO │kind │ 0 0 0  │ epoch  u64  │ length u32  │ payload … │
//!  └──────┴─────┴────────┴─────────────┴─────────────┴───────────┘
//!   all numbers little-endian
//! ```
//!
//! What is not a valid header is skipped byte by byte until the next magic, so a
//! reader that joins in the middle of a frame finds its feet again.

use bytes::{Buf, Bytes, BytesMut};

/// `PNDO`, the first bytes of every frame.
const MAGIC: [u8; 4] = *b"PNDO";

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 20;

/// Largest payload of a DATA frame. Small enough that a control frame never
/// waits long behind one, large enough that the header does not matter.
pub const MAX_DATA_BYTES: usize = 64 << 10;

/// Largest payload of any other frame: a HELLO carries the sandbox's environment.
pub const MAX_CONTROL_BYTES: usize = 256 << 10;

/// Zero bytes that end whatever frame a reader is in the middle of.
pub const RESYNC_BYTES: usize = MAX_CONTROL_BYTES + HEADER_BYTES;

/// What a frame means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of the HTTP/2 connection.
    Data = 1,
    /// Host to guest: a new epoch begins.
    Hello = 2,
    /// Guest to host: the epoch is adopted, what HELLO asked is done.
    HelloAck = 3,
    /// Host to guest: come to rest.
    Freeze = 4,
    /// Guest to host: the last frame before the guest is stopped.
    Frozen = 5,
    /// Host to guest: go on.
    Thaw = 6,
    /// Guest to host: gone on.
    Thawed = 7,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::Hello,
            3 => Self::HelloAck,
            4 => Self::Freeze,
            5 => Self::Frozen,
            6 => Self::Thaw,
            7 => Self::Thawed,
            _ => return None,
        })
    }

    fn max_payload_bytes(self) -> usize {
        match self {
            Self::Data => MAX_DATA_BYTES,
            _ => MAX_CONTROL_BYTES,
        }
    }
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame means.
    pub kind: Kind,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Bytes of payload that follow.
    pub length: u32,
}

impl Header {
    /// The header's bytes.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [m0, m1, m2, m3, kind, z0, z1, z2, rest @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC || [z0, z1, z2] != [0; 3] {
            return None;
        }
        let [e0, e1, e2, e3, e4, e5, e6, e7, l0, l1, l2, l3] = rest;
        let kind = Kind::from_byte(kind)?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        (length as usize <= kind.max_payload_bytes()).then_some(Self {
            kind,
            epoch: u64::from_le_bytes([e0, e1, e2, e3, e4, e5, e6, e7]),
            length,
        })
    }
}

/// A frame that was received whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the frame means.
    pub kind: Kind,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Its payload.
    pub payload: Bytes,
}

/// Cuts a byte stream into frames.
///
/// Holds at most one frame and what one read brought on top of it.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// A decoder that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The buffer to append received bytes to.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next whole frame, if there is one.
    ///
    /// With `awaited` set nothing counts but a header of that kind and epoch:
    /// headers of the stream's past, true or by chance, are skipped and can't
    /// swallow the awaited frame in a payload of theirs.
    pub fn next_frame(&mut self, awaited: Option<(Kind, u64)>) -> Option<Frame> {
        loop {
            self.skip_to_magic();
            let header = self.buffer.first_chunk::<HEADER_BYTES>()?;
            let header = Header::decode(header)
                .filter(|h| awaited.is_none_or(|awaited| (h.kind, h.epoch) == awaited));
            let Some(header) = header else {
                self.buffer.advance(1);
                continue;
            };
            let length = header.length as usize;
            if self.buffer.len() < HEADER_BYTES + length {
                return None;
            }
            self.buffer.advance(HEADER_BYTES);
            return Some(Frame {
                kind: header.kind,
                epoch: header.epoch,
                payload: self.buffer.split_to(length).freeze(),
            });
        }
    }

    /// Drops bytes until the buffer starts with the magic or a beginning of it.
    fn skip_to_magic(&mut self) {
        let mut start = 0;
        while let Some(offset) = self.buffer[start..].iter().position(|&b| b == MAGIC[0]) {
            start += offset;
            let rest = &self.buffer[start..];
            let seen = rest.len().min(MAGIC.len());
            if rest[..seen] == MAGIC[..seen] {
                self.buffer.advance(start);
                return;
            }
            start += 1;
        }
        self.buffer.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let header = Header {
            kind: frame.kind,
            epoch: frame.epoch,
            length: frame.payload.len() as u32,
        };
        [&header.encode()[..], &frame.payload[..]].concat()
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let payload = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            Just(MAGIC.repeat(20)),
        ];
        (1u8..=7, any::<u64>(), payload).prop_map(|(kind, epoch, payload)| Frame {
            kind: Kind::from_byte(kind).expect("in range"),
            epoch,
            payload: payload.into(),
        })
    }

    fn decode_in_pieces(bytes: &[u8], piece: usize) -> Vec<Frame> {
        let mut decoder = Decoder::new();
        let mut frames = Vec::new();
        for chunk in bytes.chunks(piece) {
            decoder.buffer_mut().extend_from_slice(chunk);
            while let Some(frame) = decoder.next_frame(None) {
                frames.push(frame);
            }
        }
        frames
    }

    proptest! {
        #[test]
        fn frames_survive_any_split(frames in prop::collection::vec(frame(), 0..8), piece in 1usize..400) {
            let bytes: Vec<u8> = frames.iter().flat_map(bytes_of).collect();
            prop_assert_eq!(decode_in_pieces(&bytes, piece), frames);
        }

        #[test]
        fn garbage_before_a_frame_is_skipped(
            garbage in prop::collection::vec(any::<u8>().prop_filter("no magic", |b| *b != b'P'), 0..500),
            frame in frame(),
            piece in 1usize..100,
        ) {
            let bytes = [garbage, bytes_of(&frame)].concat();
            prop_assert_eq!(decode_in_pieces(&bytes, piece), vec![frame]);
        }

        #[test]
        fn a_reader_in_the_middle_of_a_frame_resyncs(old in frame(), cut in 0usize..300, frame in frame()) {
            let mut bytes = bytes_of(&old);
            bytes.truncate(cut.min(bytes.len()));
            bytes.resize(bytes.len() + RESYNC_BYTES, 0);
            bytes.extend(bytes_of(&frame));
            let frames = decode_in_pieces(&bytes, 4096);
            prop_assert_eq!(frames.last(), Some(&frame));
        }

        #[test]
        fn hostile_bytes_never_hold_more_than_a_frame(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut decoder = Decoder::new();
            decoder.buffer_mut().extend_from_slice(&bytes);
            while decoder.next_frame(None).is_some() {}
            prop_assert!(decoder.buffer_mut().len() <= bytes.len());
        }

        #[test]
        fn nothing_hides_the_awaited_frame(stale in prop::collection::vec(any::<u8>(), 0..300), length in 0u32..60_000) {
            // A stale header whose payload would reach far beyond the awaited frame.
            let lying = Header { kind: Kind::Data, epoch: 3, length }.encode();
            let awaited = Frame { kind: Kind::HelloAck, epoch: 77, payload: Bytes::from_static(b"nonce") };
            let mut decoder = Decoder::new();
            decoder.buffer_mut().extend_from_slice(&[&stale[..], &lying, &bytes_of(&awaited)].concat());
            prop_assert_eq!(decoder.next_frame(Some((Kind::HelloAck, 77))), Some(awaited));
        }
    }

    #[test]
    fn a_length_over_the_limit_is_no_header() {
        let header = |kind, length| Header {
            kind,
            epoch: 1,
            length,
        };
        let over_data = header(Kind::Data, MAX_DATA_BYTES as u32 + 1).encode();
        let over_hello = header(Kind::Hello, MAX_CONTROL_BYTES as u32 + 1).encode();
        assert_eq!(Header::decode(&over_data), None);
        assert_eq!(Header::decode(&over_hello), None);
        let largest = header(Kind::Data, MAX_DATA_BYTES as u32);
        assert_eq!(Header::decode(&largest.encode()), Some(largest));
    }

    #[test]
    fn a_header_has_the_documented_bytes() {
        let header = Header {
            kind: Kind::Frozen,
            epoch: 0x0102,
            length: 3,
        };
        assert_eq!(
            header.encode(),
            *b"PNDO\x05\0\0\0\x02\x01\0\0\0\0\0\0\x03\0\0\0"
        );
    }
}

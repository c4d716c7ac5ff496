//! `GET /files`: a regular file, or a range of it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use pando_wire::channel::BoxError;

use super::{CHUNK_BYTES, Failure};
use crate::reply::{self, Reply};

/// The part of a file that a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// First byte and length.
    Range(u64, u64),
    Unsatisfiable,
}

/// Reads a `Range` header. Several ranges, or other units, count as none: the
/// whole file is a correct answer to them.
fn part_of(header: Option<&HeaderValue>, size: u64) -> Part {
    let range = header.and_then(|value| value.to_str().ok()?.strip_prefix("bytes="));
    let Some((start, end)) = range.and_then(|range| range.trim().split_once('-')) else {
        return Part::Whole;
    };
    let (start, end) = match (start.parse::<u64>(), end.parse::<u64>()) {
        (Ok(start), Ok(end)) if end < start => return Part::Whole,
        (Ok(start), Ok(end)) => (start, end.min(size.saturating_sub(1))),
        (Ok(start), Err(_)) if end.is_empty() => (start, size.saturating_sub(1)),
        (Err(_), Ok(0)) if start.is_empty() => return Part::Unsatisfiable,
        (Err(_), Ok(last)) if start.is_empty() => {
            (size.saturating_sub(last), size.saturating_sub(1))
        }
        _ => return Part::Whole,
    };
    match start < size {
        true => Part::Range(start, end - start + 1),
        false => Part::Unsatisfiable,
    }
}

struct Opened {
    file: File,
    size: u64,
    /// The beginning, read along with opening.
    first: Bytes,
}

fn open(path: &Path) -> Result<Opened, Failure> {
    let failed = |error: io::Error| Failure::at(path, &error);
    let data = std::fs::metadata(path).map_err(failed)?;
    if data.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if !data.is_file() {
        let message = format!("path '{}' is not a regular file", path.display());
        return Err(Failure::new(StatusCode::BAD_REQUEST, message));
    }
    let mut file = File::open(path).map_err(failed)?;
    let first = read(&mut file, CHUNK_BYTES as u64).map_err(failed)?;
    // The kernel's own files say 0 and have content.
    let size = data.len().max(first.len() as u64);
    Ok(Opened { file, size, first })
}

fn read(file: &mut File, limit: u64) -> io::Result<Bytes> {
    let mut bytes = Vec::with_capacity(CHUNK_BYTES.min(limit as usize));
    file.take(limit.min(CHUNK_BYTES as u64))
        .read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// Answers with the file's content.
pub(super) async fn answer(headers: &HeaderMap, path: PathBuf) -> Result<Reply, Failure> {
    let opened = tokio::task::spawn_blocking(move || open(&path)).await;
    let Opened { file, size, first } = opened.map_err(|_| Failure::internal())??;
    let (status, start, length) = match part_of(headers.get(RANGE), size) {
        Part::Whole => (StatusCode::OK, 0, size),
        Part::Range(start, length) => (StatusCode::PARTIAL_CONTENT, start, length),
        Part::Unsatisfiable => {
            let message = format!("the range is not within the file's {size} bytes");
            let mut refusal = reply::error(StatusCode::RANGE_NOT_SATISFIABLE, &message);
            set(&mut refusal, CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(refusal);
        }
    };
    let mut reply = Response::new(if length == 0 {
        reply::empty()
    } else {
        let frames = chunks(file, first, start, length).map(|chunk| chunk.map(Frame::data));
        StreamBody::new(frames)
            .map_err(BoxError::from)
            .boxed_unsync()
    });
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, "application/octet-stream");
    set(&mut reply, CONTENT_LENGTH, &length.to_string());
    set(&mut reply, ACCEPT_RANGES, "bytes");
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {start}-{}/{size}", start + length - 1);
        set(&mut reply, CONTENT_RANGE, &range);
    }
    Ok(reply)
}

fn set(reply: &mut Reply, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

/// Reads as the client takes. A file that has become shorter ends the stream with
/// an error, so that nobody takes half of it for the whole.
fn chunks(
    file: File,
    mut first: Bytes,
    start: u64,
    length: u64,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    first.truncate(if start == 0 { length as usize } else { 0 });
    let first_part = first;
    let rest = length - first_part.len() as u64;
    let seek_to = start + first_part.len() as u64;
    let rest = futures::stream::try_unfold((Some(file), rest), move |(file, left)| async move {
        let Some(mut file) = file.filter(|_| left > 0) else {
            return Ok(None);
        };
        let first_read = left == rest;
        let read = tokio::task::spawn_blocking(move || {
            if first_read {
                file.seek(SeekFrom::Start(seek_to))?;
            }
            let bytes = read(&mut file, left)?;
            Ok::<_, io::Error>((bytes, file))
        });
        let (bytes, file) = read.await.map_err(io::Error::other)??;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let left = left - bytes.len() as u64;
        Ok(Some((bytes, (Some(file), left))))
    });
    let first_part = (!first_part.is_empty()).then_some(Ok(first_part));
    futures::stream::iter(first_part).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        let part = |range: &str, size| {
            let header = HeaderValue::from_str(range).expect("header");
            part_of(Some(&header), size)
        };
        assert_eq!(part("bytes=0-9", 100), Part::Range(0, 10));
        assert_eq!(part("bytes=90-200", 100), Part::Range(90, 10));
        assert_eq!(part("bytes=90-", 100), Part::Range(90, 10));
        assert_eq!(part("bytes=-10", 100), Part::Range(90, 10));
        assert_eq!(part("bytes=-200", 100), Part::Range(0, 100));
        assert_eq!(part("bytes=100-", 100), Part::Unsatisfiable);
        assert_eq!(part("bytes=-0", 100), Part::Unsatisfiable);
        assert_eq!(part("bytes=0-", 0), Part::Unsatisfiable);
        for ignored in [
            "bytes=5-1",
            "bytes=x-1",
            "bytes=0-1,5-6",
            "lines=0-1",
            "bytes=-",
        ] {
            assert_eq!(part(ignored, 100), Part::Whole, "{ignored}");
        }
        assert_eq!(part_of(None, 100), Part::Whole);
    }

    #[tokio::test]
    async fn any_part_of_a_file_is_read_exactly() {
        let content: Vec<u8> = (0..(CHUNK_BYTES * 2 + 77))
            .map(|i| (i % 251) as u8)
            .collect();
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        std::fs::write(&path, &content).expect("file");
        let size = content.len();
        let parts = [
            (0, size),
            (0, 10),
            (5, 10),
            (CHUNK_BYTES, 5),
            (3, size - 3),
            (size - 1, 1),
        ];
        for (start, length) in parts {
            let Opened { file, first, .. } = open(&path).expect("open");
            let chunks = chunks(file, first, start as u64, length as u64);
            let chunks: Vec<_> = chunks.map(|chunk| chunk.expect("chunk")).collect().await;
            assert_eq!(
                chunks.concat(),
                content[start..start + length],
                "{start}+{length}"
            );
        }
    }

    #[tokio::test]
    async fn a_file_that_shrinks_is_not_taken_for_whole() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; CHUNK_BYTES * 2]).expect("file");
        let Opened { file, first, size } = open(&path).expect("open");
        std::fs::write(&path, "short").expect("file");
        let chunks: Vec<_> = chunks(file, first, 0, size).collect().await;
        assert!(chunks.last().is_some_and(Result::is_err));
    }
}

//! The guest's console: a bounded log file, and its end in memory.
//!
//! The guest can write without end, and slow readers would slow it: all of it is
//! read at once, the last part is kept.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes kept in memory: a boot's messages, or a panic with its trace.
const TAIL_BYTES: usize = 64 << 10;

/// Bytes of the log file before it becomes `.old`, replacing the last of that name.
const FILE_BYTES: u64 = 1 << 20;

/// What the guest's kernel writes before the reason of a panic.
const PANIC_MARK: &str = "Kernel panic - not syncing: ";

/// Longest reason of a panic that is kept.
const PANIC_CHARS: usize = 200;

/// The end of a stream, shared with the task that reads it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(bytes);
        let surplus = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..surplus);
    }

    /// The text, with what is not UTF-8 replaced.
    pub(super) fn text(&self) -> String {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (front, back) = tail.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }

    /// The reason of the last kernel panic in it.
    pub(super) fn panic(&self) -> Option<String> {
        let text = self.text();
        let (_, after) = text.rsplit_once(PANIC_MARK)?;
        Some(after.lines().next()?.chars().take(PANIC_CHARS).collect())
    }
}

/// Reads `stream` to its end into `tail` and, where given, into a log.
pub(super) async fn follow(mut stream: impl AsyncRead + Unpin, tail: Tail, mut log: Option<Log>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let bytes = &buffer[..count];
        tail.push(bytes);
        if let Some(open) = &mut log
            && let Err(error) = open.append(bytes)
        {
            tracing::warn!(path = %open.path.display(), %error, "the console log ends here");
            log = None;
        }
    }
}

/// A log file that does not grow without end.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    written: u64,
}

impl Log {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: File::create(path)?,
            written: 0,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.written >= FILE_BYTES {
            let mut old = OsString::from(&self.path);
            old.push(".old");
            std::fs::rename(&self.path, old)?;
            *self = Self::create(&self.path)?;
        }
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_chatty_guest_fills_two_files_and_the_last_words_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let mut noise = b"0123456789abcde\n".repeat(400_000);
        noise.extend(b"the end");
        let tail = Tail::default();
        follow(&noise[..], tail.clone(), Some(Log::create(&path).unwrap())).await;
        let sizes: u64 = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(sizes <= 2 * FILE_BYTES + (64 << 10), "{sizes}");
        assert!(std::fs::read(&path).unwrap().ends_with(b"the end"));
        assert!(tail.text().ends_with("\nthe end"));
        assert_eq!(tail.text().len(), TAIL_BYTES);
    }

    #[test]
    fn a_panic_is_found_with_its_reason() {
        let tail = Tail::default();
        tail.push(b"[1.0] fine\n");
        assert_eq!(tail.panic(), None);
        tail.push(b"[2.0] Kernel panic - not syncing: Attempted to kill init!\n[2.1] CPU: 0\n");
        assert_eq!(tail.panic().unwrap(), "Attempted to kill init!");
        tail.push(b"\xff\xfe");
        assert!(tail.text().ends_with("\u{fffd}\u{fffd}"));
    }
}

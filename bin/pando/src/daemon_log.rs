//! The log of a daemon in the background: one file, rotated, bounded.

use anyhow::Context as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// At this size the file is put aside and a new one begun: a busy day's `info`.
const ROTATE_BYTES: u64 = 8 << 20;

/// What the setting `log` lets through. The library for MCP says something of each message of
/// a client, at `info` and `warn`: it is heard where the setting names it.
///
/// # Errors
/// If it is no filter.
pub(crate) fn filter(setting: &str) -> anyhow::Result<EnvFilter> {
    let of_mcp = if setting.contains("rmcp") {
        ""
    } else {
        ",rmcp=error"
    };
    EnvFilter::try_new(format!("{setting}{of_mcp}"))
        .with_context(|| format!("`log` is `{setting}`, which is no filter"))
}

/// A log file that puts itself aside when it is full; the one before it is kept.
#[derive(Debug)]
pub(crate) struct RotatingFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl RotatingFile {
    /// Opens the file to append to it; missing directories are made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = open(path)?;
        let length = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            length,
        })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".old");
        fs::rename(&self.path, old)?;
        self.file = open(&self.path)?;
        self.length = 0;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

impl Write for RotatingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.length + bytes.len() as u64 > ROTATE_BYTES && self.length > 0 {
            self.rotate()?;
        }
        let written = self.file.write(bytes)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The last lines of a log beyond its first `skip` bytes, without reading more than a piece of it.
pub(crate) fn tail(path: &Path, skip: u64, lines: usize) -> io::Result<String> {
    /// Enough for some thousand lines.
    const TAIL_BYTES: u64 = 1 << 20;
    use std::io::{Read as _, Seek as _};
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(io::SeekFrom::Start(
        length
            .saturating_sub(TAIL_BYTES)
            .max(if skip <= length { skip } else { 0 }),
    ))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(last_lines(&String::from_utf8_lossy(&bytes), lines).to_owned())
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &str, lines: usize) -> &str {
    let ends = text.trim_end_matches('\n').rmatch_indices('\n');
    match ends
        .map(|(index, _)| index + 1)
        .nth(lines.saturating_sub(1))
    {
        Some(start) => &text[start..],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/daemon.log");
        let mut log = RotatingFile::open(&path).unwrap();
        log.write_all(b"old\n").unwrap();
        log.write_all(&vec![b'x'; usize::try_from(ROTATE_BYTES).unwrap()])
            .unwrap();
        log.write_all(b"new\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new\n");
        assert_eq!(
            fs::metadata(dir.path().join("a/daemon.log.old"))
                .unwrap()
                .len(),
            ROTATE_BYTES
        );
        drop(log);
        RotatingFile::open(&path)
            .unwrap()
            .write_all(b"more\n")
            .unwrap();
        assert_eq!(tail(&path, 0, 1).unwrap(), "more\n");
        assert_eq!(tail(&path, 0, 9).unwrap(), "new\nmore\n");
        assert_eq!(tail(&path, 4, 9).unwrap(), "more\n");
    }

    #[test]
    fn last_lines_counts_whole_lines() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last_lines("a\nb\nc", 1), "c");
        assert_eq!(last_lines("a", 5), "a");
        assert_eq!(last_lines("", 5), "");
    }
}

//! Copying between this machine and a sandbox.
//!
//! A file is one request. A directory is a tar stream through the sandbox's own
//! `tar`, which keeps modes and links. What comes out of a sandbox is unpacked
//! by a library that lets nothing escape the destination: the guest may be hostile.

use crate::exit::{self, Failure};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures::TryStreamExt;
use pando_client::api::stream::{OutputStream, StreamRequest};
use pando_client::api::{FileType, MakeDirRequest};
use pando_client::{Client, ClientError, ExecStream, FileSource, StreamEvent};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio_util::io::ReaderStream;

/// Bytes read from a file at once.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces under way between the archive's thread and the network.
const PIECES: usize = 8;

/// What is kept of the sandbox's `tar` complaining.
const COMPLAINT_BYTES: usize = 4 << 10;

/// One of the two arguments of `cp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this machine.
    Here(PathBuf),
    /// In a sandbox.
    There {
        /// Which.
        sandbox: String,
        /// The path; empty is the user's home.
        path: String,
    },
}

impl Place {
    /// `ID:PATH` is in a sandbox, unless a slash comes before the colon.
    pub(crate) fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => {
                let path = if path.is_empty() { "." } else { path };
                Self::There {
                    sandbox: sandbox.to_owned(),
                    path: path.to_owned(),
                }
            }
            _ => Self::Here(PathBuf::from(text)),
        }
    }
}

/// Copies from here into a sandbox.
pub(crate) async fn upload(
    client: &Client,
    from: &Path,
    sandbox: &str,
    to: &str,
    user: Option<&str>,
) -> anyhow::Result<()> {
    let metadata =
        std::fs::metadata(from).with_context(|| format!("cannot read `{}`", from.display()))?;
    let target = stat(client, sandbox, to, user).await?;
    let wants_directory = to.ends_with('/') || to == ".";
    let inside = wants_directory || target == Some(FileType::Directory);
    let to = if inside {
        join(to, &file_name(from)?)
    } else {
        to.to_owned()
    };
    if metadata.is_dir() {
        if target.is_some_and(|kind| kind != FileType::Directory) {
            bail!(Failure::new(
                exit::FAILED,
                format!("`{to}` in the sandbox is not a directory")
            ));
        }
        return upload_directory(client, from, sandbox, &to, user).await;
    }
    if stat(client, sandbox, &to, user).await? == Some(FileType::Directory) {
        bail!(Failure::new(
            exit::FAILED,
            format!("`{to}` in the sandbox is a directory")
        ));
    }
    let file = tokio::fs::File::open(from)
        .await
        .with_context(|| format!("cannot read `{}`", from.display()))?;
    // A pipe or a device has no length to rely on.
    let length = metadata.is_file().then_some(metadata.len());
    let stream = ReaderStream::with_capacity(file, PIECE_BYTES);
    client
        .write_file(sandbox, &to, user, FileSource::stream(stream, length))
        .await?;
    Ok(())
}

/// Copies from a sandbox to here.
pub(crate) async fn download(
    client: &Client,
    sandbox: &str,
    from: &str,
    to: &Path,
    user: Option<&str>,
) -> anyhow::Result<()> {
    let info = client.stat(sandbox, from, user).await?;
    let wants_directory = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let to = if wants_directory || to.is_dir() {
        to.join(plain_name(&info.path)?)
    } else {
        to.to_owned()
    };
    if info.kind == FileType::Directory {
        return download_directory(client, sandbox, from, &to, user).await;
    }
    if to.is_dir() {
        bail!(Failure::new(
            exit::FAILED,
            format!("`{}` is a directory", to.display())
        ));
    }
    make_parents(&to)?;
    let write = || format!("cannot write `{}`", to.display());
    let mut contents = client.read_file(sandbox, from, user).await?;
    // A copy that breaks off must not leave half a file under the name.
    let mut temporary = to.clone().into_os_string();
    temporary.push(format!(".pando-{}", std::process::id()));
    let guard = RemoveOnDrop(Some(PathBuf::from(&temporary)));
    let mut file = tokio::fs::File::create(&temporary)
        .await
        .with_context(write)?;
    while let Some(piece) = contents.try_next().await? {
        file.write_all(&piece).await.with_context(write)?;
    }
    file.flush().await.with_context(write)?;
    drop(file);
    if to
        .symlink_metadata()
        .is_ok_and(|metadata| !metadata.is_file())
    {
        // A pipe, a device or a link is written through, not replaced.
        std::fs::copy(&temporary, &to).with_context(write)?;
        return Ok(());
    }
    std::fs::rename(&temporary, &to).with_context(write)?;
    guard.keep();
    Ok(())
}

/// Removes a file unless it is kept.
struct RemoveOnDrop(Option<PathBuf>);

impl RemoveOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn upload_directory(
    client: &Client,
    from: &Path,
    sandbox: &str,
    to: &str,
    user: Option<&str>,
) -> anyhow::Result<()> {
    let directory = MakeDirRequest {
        path: to.to_owned(),
        user: user.map(str::to_owned),
    };
    match client.make_dir(sandbox, &directory).await {
        Err(error) if error.code() != Some("file_exists") => return Err(error.into()),
        _ => {}
    }
    let arguments = ["tar", "-xf", "-", "--no-same-owner", "-C", to];
    let ExecStream {
        input, mut output, ..
    } = start_tar(client, sandbox, &arguments, true, user).await?;
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    let from = from.to_owned();
    let packing = tokio::task::spawn_blocking(move || pack(&from, sender));
    let feeding = async {
        while let Some(piece) = pieces.recv().await {
            input.stdin(piece).await?;
        }
        input.close_stdin().await
    };
    let mut tar = TarOutput::default();
    let ending = async {
        while tar.next(&mut output).await?.is_some() {}
        anyhow::Ok(())
    };
    let (fed, ended) = tokio::join!(feeding, ending);
    // What tar says explains a broken feed; the archive's own fault explains both.
    packing.await.context("the archive was lost")??;
    ended?;
    fed?;
    Ok(())
}

async fn download_directory(
    client: &Client,
    sandbox: &str,
    from: &str,
    to: &Path,
    user: Option<&str>,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot make `{}`", to.display()))?;
    let arguments = ["tar", "-cf", "-", "-C", from, "."];
    let ExecStream { mut output, .. } = start_tar(client, sandbox, &arguments, false, user).await?;
    let (sender, pieces) = mpsc::channel::<Bytes>(PIECES);
    let target = to.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || {
        unpack(
            ChannelReader {
                pieces,
                rest: Bytes::new(),
            },
            &target,
        )
    });
    let mut tar = TarOutput::default();
    let taking = async {
        while let Some(piece) = tar.next(&mut output).await? {
            if sender.send(piece).await.is_err() {
                break;
            }
        }
        drop(sender);
        anyhow::Ok(())
    };
    let taken = taking.await;
    let unpacked = unpacking.await.context("the archive was lost")?;
    taken?;
    unpacked.with_context(|| format!("cannot unpack into `{}`", to.display()))
}

async fn start_tar(
    client: &Client,
    sandbox: &str,
    arguments: &[&str],
    stdin: bool,
    user: Option<&str>,
) -> Result<ExecStream, ClientError> {
    let request = StreamRequest {
        argv: Some(arguments.iter().map(|word| (*word).to_owned()).collect()),
        user: user.map(str::to_owned),
        stdin,
        ..StreamRequest::default()
    };
    client.exec_stream(sandbox, &request).await
}

/// The sandbox's `tar`: its archive, and its complaints if it fails.
#[derive(Default)]
struct TarOutput {
    complaints: Vec<u8>,
}

impl TarOutput {
    /// The next piece of the archive; `None` at an end without fault.
    async fn next(
        &mut self,
        output: &mut pando_client::ExecOutput,
    ) -> anyhow::Result<Option<Bytes>> {
        loop {
            match output.next().await? {
                StreamEvent::Output {
                    stream: OutputStream::Stdout,
                    data,
                    ..
                } => return Ok(Some(data)),
                StreamEvent::Output { data, .. } => {
                    let room = COMPLAINT_BYTES.saturating_sub(self.complaints.len());
                    self.complaints
                        .extend_from_slice(&data[..data.len().min(room)]);
                }
                StreamEvent::Gap { .. } => bail!("the sandbox's archive was cut short"),
                StreamEvent::Exit {
                    exit_code: Some(0), ..
                } => return Ok(None),
                StreamEvent::Exit { .. } => {
                    bail!(
                        "`tar` in the sandbox failed: {}",
                        String::from_utf8_lossy(&self.complaints).trim()
                    );
                }
            }
        }
    }
}

/// Packs a directory's contents; ends early if nobody takes them.
fn pack(directory: &Path, sender: mpsc::Sender<Bytes>) -> anyhow::Result<()> {
    let mut archive = tar::Builder::new(io::BufWriter::with_capacity(
        PIECE_BYTES,
        ChannelWriter(sender),
    ));
    archive.follow_symlinks(false);
    let packed = archive
        .append_dir_all(".", directory)
        .and_then(|()| archive.into_inner()?.flush());
    match packed {
        // The other side says why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        packed => packed.with_context(|| format!("cannot read `{}`", directory.display())),
    }
}

/// Unpacks an archive of the guest's: nothing outside of `target`, no owners, no special bits.
fn unpack(reader: impl Read, target: &Path) -> anyhow::Result<()> {
    let mut archive = tar::Archive::new(reader);
    archive.set_preserve_ownerships(false);
    archive.set_preserve_permissions(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        use tar::EntryType;
        let harmless = matches!(
            entry.header().entry_type(),
            EntryType::Regular
                | EntryType::Directory
                | EntryType::Symlink
                | EntryType::Link
                | EntryType::GNUSparse
        );
        if harmless && !entry.unpack_in(target)? {
            bail!("the archive holds a path that leads outside");
        }
    }
    Ok(())
}

struct ChannelWriter(mpsc::Sender<Bytes>);

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map(|()| bytes.len())
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct ChannelReader {
    pieces: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

/// What is at a path in the sandbox, if anything.
async fn stat(
    client: &Client,
    sandbox: &str,
    path: &str,
    user: Option<&str>,
) -> anyhow::Result<Option<FileType>> {
    match client.stat(sandbox, path, user).await {
        Ok(info) => Ok(Some(info.kind)),
        Err(error) if error.code() == Some("file_not_found") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn join(directory: &str, name: &str) -> String {
    match directory.trim_end_matches('/') {
        "" => format!("/{name}"),
        directory => format!("{directory}/{name}"),
    }
}

/// The name that a local path is known by, also for `.` and `..`.
fn file_name(path: &Path) -> anyhow::Result<String> {
    let whole =
        std::fs::canonicalize(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let name = if path.file_name().is_some() {
        path.file_name()
    } else {
        whole.file_name()
    };
    let name = name
        .and_then(|name| name.to_str())
        .context("the file's name is not UTF-8")?;
    Ok(name.to_owned())
}

/// The last component of a path that the guest named: one plain component, nothing that leads elsewhere.
fn plain_name(path: &str) -> anyhow::Result<String> {
    match Path::new(path).file_name().and_then(|name| name.to_str()) {
        Some(name) if !name.contains('\0') => Ok(name.to_owned()),
        _ => bail!("`{path}` has no name to copy it under: name the destination in full"),
    }
}

fn make_parents(path: &Path) -> anyhow::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make `{}`", parent.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_a_place_in_a_sandbox() {
        let there = |sandbox: &str, path: &str| Place::There {
            sandbox: sandbox.to_owned(),
            path: path.to_owned(),
        };
        assert_eq!(Place::parse("sabc:/tmp/x"), there("sabc", "/tmp/x"));
        assert_eq!(Place::parse("web:"), there("web", "."));
        assert_eq!(Place::parse("web:a:b"), there("web", "a:b"));
        for here in ["./a:b", "/x/a:b", "file", ":x"] {
            assert_eq!(
                Place::parse(here),
                Place::Here(PathBuf::from(here)),
                "{here}"
            );
        }
        assert_eq!(
            (join("/", "a"), join("/x/", "a"), join(".", "a")),
            ("/a".into(), "/x/a".into(), "./a".into())
        );
        assert!(plain_name("/").is_err() && plain_name("/a/..").is_err());
    }

    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o4755);
            // The library itself refuses to write such names.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            if *kind == tar::EntryType::Symlink {
                header.set_link_name_literal(content).unwrap();
                header.set_size(0);
                header.set_cksum();
                builder.append(&header, io::empty()).unwrap();
            } else {
                header.set_size(content.len() as u64);
                header.set_cksum();
                builder.append(&header, content.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn nothing_of_a_guests_archive_escapes_the_destination() {
        use std::os::unix::fs::PermissionsExt as _;
        use tar::EntryType::{Fifo, Regular, Symlink};
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::create_dir(&target).unwrap();
        let outside = dir.path().join("outside");
        let hostile = [
            archive(&[("../outside", Regular, "x")]),
            archive(&[("link", Symlink, ".."), ("link/outside", Regular, "x")]),
        ];
        for bytes in hostile {
            let _ = unpack(&bytes[..], &target);
            assert!(!outside.exists());
        }
        let honest = archive(&[("./a", Regular, "hello"), ("pipe", Fifo, "")]);
        unpack(&honest[..], &target).unwrap();
        assert_eq!(std::fs::read(target.join("a")).unwrap(), b"hello");
        let mode = std::fs::metadata(target.join("a"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(
            mode & 0o7000,
            0,
            "no set-user-id bit comes out of a sandbox"
        );
        assert!(!target.join("pipe").exists());
    }

    #[test]
    fn a_directory_survives_packing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("from/sub")).unwrap();
        std::fs::write(dir.path().join("from/sub/a"), vec![7; 600_000]).unwrap();
        std::os::unix::fs::symlink("sub/a", dir.path().join("from/link")).unwrap();
        let (sender, pieces) = mpsc::channel(PIECES);
        let from = dir.path().join("from");
        let packing = std::thread::spawn(move || pack(&from, sender));
        let to = dir.path().join("to");
        std::fs::create_dir(&to).unwrap();
        unpack(
            ChannelReader {
                pieces,
                rest: Bytes::new(),
            },
            &to,
        )
        .unwrap();
        packing.join().unwrap().unwrap();
        assert_eq!(std::fs::read(to.join("sub/a")).unwrap(), vec![7; 600_000]);
        assert_eq!(
            std::fs::read_link(to.join("link")).unwrap(),
            Path::new("sub/a")
        );
    }
}

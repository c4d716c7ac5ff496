//! Large files in and out, and what they leave in memory.

use super::round_trip::warmed_up;
use super::{BesideContainers, exec_name};
use crate::BenchError;
use crate::container::Running;
use crate::figure::Figure;
use crate::procfs::{self, Resident};
use crate::session::{Session, limited};
use crate::stats::{Better, milliseconds_since};
use bytes::Bytes;
use futures::TryStreamExt as _;
use pando_client::{ClientError, FileSource};
use std::io;
use std::time::Instant;

/// The size of the file.
const FILE_BYTES: usize = 64 << 20;

/// Where it is in the sandbox: on its disk.
const PATH: &str = "bench-file";

/// Sends a file and fetches it, several times.
pub(super) async fn files(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let content = content();
    let sandbox = warmed_up(session).await?;
    let shim = session.daemon.shim(&sandbox);
    let watched = [Ok(session.daemon.pid), shim].map(|pid| pid.and_then(Watched::begin));
    let mut up = BesideContainers::new(session);
    let mut down = BesideContainers::new(session);
    let containers = start(&up).await?;
    let (mut own_up, mut own_down) = (Vec::new(), Vec::new());
    for _ in 0..session.counts.files {
        own_up.push(upload(session, &sandbox, &content).await?);
        own_down.push(download(session, &sandbox, &content).await?);
        for (at, container) in &containers {
            let runtime = &up.runtimes[*at];
            up.samples[*at].push(rate(runtime.upload(container, &content).await?));
            down.samples[*at].push(rate(runtime.download(container).await?));
        }
    }
    let [daemon, shim] = watched.map(|watched| watched.and_then(|watched| watched.grown_mib()));
    session.remove(&sandbox).await?;
    for (at, container) in &containers {
        up.runtimes[*at].remove(container).await;
    }
    Ok(vec![
        Figure::new("files-upload", own_up).baselines(up.baselines(Better::More, exec_name)),
        Figure::new("files-download", own_down).baselines(down.baselines(Better::More, exec_name)),
        growth("files-daemon-growth", daemon),
        growth("files-shim-growth", shim),
    ])
}

async fn start(beside: &BesideContainers<'_>) -> Result<Vec<(usize, Running)>, BenchError> {
    let mut containers = Vec::new();
    for (at, runtime) in beside.working() {
        containers.push((at, runtime.start().await?));
    }
    Ok(containers)
}

/// In MB/s.
async fn upload(session: &Session<'_>, sandbox: &str, content: &Bytes) -> Result<f64, BenchError> {
    let source = FileSource::bytes(content.clone());
    let client = &session.daemon.client;
    let began = Instant::now();
    limited("an upload", client.write_file(sandbox, PATH, None, source)).await?;
    Ok(rate(milliseconds_since(began)))
}

/// In MB/s; what comes is compared with what was sent.
async fn download(
    session: &Session<'_>,
    sandbox: &str,
    content: &Bytes,
) -> Result<f64, BenchError> {
    let client = &session.daemon.client;
    let work = async {
        let stream = client.read_file(sandbox, PATH, None).await?;
        let compare = async |(at, same): (usize, bool), chunk: Bytes| {
            let end = at + chunk.len();
            Ok::<_, ClientError>((end, same && content.get(at..end) == Some(&*chunk)))
        };
        let mut stream = std::pin::pin!(stream);
        let mut seen = (0, true);
        while let Some(chunk) = stream.try_next().await? {
            seen = compare(seen, chunk).await?;
        }
        Ok(seen)
    };
    let began = Instant::now();
    let seen = limited("a download", work).await?;
    let time = milliseconds_since(began);
    if seen == (content.len(), true) {
        Ok(rate(time))
    } else {
        Err(BenchError::Garbled)
    }
}

/// A file's worth in MB/s.
fn rate(milliseconds: f64) -> f64 {
    FILE_BYTES as f64 / 1e6 / (milliseconds / 1e3)
}

/// Bytes that no layer can make shorter: xorshift, the same in every run.
fn content() -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..FILE_BYTES / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

/// A process whose memory is watched.
struct Watched {
    pid: u32,
    before: Resident,
    peak_is_fresh: bool,
}

impl Watched {
    fn begin(pid: u32) -> io::Result<Self> {
        let peak_is_fresh = procfs::reset_peak(pid).is_ok();
        Ok(Self {
            pid,
            before: procfs::resident(pid)?,
            peak_is_fresh,
        })
    }

    fn grown_mib(&self) -> io::Result<f64> {
        let after = procfs::resident(self.pid)?;
        Ok(grown_kib(self.before, after, self.peak_is_fresh) as f64 / 1024.0)
    }
}

/// From what it had to the most that it had since.
fn grown_kib(before: Resident, after: Resident, peak_is_fresh: bool) -> u64 {
    let peak_is_new = peak_is_fresh || after.peak_kib > before.peak_kib;
    let most = if peak_is_new {
        after.peak_kib
    } else {
        after.now_kib
    };
    most.saturating_sub(before.now_kib)
}

fn growth(name: &'static str, grown: io::Result<f64>) -> Figure {
    match grown {
        Ok(mib) => Figure::new(name, vec![mib]),
        Err(error) => Figure::missing(name, format!("its memory cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_to_the_peak_if_the_peak_is_of_this_time() {
        let resident = |now_kib, peak_kib| Resident { now_kib, peak_kib };
        assert_eq!(grown_kib(resident(10, 50), resident(12, 20), true), 10);
        assert_eq!(grown_kib(resident(10, 50), resident(12, 50), false), 2);
        assert_eq!(grown_kib(resident(10, 50), resident(12, 60), false), 50);
        assert_eq!(grown_kib(resident(10, 10), resident(8, 9), true), 0);
    }

    #[test]
    fn the_file_is_as_long_as_said() {
        let content = content();
        assert_eq!(content.len(), FILE_BYTES);
        assert_ne!(content[..8], content[8..16]);
        assert!((rate(1000.0) - 67.108_864).abs() < 1e-6);
    }
}

//! What experiments ask of the daemon, timed.

use crate::container::Containers;
use crate::daemon::Daemon;
use crate::stats::milliseconds_since;
use crate::{BenchError, Counts};
use futures::{StreamExt as _, TryStreamExt as _};
use pando_client::api::{
    CreateSandboxRequest, Egress, ExecRequest, ForkRequest, ForkedChild, RollbackRequest, Snapshot,
    Status, TakeSnapshotRequest,
};
use pando_client::{Client, ClientError};
use std::cell::RefCell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A cold boot without KVM takes 15 s, on a busy machine a minute.
const REQUEST_LIMIT: Duration = Duration::from_secs(180);

/// Filling a pool is a few seconds' work.
const POOL_LIMIT: Duration = Duration::from_secs(60);

/// How often we look whether it is full. A daemon fills when no request came for a moment.
const POOL_PAUSE: Duration = Duration::from_millis(100);

/// After this long a reason why no more can wait is no passing one.
const POOL_PATIENCE: Duration = Duration::from_secs(5);

/// Sandboxes that are made or removed side by side.
pub(crate) const SIDE_BY_SIDE: usize = 8;

/// What is run where the program does not matter.
const PROGRAM: &str = "/bin/true";

/// A daemon under measurement, and what it is compared with.
pub(crate) struct Session<'a> {
    pub(crate) daemon: &'a Daemon,
    pub(crate) containers: &'a Containers,
    pub(crate) counts: Counts,
    /// What was odd about the pool since somebody asked.
    pool_note: RefCell<Option<String>>,
}

/// How a sandbox is started, in the API's word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    Auto,
    Snapshot,
    Boot,
}

impl Start {
    fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Snapshot => "snapshot",
            Self::Boot => "boot",
        }
    }
}

/// A sandbox that was made and has run a program.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) id: String,
    /// From the request to the answer.
    pub(crate) create_ms: f64,
    /// The same of its first program.
    pub(crate) exec_ms: f64,
}

/// How somebody came to a sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// From the first request to the sandbox.
    pub(crate) total_ms: f64,
    /// How often it was refused before.
    pub(crate) refusals: usize,
}

impl Made {
    pub(crate) fn total_ms(&self) -> f64 {
        self.create_ms + self.exec_ms
    }
}

/// How many of some sandboxes were waiting clones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims(u64);

impl Claims {
    fn of(status: &Status) -> Self {
        Self(status.pool.claims.get("warm").copied().unwrap_or(0))
    }

    /// Since an earlier moment, in percent of the sandboxes made.
    fn percent_since(self, earlier: Self, made: usize) -> f64 {
        100.0 * self.0.saturating_sub(earlier.0) as f64 / made.max(1) as f64
    }
}

impl<'a> Session<'a> {
    pub(crate) fn new(daemon: &'a Daemon, containers: &'a Containers, counts: Counts) -> Self {
        Self {
            daemon,
            containers,
            counts,
            pool_note: RefCell::new(None),
        }
    }

    fn client(&self) -> &Client {
        &self.daemon.client
    }

    pub(crate) async fn status(&self) -> Result<Status, BenchError> {
        limited("asking for the status", self.client().status()).await
    }

    /// Makes a sandbox and runs a program in it.
    pub(crate) async fn make(&self, start: Start) -> Result<Made, BenchError> {
        self.make_with(CreateSandboxRequest {
            start: Some(start.word().to_owned()),
            ..CreateSandboxRequest::default()
        })
        .await
    }

    /// Makes one that may reach an address which is refused to others.
    pub(crate) async fn make_reaching(&self, address: IpAddr) -> Result<Made, BenchError> {
        self.make_with(CreateSandboxRequest {
            egress: Some(Egress {
                default: "allow".to_owned(),
                allow: vec![address.to_string()],
                deny: Vec::new(),
            }),
            ..CreateSandboxRequest::default()
        })
        .await
    }

    async fn make_with(&self, wanted: CreateSandboxRequest) -> Result<Made, BenchError> {
        let began = Instant::now();
        let sandbox = limited("making a sandbox", self.client().create(&wanted)).await?;
        let create_ms = milliseconds_since(began);
        let exec_ms = self.exec(&sandbox.id).await?;
        Ok(Made {
            id: sandbox.id,
            create_ms,
            exec_ms,
        })
    }

    /// Makes several, some side by side, in the order in which they are ready.
    pub(crate) async fn make_many(&self, count: usize) -> Result<Vec<Made>, BenchError> {
        let making = futures::stream::iter((0..count).map(|_| self.make(Start::Auto)));
        making.buffer_unordered(SIDE_BY_SIDE).try_collect().await
    }

    /// Makes a sandbox, asking again as often as the daemon says to, and removes it.
    pub(crate) async fn insist(&self) -> Result<Came, BenchError> {
        let wanted = CreateSandboxRequest::default();
        let began = Instant::now();
        let mut refusals = 0;
        loop {
            let asked = limited("making a sandbox", self.client().create(&wanted)).await;
            match asked {
                Ok(sandbox) => {
                    let total_ms = milliseconds_since(began);
                    self.remove(&sandbox.id).await?;
                    return Ok(Came { total_ms, refusals });
                }
                Err(error) => {
                    let BenchError::Request { source, .. } = &error else {
                        return Err(error);
                    };
                    let again = source.retry_after();
                    let Some(again) = again.filter(|_| began.elapsed() < REQUEST_LIMIT) else {
                        return Err(error);
                    };
                    refusals += 1;
                    tokio::time::sleep(again).await;
                }
            }
        }
    }

    /// Runs a program: milliseconds from the request to the answer.
    pub(crate) async fn exec(&self, sandbox: &str) -> Result<f64, BenchError> {
        self.run(sandbox, &[PROGRAM]).await
    }

    /// The same of any program.
    pub(crate) async fn run(&self, sandbox: &str, argv: &[&str]) -> Result<f64, BenchError> {
        let program = ExecRequest {
            argv: Some(argv.iter().map(|&word| word.to_owned()).collect()),
            ..ExecRequest::default()
        };
        let began = Instant::now();
        let ended = limited("an exec", self.client().exec(sandbox, &program)).await?;
        let time = milliseconds_since(began);
        match ended.exit_code {
            Some(0) => Ok(time),
            _ => Err(BenchError::Program {
                program: argv.join(" "),
                ended: format!("code {:?}, signal {:?}", ended.exit_code, ended.signal),
            }),
        }
    }

    /// To the agent and back, in milliseconds.
    pub(crate) async fn ping(&self, sandbox: &str) -> Result<f64, BenchError> {
        let began = Instant::now();
        limited("a ping", self.client().ping(sandbox)).await?;
        Ok(milliseconds_since(began))
    }

    /// To the daemon and back, in milliseconds.
    pub(crate) async fn health(&self) -> Result<f64, BenchError> {
        let began = Instant::now();
        limited("asking whether it is well", self.client().health()).await?;
        Ok(milliseconds_since(began))
    }

    /// Has so many MiB of memory written anew, the same pages each time, with bytes that
    /// cannot be compressed.
    pub(crate) async fn dirty(&self, sandbox: &str, mib: usize) -> Result<(), BenchError> {
        let count = format!("count={mib}");
        let argv = [
            "dd",
            "if=/dev/urandom",
            "of=/dev/shm/bench",
            "bs=1M",
            &count,
            "conv=notrunc",
        ];
        self.run(sandbox, &argv).await.map(drop)
    }

    /// Takes a snapshot; the answer says how long that took.
    pub(crate) async fn take(&self, sandbox: &str) -> Result<Snapshot, BenchError> {
        let request = TakeSnapshotRequest::default();
        limited("a snapshot", self.client().snapshot(sandbox, &request)).await
    }

    pub(crate) async fn roll_back(&self, sandbox: &str, snapshot: &str) -> Result<(), BenchError> {
        let request = RollbackRequest {
            snapshot: snapshot.to_owned(),
            save: None,
        };
        let rolling_back = self.client().roll_back(sandbox, &request);
        limited("a rollback", rolling_back).await.map(drop)
    }

    pub(crate) async fn pause(&self, sandbox: &str) -> Result<(), BenchError> {
        let pausing = self.client().pause(sandbox);
        limited("a pause", pausing).await.map(drop)
    }

    pub(crate) async fn resume(&self, sandbox: &str) -> Result<(), BenchError> {
        let resuming = self.client().resume(sandbox);
        limited("a resume", resuming).await.map(drop)
    }

    /// Makes children of a sandbox, and gives their ids.
    pub(crate) async fn fork(&self, sandbox: &str, count: u32) -> Result<Vec<String>, BenchError> {
        let request = ForkRequest {
            count: Some(count),
            ..ForkRequest::default()
        };
        let forked = limited("a fork", self.client().fork(sandbox, &request)).await?;
        let ids = forked.children.into_iter().map(|child| match child {
            ForkedChild::Sandbox(sandbox) => Ok(sandbox.id),
            ForkedChild::Error(error) => Err(BenchError::Child(error.message)),
        });
        ids.collect()
    }

    /// Removes all snapshots: everything here is the benchmark's.
    pub(crate) async fn forget_snapshots(&self) -> Result<(), BenchError> {
        let kept = limited("listing snapshots", self.client().snapshots(&[])).await?;
        for snapshot in kept.iter().rev() {
            let removing = self.client().remove_snapshot(&snapshot.id);
            limited("removing a snapshot", removing).await?;
        }
        Ok(())
    }

    pub(crate) async fn remove(&self, sandbox: &str) -> Result<(), BenchError> {
        limited("removing a sandbox", self.client().remove(sandbox)).await
    }

    pub(crate) async fn remove_all(&self, made: &[Made]) -> Result<(), BenchError> {
        let removing = futures::stream::iter(made.iter().map(|made| self.remove(&made.id)));
        removing.buffer_unordered(SIDE_BY_SIDE).try_collect().await
    }

    /// Waits until all that is to wait for requests does, and says how many claims there were.
    /// A pool that does not fill is noted and not waited for for ever.
    pub(crate) async fn await_pool(&self) -> Result<Claims, BenchError> {
        let began = Instant::now();
        loop {
            let status = self.status().await?;
            let pool = &status.pool;
            let full = pool.slots.iter().all(|slot| slot.waiting >= slot.wanted);
            if full && pool.filling == 0 {
                return Ok(Claims::of(&status));
            }
            let waited = began.elapsed();
            let limit = pool.limited_by.as_ref().filter(|_| pool.filling == 0);
            if let Some(reason) = limit
                && waited > POOL_PATIENCE
            {
                self.note_pool(format!("fewer clones waited than wanted: {reason}"));
                return Ok(Claims::of(&status));
            }
            if waited > POOL_LIMIT {
                self.note_pool(format!("no full pool within {} s", POOL_LIMIT.as_secs()));
                return Ok(Claims::of(&status));
            }
            tokio::time::sleep(POOL_PAUSE).await;
        }
    }

    /// How many of the sandboxes made since then were waiting clones, in percent.
    pub(crate) async fn hits(&self, since: Claims, made: usize) -> Result<f64, BenchError> {
        Ok(Claims::of(&self.status().await?).percent_since(since, made))
    }

    fn note_pool(&self, note: String) {
        *self.pool_note.borrow_mut() = Some(note);
    }

    /// What was odd about the pool since the last question.
    pub(crate) fn take_pool_note(&self) -> Option<String> {
        self.pool_note.borrow_mut().take()
    }
}

/// A request that is given up after a while.
pub(crate) async fn limited<T>(
    what: &'static str,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, BenchError> {
    match tokio::time::timeout(REQUEST_LIMIT, work).await {
        Ok(result) => result.map_err(|source| BenchError::Request { what, source }),
        Err(_) => Err(BenchError::TooSlow {
            what,
            limit: REQUEST_LIMIT,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_those_since_a_moment() {
        assert!((Claims(25).percent_since(Claims(10), 20) - 75.0).abs() < 1e-9);
        assert!(Claims(0).percent_since(Claims(0), 0).abs() < 1e-9);
    }
}

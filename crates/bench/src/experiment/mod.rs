//! Experiments: each measures one thing and gives its figures.

mod burst;
mod create;
mod files;
mod fork;
mod going_back;
mod idle;
mod memory;
mod net;
mod ports;
mod round_trip;
mod snapshot;

use crate::BenchError;
use crate::container::Runtime;
use crate::figure::{Baseline, Figure, Measured};
use crate::plain::PlainVm;
use crate::session::Session;
use crate::stats::Better;
use std::io;

/// What can be measured by itself; its figures' names begin with its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Sandboxes from waiting clones, one at a time.
    CreateWarm,
    /// Sandboxes loaded for their request, and cold boots.
    CreateSnapshot,
    /// Sandboxes back to back.
    CreateBurst,
    /// Eight sandboxes at once.
    CreateAtOnce,
    /// A hundred sandboxes at once.
    Burst100,
    /// A program in a sandbox.
    Exec,
    /// A round trip to the agent.
    Ping,
    /// Large files in and out.
    Files,
    /// What a sandbox costs in memory.
    Memory,
    /// Many idle sandboxes.
    Idle,
    /// Snapshots of a running sandbox.
    Snapshot,
    /// Back to a snapshot.
    Rollback,
    /// From the disk, where a sandbox was paused to.
    Resume,
    /// Eight children of a running sandbox.
    Fork,
    /// Connections out of a sandbox.
    Net,
    /// HTTP into one.
    Ports,
}

impl Experiment {
    /// All, in the order in which they are done.
    pub const ALL: [Self; 16] = [
        Self::CreateWarm,
        Self::CreateSnapshot,
        Self::CreateBurst,
        Self::CreateAtOnce,
        Self::Burst100,
        Self::Exec,
        Self::Ping,
        Self::Files,
        Self::Memory,
        Self::Idle,
        Self::Snapshot,
        Self::Rollback,
        Self::Resume,
        Self::Fork,
        Self::Net,
        Self::Ports,
    ];

    /// Its word on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::CreateWarm => "create-warm",
            Self::CreateSnapshot => "create-snapshot",
            Self::CreateBurst => "create-burst",
            Self::CreateAtOnce => "create-at-once",
            Self::Burst100 => "burst-100",
            Self::Exec => "exec",
            Self::Ping => "ping",
            Self::Files => "files",
            Self::Memory => "memory",
            Self::Idle => "idle",
            Self::Snapshot => "snapshot",
            Self::Rollback => "rollback",
            Self::Resume => "resume",
            Self::Fork => "fork",
            Self::Net => "net",
            Self::Ports => "ports",
        }
    }

    /// The one with this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|experiment| experiment.word() == word)
    }

    /// Whether containers are measured beside it.
    pub(crate) fn needs_containers(self) -> bool {
        matches!(
            self,
            Self::CreateWarm | Self::CreateBurst | Self::CreateAtOnce | Self::Exec | Self::Files
        )
    }

    /// Does it. Sandboxes that it made are gone afterwards, unless it failed.
    pub(crate) async fn measure(self, session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
        match self {
            Self::CreateWarm => create::warm(session).await,
            Self::CreateSnapshot => create::snapshot(session).await,
            Self::CreateBurst => create::burst(session).await,
            Self::CreateAtOnce => create::at_once(session).await,
            Self::Burst100 => burst::burst(session).await,
            Self::Exec => round_trip::exec(session).await,
            Self::Ping => round_trip::ping(session).await,
            Self::Files => files::files(session).await,
            Self::Memory => memory::memory(session).await,
            Self::Idle => idle::idle(session).await,
            Self::Snapshot => snapshot::snapshot(session).await,
            Self::Rollback => going_back::rollback(session).await,
            Self::Resume => going_back::resume(session).await,
            Self::Fork => fork::fork(session).await,
            Self::Net => net::net(session).await,
            Self::Ports => ports::ports(session).await,
        }
    }
}

/// Samples of each container runtime, to become baselines.
struct BesideContainers<'a> {
    runtimes: &'a [Runtime],
    samples: Vec<Vec<f64>>,
}

impl<'a> BesideContainers<'a> {
    fn new(session: &Session<'a>) -> Self {
        let runtimes = &session.containers.runtimes;
        Self {
            runtimes,
            samples: vec![Vec::new(); runtimes.len()],
        }
    }

    /// `count` for each runtime that works, 0 for the others.
    fn turns(&self, count: usize) -> impl Iterator<Item = usize> {
        let turns = move |runtime: &Runtime| if runtime.missing.is_none() { count } else { 0 };
        self.runtimes.iter().map(turns)
    }

    /// The runtimes that work, with their places.
    fn working(&self) -> impl Iterator<Item = (usize, &'a Runtime)> + use<'a> {
        let all = self.runtimes.iter().enumerate();
        all.filter(|(_, runtime)| runtime.missing.is_none())
    }

    fn baselines(
        self,
        better: Better,
        name: fn(&Runtime) -> &'static str,
    ) -> impl Iterator<Item = Baseline> {
        let both = self.runtimes.iter().zip(self.samples);
        both.map(move |(runtime, samples)| Baseline {
            name: name(runtime),
            what: runtime.what.clone(),
            measured: match &runtime.missing {
                Some(reason) => Measured::missing(reason),
                None => Measured::of(samples, better),
            },
        })
    }
}

/// A VM without Pando, to become baselines; or why there is none.
struct BesidePlain {
    vm: Option<PlainVm>,
    missing: Option<String>,
}

impl BesidePlain {
    async fn start(session: &Session<'_>, name: &str) -> Result<Self, BenchError> {
        let (vm, missing) = match PlainVm::start(session, name).await {
            Ok(vm) => (Some(vm), None),
            Err(BenchError::Plain(reason)) => (None, Some(reason.to_string())),
            Err(other) => return Err(other),
        };
        Ok(Self { vm, missing })
    }

    /// How many samples it gives.
    fn turns(&self, session: &Session<'_>) -> usize {
        self.vm.as_ref().map_or(0, |_| session.counts.plain)
    }

    fn vm(&mut self) -> Result<&mut PlainVm, BenchError> {
        let vm = self.vm.as_mut();
        vm.ok_or_else(|| BenchError::Plain(io::Error::other("it is not there")))
    }

    async fn end(&mut self) {
        if let Some(vm) = self.vm.take() {
            vm.end().await;
        }
    }
}

fn plain_baseline(
    name: &'static str,
    what: &str,
    samples: Vec<f64>,
    missing: &Option<String>,
) -> Baseline {
    Baseline {
        name,
        what: what.to_owned(),
        measured: match missing {
            Some(reason) => Measured::missing(reason),
            None => Measured::of(samples, Better::Less),
        },
    }
}

fn run_name(runtime: &Runtime) -> &'static str {
    runtime.run_name
}

fn exec_name(runtime: &Runtime) -> &'static str {
    runtime.exec_name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back() {
        for experiment in Experiment::ALL {
            assert_eq!(Experiment::of_word(experiment.word()), Some(experiment));
        }
        assert_eq!(Experiment::of_word("all"), None);
    }
}

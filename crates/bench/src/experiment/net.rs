//! Connections out of a sandbox, to a server on the host, beside QEMU's own gateway.

use super::round_trip::warmed;
use crate::BenchError;
use crate::figure::{Baseline, Figure, Measured};
use crate::plain::{HOST, PlainNetworkVm};
use crate::procfs;
use crate::schedule::interleave;
use crate::session::Session;
use crate::stats::Better;
use crate::traffic::{CLIENT, Job, Listening, Peer, detached};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Of one transfer.
const BULK_BYTES: usize = 32 << 20;

/// Of the one before those that count.
const WARM_UP_BYTES: usize = 4 << 20;

/// Connections of one sample, made one after the other.
const SERIES: usize = 100;

/// Connections that are open at the same time.
const HELD: usize = 500;

/// How long memory and descriptors may take to be given back.
const REST: Duration = Duration::from_secs(10);

/// How often we look at them meanwhile.
const REST_PAUSE: Duration = Duration::from_millis(250);

/// In percent; a difference that is this small needs no longer wait.
const NEGLIGIBLE: f64 = 1.0;

const NAMES: [&str; 6] = [
    "net-download",
    "net-upload",
    "net-connect",
    "net-held",
    "net-left-memory",
    "net-left-descriptors",
];

/// What QEMU without Pando does as well.
const PLAIN: &str = "-netdev user";

/// Bulk both ways and new connections in turns, then what connections cost.
pub(super) async fn net(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let address = match procfs::host_address() {
        Ok(address) => address.into(),
        Err(error) => {
            let reason = format!("a guest has nothing to connect to: {error}");
            return Ok(NAMES
                .map(|name| Figure::missing(name, reason.clone()))
                .into());
        }
    };
    let mut plain = Plain::start(session).await?;
    let sandbox = session.make_reaching(address).await?.id;
    warmed(session, &sandbox).await?;
    let mut own = begin(session, &sandbox, address).await?;
    let (mut samples, mut baselines) = (Samples::default(), Samples::default());
    // What QEMU has not translated yet is translated now.
    for peer in std::iter::once(&mut own).chain(&mut plain.peer) {
        peer.does(Job::Download(WARM_UP_BYTES)).await?;
        peer.does(Job::Upload(WARM_UP_BYTES)).await?;
        peer.does(Job::Connect(SERIES)).await?;
    }
    let count = session.counts.traffic;
    let turns = [count, plain.peer.as_ref().map_or(0, |_| count)];
    for turn in interleave(&turns) {
        match (turn, &mut plain.peer) {
            (1, Some(peer)) => samples_of(peer, &mut baselines).await?,
            _ => samples_of(&mut own, &mut samples).await?,
        }
    }
    plain.end().await;
    let costs = costs(session, &sandbox, &mut own).await?;
    session.remove(&sandbox).await?;
    let mut figures = samples.figures(baselines, &plain.missing);
    figures.extend(costs);
    Ok(figures)
}

/// A VM without Pando and its program, or why there is none.
struct Plain {
    vm: Option<PlainNetworkVm>,
    peer: Option<Peer>,
    missing: Option<String>,
}

impl Plain {
    async fn start(session: &Session<'_>) -> Result<Self, BenchError> {
        match Self::try_start(session).await {
            Ok((vm, peer)) => Ok(Self {
                vm: Some(vm),
                peer: Some(peer),
                missing: None,
            }),
            Err(BenchError::Plain(reason)) => Ok(Self {
                vm: None,
                peer: None,
                missing: Some(reason.to_string()),
            }),
            Err(other) => Err(other),
        }
    }

    async fn try_start(session: &Session<'_>) -> Result<(PlainNetworkVm, Peer), BenchError> {
        let vm = PlainNetworkVm::start(session, "plain-net").await?;
        // The host's loopback is what 10.0.2.2 leads to.
        let listening = Listening::start(Ipv4Addr::LOCALHOST.into()).await?;
        let port = listening.port().to_string();
        vm.run(&detached(CLIENT, &[HOST, &port])).await?;
        Ok((vm, listening.peer().await?))
    }

    async fn end(&mut self) {
        self.peer = None;
        if let Some(vm) = self.vm.take() {
            vm.end().await;
        }
    }
}

/// Starts the program in a sandbox.
async fn begin(session: &Session<'_>, sandbox: &str, address: IpAddr) -> Result<Peer, BenchError> {
    let listening = Listening::start(address).await?;
    let (host, port) = (address.to_string(), listening.port().to_string());
    let argv = detached(CLIENT, &[&host, &port]);
    session.run(sandbox, &argv).await?;
    listening.peer().await
}

#[derive(Default)]
struct Samples {
    /// In MB/s.
    download: Vec<f64>,
    /// In MB/s.
    upload: Vec<f64>,
    /// In ms for each connection.
    connect: Vec<f64>,
}

async fn samples_of(peer: &mut Peer, samples: &mut Samples) -> Result<(), BenchError> {
    let rate = |time: f64| BULK_BYTES as f64 / 1e6 / (time / 1e3);
    let download = peer.does(Job::Download(BULK_BYTES)).await?;
    samples.download.push(rate(download));
    let upload = peer.does(Job::Upload(BULK_BYTES)).await?;
    samples.upload.push(rate(upload));
    let connect = peer.does(Job::Connect(SERIES)).await?;
    samples.connect.push(connect / SERIES as f64);
    Ok(())
}

impl Samples {
    fn figures(self, plain: Self, missing: &Option<String>) -> Vec<Figure> {
        let baseline = |samples, better| Baseline {
            name: PLAIN,
            what: "the same program in the same VM under QEMU without Pando, whose network card \
                   leads to QEMU's own gateway"
                .to_owned(),
            measured: match missing {
                Some(reason) => Measured::missing(reason),
                None => Measured::of(samples, better),
            },
        };
        vec![
            Figure::new(NAMES[0], self.download)
                .baselines([baseline(plain.download, Better::More)]),
            Figure::new(NAMES[1], self.upload).baselines([baseline(plain.upload, Better::More)]),
            Figure::new(NAMES[2], self.connect).baselines([baseline(plain.connect, Better::Less)]),
        ]
    }
}

/// What open connections take of the shim, and what those leave that are gone.
async fn costs(
    session: &Session<'_>,
    sandbox: &str,
    peer: &mut Peer,
) -> Result<Vec<Figure>, BenchError> {
    let shim = session.daemon.shim(sandbox);
    let look = || shim.as_ref().ok().and_then(|pid| Used::by(*pid).ok());
    let before = look();
    peer.does(Job::Hold(HELD)).await?;
    let held = look();
    peer.does(Job::Drop).await?;
    if let (Some(before), Some(_)) = (before, look()) {
        before.again(look, REST).await;
    }
    let before_row = look();
    peer.does(Job::Connect(session.counts.connections)).await?;
    let left = match before_row {
        Some(before) => before.again(look, REST).await,
        None => None,
    };
    let read = |name, value: Option<f64>| match value {
        Some(value) => Figure::new(name, vec![value]),
        None => Figure::missing(name, "the shim cannot be looked at"),
    };
    let grown = before.zip(held).map(|(before, held)| held.mib - before.mib);
    let note = format!("{} connections in a row", session.counts.connections);
    Ok(vec![
        read(NAMES[3], grown),
        read(NAMES[4], left.map(|left| left.0)).notes([note.clone()]),
        read(NAMES[5], left.map(|left| left.1)).notes([note]),
    ])
}

/// Of a process.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Resident memory.
    mib: f64,
    descriptors: f64,
}

impl Used {
    fn by(pid: u32) -> io::Result<Self> {
        Ok(Self {
            mib: procfs::resident(pid)?.now_kib as f64 / 1024.0,
            descriptors: procfs::descriptors(pid)? as f64,
        })
    }

    /// By how much memory and descriptors differ from these, in percent, when they are as
    /// they were or the time is over.
    async fn again(self, look: impl Fn() -> Option<Self>, limit: Duration) -> Option<(f64, f64)> {
        let began = Instant::now();
        loop {
            let now = look()?;
            let difference = |one: f64, other: f64| 100.0 * (one - other).abs() / other;
            let memory = difference(now.mib, self.mib);
            let descriptors = difference(now.descriptors, self.descriptors);
            let settled = memory < NEGLIGIBLE && descriptors < NEGLIGIBLE;
            if settled || began.elapsed() > limit {
                return Some((memory, descriptors));
            }
            tokio::time::sleep(REST_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn what_comes_back_in_time_is_not_left() {
        let used = |mib, descriptors| Used { mib, descriptors };
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            Some(used(if looks.get() < 3 { 30.0 } else { 20.1 }, 10.0))
        };
        let left = used(20.0, 10.0).again(look, REST).await.unwrap();
        assert!((left.0 - 0.5).abs() < 1e-6 && left.1.abs() < 1e-6);
        let stays = || Some(used(20.0, 15.0));
        let left = used(20.0, 10.0).again(stays, Duration::ZERO).await.unwrap();
        assert!((left.1 - 50.0).abs() < 1e-6);
    }
}

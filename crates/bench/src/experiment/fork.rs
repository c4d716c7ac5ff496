//! Eight running children of a running sandbox.

use super::round_trip::warmed_up;
use super::snapshot::DIRTY_MIB;
use crate::daemon::Vm;
use crate::figure::Figure;
use crate::session::Session;
use crate::stats::milliseconds_since;
use crate::{BenchError, procfs};
use std::collections::HashSet;
use std::io;
use std::time::Instant;

/// Children of one fork.
const CHILDREN: u32 = 8;

/// Forks a sandbox several times; its children go before the next fork.
pub(super) async fn fork(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let sandbox = warmed_up(session).await?;
    let (mut walls, mut cpu, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..session.counts.fork {
        session.dirty(&sandbox, DIRTY_MIB).await?;
        session.await_pool().await?;
        let before = Before::look(session);
        let began = Instant::now();
        let children = session.fork(&sandbox, CHILDREN).await?;
        let execs = children.iter().map(|child| session.exec(child));
        futures::future::try_join_all(execs).await?;
        walls.push(milliseconds_since(began) / 1e3);
        match before.and_then(|before| before.costs(session)) {
            Ok(costs) => {
                cpu.push(Ok(costs.cpu_ms));
                memory.extend(costs.memory_mib.into_iter().map(Ok));
            }
            Err(error) => {
                memory.push(Err(io::Error::other(error.to_string())));
                cpu.push(Err(error));
            }
        }
        for child in &children {
            session.remove(child).await?;
        }
    }
    session.remove(&sandbox).await?;
    session.forget_snapshots().await?;
    let read = |name, values: Vec<io::Result<f64>>| {
        let values: io::Result<Vec<f64>> = values.into_iter().collect();
        match values {
            Ok(values) => Figure::new(name, values),
            Err(error) => Figure::missing(name, format!("a process cannot be read: {error}")),
        }
    };
    Ok(vec![
        Figure::new("fork", walls),
        read("fork-cpu", cpu),
        read("fork-memory", memory),
    ])
}

/// What is known before a fork.
struct Before {
    daemon_ticks: u64,
    loaded_from: HashSet<u64>,
}

/// What its children cost.
struct Costs {
    /// All of a child's shim and QEMU until now, and its share of the daemon since before.
    cpu_ms: f64,
    /// Of each child: what would be free if it alone were gone.
    memory_mib: Vec<f64>,
}

impl Before {
    fn look(session: &Session<'_>) -> io::Result<Self> {
        let vms = session.daemon.vms()?;
        Ok(Self {
            daemon_ticks: procfs::cpu_ticks(session.daemon.pid)?,
            loaded_from: vms.into_iter().map(|vm| vm.loaded_from).collect(),
        })
    }

    /// A child may be in a VM that waited, so it is not its name that tells it: all children
    /// are loaded from one file that was not there before.
    fn costs(&self, session: &Session<'_>) -> io::Result<Costs> {
        let mut vms = session.daemon.vms()?;
        vms.retain(|vm| !self.loaded_from.contains(&vm.loaded_from));
        if vms.len() != CHILDREN as usize {
            let found = vms.len();
            return Err(io::Error::other(format!("the VMs of {found} children")));
        }
        let daemon = procfs::cpu_ticks(session.daemon.pid)?;
        let mut ticks = daemon.saturating_sub(self.daemon_ticks);
        let mut memory_mib = Vec::new();
        for Vm { shim, .. } in vms {
            let vmm = procfs::child_of(shim)?;
            ticks += procfs::cpu_ticks(shim)? + procfs::cpu_ticks(vmm)?;
            let memory = procfs::vmm_memory(vmm)?;
            let kib = memory.guest_kib + memory.rest_kib + procfs::private_kib(shim)?;
            memory_mib.push(kib as f64 / 1024.0);
        }
        let all_ms = 1e3 * ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Ok(Costs {
            cpu_ms: all_ms / f64::from(CHILDREN),
            memory_mib,
        })
    }
}

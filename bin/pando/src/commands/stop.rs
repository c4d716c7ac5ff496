//! `pando stop`: a sandbox, or without one the daemon.

use super::{block_on, client, load};
use crate::cli::{Global, Stop};
use crate::exit::{self, Failure};
use crate::output;
use pando_client::Client;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::time::{Duration, Instant};

/// How long an ordered end of the daemon may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// How often we look.
const PAUSE: Duration = Duration::from_millis(50);

/// Powers a sandbox off, or ends the daemon.
pub(super) fn stop(global: &Global, flags: Stop) -> anyhow::Result<u8> {
    let config = load(global)?;
    let client = client(&config)?;
    match flags.id {
        Some(id) => block_on(async {
            output::line(&client.stop(&id).await?.id);
            Ok(exit::DONE)
        }),
        None => block_on(end_daemon(&client)),
    }
}

/// Ends the daemon in order; its sandboxes run on.
pub(super) async fn end_daemon(client: &Client) -> anyhow::Result<u8> {
    if !is_local(client.url()) {
        let failure = Failure::new(
            exit::FAILED,
            format!("the daemon at `{}` is not on this machine", client.url()),
        );
        return Err(failure.hint("run `pando stop` on its own machine").into());
    }
    let status = client.status().await?;
    let pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| is_pando(status.pid)) else {
        return Err(Failure::new(
            exit::FAILED,
            format!("process {} is not the daemon", status.pid),
        )
        .into());
    };
    kill_process(pid, Signal::TERM)?;
    let began = Instant::now();
    while test_kill_process(pid).is_ok() && is_pando(status.pid) {
        if began.elapsed() > DEADLINE {
            return Err(Failure::new(
                exit::FAILED,
                format!("the daemon, process {}, does not end", status.pid),
            )
            .into());
        }
        tokio::time::sleep(PAUSE).await;
    }
    let running = status.sandboxes.get("running").copied().unwrap_or(0);
    match running {
        0 => output::note("the daemon has ended"),
        1 => output::note("the daemon has ended; 1 sandbox runs on, the next daemon takes it over"),
        more => output::note(&format!(
            "the daemon has ended; {more} sandboxes run on, the next daemon takes them over"
        )),
    }
    Ok(exit::DONE)
}

/// Whether a URL names this machine, so that a process id from there means something here.
pub(super) fn is_local(url: &str) -> bool {
    let host = url
        .strip_prefix("http://")
        .unwrap_or(url)
        .trim_end_matches('/');
    ["127.", "localhost", "[::1]"]
        .iter()
        .any(|own| host.starts_with(own))
}

/// Whether the process is alive and runs this program, or one of its name: a process
/// id that comes over the network is not believed.
fn is_pando(pid: u32) -> bool {
    let Ok(program) = std::fs::read_link(format!("/proc/{pid}/exe")) else {
        return false;
    };
    // A program that was replaced meanwhile, by an upgrade, has this after its name.
    let program = program
        .to_string_lossy()
        .trim_end_matches(" (deleted)")
        .to_owned();
    program.ends_with("/pando")
        || std::env::current_exe().is_ok_and(|own| own.to_string_lossy() == program)
}

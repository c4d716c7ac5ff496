//! Becoming a sandbox of one's own: what is done at every HELLO, before any user
//! process runs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pando_wire::Steps;
use pando_wire::guest::resume::Step;
use pando_wire::guest::{Resume, Resumed};
use rustix::time::{ClockId, Timespec, clock_settime};
use tokio::time::Instant;

use crate::boot;
use crate::boot::cgroups::USER_CGROUP;
use crate::epoch;
use crate::limits;
use crate::log::log;
use crate::notify;
use crate::process::output::{Event, ExitStatus};
use crate::process::{self, CgroupChoice, Description, Wiring};
use crate::sandbox::{Identity, Sandbox};
use crate::users::User;

/// The template's own programs to run at every resume, in order of their names.
const HOOKS: &str = "/etc/pando/resume.d";

/// What tells programs that they are in another clone: the epoch's file.
pub(crate) const RUN: &str = "/run/pando";

/// Files of programs that want a signal.
const NOTIFY: &str = "/run/pando/notify";

/// All hooks together. They stand between the spawn and the first answer.
const HOOKS_TIME: Duration = Duration::from_secs(10);

/// Applies the message. What fails without harm is a warning in the answer.
pub(crate) async fn apply(sandbox: &Arc<Sandbox>, resume: Resume) -> Resumed {
    if resume.step == Step::STEP_SETTLE {
        return settle(sandbox, &resume);
    }
    let warming = resume.step == Step::STEP_WARM;
    if sandbox.warm(warming) {
        forget_warm_up(sandbox);
    }
    if warming {
        sandbox.set_last_pid(last_pid());
    }
    let mut steps = Steps::begin();
    let mut warnings = Vec::new();
    let mut note = |step: &str, result: Result<()>| {
        if let Err(error) = result {
            warnings.push(format!("{step}: {error:#}"));
        }
    };
    note("entropy", reseed(&resume.entropy));
    note("clock", set_clock(resume.wall_clock_ns));
    steps.mark("reseeded");
    let mut error = String::new();
    if resume.mount && sandbox.root().is_none() {
        match mount(sandbox).await {
            Ok(()) => {}
            Err(failed) => error = format!("{failed:#}"),
        }
        steps.mark("mounted");
    }
    note("hostname", set_hostname(&resume.hostname));
    if sandbox.root().is_some() {
        note("identity", write_identity(&resume));
        note("limits", limits::apply(sandbox, &resume));
        sandbox.set_identity(Identity {
            environment: resume.env.into_iter().collect(),
            access_token: resume.access_token,
        });
        note("epoch", epoch::renew(Path::new(RUN)).map_err(Into::into));
        steps.mark("renamed");
        if !warming {
            note("hooks", run_hooks(sandbox).await);
            note("signals", send_signals());
            steps.mark("hooks ran");
        }
    }
    Resumed {
        timing_ms: steps.done.into_iter().collect(),
        ..answer(sandbox, warnings, error)
    }
}

/// The second step: nothing that takes time stands between the clock and the thaw.
fn settle(sandbox: &Arc<Sandbox>, resume: &Resume) -> Resumed {
    let clock = set_clock(resume.wall_clock_ns);
    let thawed = sandbox.cgroup.thaw();
    let mut warnings = Vec::new();
    if let Err(error) = clock {
        warnings.push(format!("clock: {error:#}"));
    }
    if let Err(error) = thawed {
        warnings.push(format!("cannot thaw the user's processes: {error}"));
    }
    answer(sandbox, warnings, String::new())
}

/// The number that the last process got, which the next one's follows.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

fn last_pid() -> Option<String> {
    std::fs::read_to_string(LAST_PID).ok()
}

/// A clone that was warmed up is to look like one that was not: the processes that did
/// it are forgotten, and the next one gets the number that it would have got.
fn forget_warm_up(sandbox: &Sandbox) {
    sandbox.processes.forget_ended();
    if let Some(last_pid) = sandbox.last_pid()
        && let Err(error) = std::fs::write(LAST_PID, last_pid)
    {
        log!("cannot set the number of the next process: {error}");
    }
}

fn answer(sandbox: &Arc<Sandbox>, warnings: Vec<String>, error: String) -> Resumed {
    for warning in &warnings {
        log!("resume: {warning}");
    }
    Resumed {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        warnings,
        error,
        pre_mount: sandbox.root().is_none(),
        ..Default::default()
    }
}

/// The last before the thaw: what a hook did is done when a program hears of it.
fn send_signals() -> Result<()> {
    let notified = notify::notify(Path::new(NOTIFY), USER_CGROUP)?;
    if notified.cut_off {
        anyhow::bail!("{NOTIFY} has too many files; some were not looked at");
    }
    Ok(())
}

fn reseed(entropy: &[u8]) -> Result<()> {
    if entropy.is_empty() {
        anyhow::bail!("the host sent none");
    }
    pando_sys::guest::entropy::reseed(entropy).context("cannot reseed the kernel")
}

/// Sets the wall clock; 0 leaves it.
pub(crate) fn set_clock(wall_clock_ns: u64) -> Result<()> {
    if wall_clock_ns == 0 {
        return Ok(());
    }
    let duration = Duration::from_nanos(wall_clock_ns);
    let time = Timespec {
        tv_sec: i64::try_from(duration.as_secs())?,
        tv_nsec: duration.subsec_nanos().into(),
    };
    clock_settime(ClockId::Realtime, time).context("cannot set the clock")
}

async fn mount(sandbox: &Arc<Sandbox>) -> Result<()> {
    let root = tokio::task::spawn_blocking(boot::assemble).await??;
    sandbox.set_root(root);
    Ok(())
}

fn set_hostname(hostname: &str) -> Result<()> {
    if hostname.is_empty() {
        return Ok(());
    }
    rustix::system::sethostname(hostname.as_bytes()).context("cannot set the host name")
}

fn write_identity(resume: &Resume) -> Result<()> {
    let Resume {
        hostname,
        machine_id,
        ..
    } = resume;
    if !hostname.is_empty() {
        boot::write_if_changed("/etc/hostname", &format!("{hostname}\n"))?;
        let hosts = format!(
            "127.0.0.1 localhost\n127.0.1.1 {hostname}\n::1 localhost ip6-localhost ip6-loopback\n"
        );
        boot::write_if_changed("/etc/hosts", &hosts)?;
    }
    if !machine_id.is_empty() {
        boot::write_if_changed("/etc/machine-id", &format!("{machine_id}\n"))?;
    }
    Ok(())
}

/// Runs the hooks one after the other. They start outside the user's cgroup, which
/// is still frozen.
async fn run_hooks(sandbox: &Arc<Sandbox>) -> Result<()> {
    let deadline = Instant::now() + HOOKS_TIME;
    let mut failures = Vec::new();
    for hook in hooks() {
        if let Err(error) = run_hook(sandbox, &hook, deadline).await {
            failures.push(format!("{hook}: {error:#}"));
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => anyhow::bail!("{}", failures.join("; ")),
    }
}

/// Executable files in the folder, sorted by name.
fn hooks() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(HOOKS) else {
        return Vec::new();
    };
    let is_hook = |path: &std::path::Path| {
        path.metadata()
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let hooks = paths.filter(|path| is_hook(path));
    let mut hooks: Vec<_> = hooks
        .filter_map(|path| path.to_str().map(str::to_owned))
        .collect();
    hooks.sort();
    hooks
}

async fn run_hook(sandbox: &Arc<Sandbox>, hook: &str, deadline: Instant) -> Result<()> {
    let root = User::find("root").context("there is no user 'root'")?;
    let description = Description {
        program: hook.to_owned(),
        arguments: Vec::new(),
        environment: Vec::new(),
        directory: Some("/".to_owned()),
        tag: None,
    };
    let wiring = Wiring {
        terminal: None,
        stdin: false,
        deadline: Some(deadline),
        cgroup: CgroupChoice::Hooks,
        output_limit: None,
    };
    let process = process::start(sandbox, root, description, wiring).await?;
    let mut follower = process.output.follow();
    loop {
        match follower.next().await {
            Event::Data(_, bytes) => log!("{hook}: {}", String::from_utf8_lossy(&bytes).trim_end()),
            Event::End(exit) if exit.timed_out => anyhow::bail!("killed after {HOOKS_TIME:?}"),
            Event::End(exit) if exit.status == ExitStatus::Code(0) => return Ok(()),
            Event::End(exit) => anyhow::bail!("{:?}", exit.status),
        }
    }
}

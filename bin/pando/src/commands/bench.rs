//! `pando bench`: how fast Pando is here, and whether that is as promised.

use super::{block_on, load};
use crate::cli::{Bench, Global};
use crate::config::{Config, SettingKey, Source};
use crate::exit::{self, Failure};
use crate::output;
use anyhow::Context as _;
use pando_bench::{
    BenchError, Counts, DaemonCommand, Experiment, Options, Outcome, Report, Verdict,
};
use std::ffi::OsString;
use std::fs;
use std::future::Future;
use tokio::signal::unix::{SignalKind, signal};

/// Measures, shows, checks.
pub(super) fn bench(global: &Global, flags: &Bench) -> anyhow::Result<u8> {
    let config = load(global)?;
    let options = Options {
        experiments: experiments(&flags.only),
        counts: counts(flags),
        repeat_missed: flags.check,
        daemon: daemon_command(&config)?,
    };
    if let Some(raw) = &flags.raw {
        // A path that cannot be written to is said before the minutes, not after them.
        let opened = fs::File::options().create(true).append(true).open(raw);
        opened.with_context(|| format!("cannot write `{}`", raw.display()))?;
    }
    let report = block_on(async {
        let stop = first_signal()?;
        Ok(pando_bench::run(&options, &output::note, stop).await)
    })?;
    let report = match report {
        Ok(report) => report,
        Err(BenchError::Interrupted { signal }) => return Ok(exit::of_signal(signal)),
        Err(error) => return Err(error.into()),
    };
    if let Some(raw) = &flags.raw {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(raw, text).with_context(|| format!("cannot write `{}`", raw.display()))?;
    }
    if flags.json {
        output::json(&report)?;
    } else {
        output::data(&pando_bench::render(&report));
    }
    if flags.check {
        check(&report)?;
    }
    Ok(exit::DONE)
}

/// All of them, or those named, in their own order.
fn experiments(only: &[String]) -> Vec<Experiment> {
    let wanted = |experiment: &Experiment| {
        only.is_empty() || only.iter().any(|word| word == experiment.word())
    };
    Experiment::ALL.into_iter().filter(wanted).collect()
}

fn counts(flags: &Bench) -> Counts {
    let counts = if flags.quick {
        Counts::QUICK
    } else {
        Counts::FULL
    };
    match flags.samples {
        Some(samples) => counts.with_samples(usize::from(samples)),
        None => counts,
    }
}

/// This program, with the settings that a daemon of the benchmark shares with others.
fn daemon_command(config: &Config) -> anyhow::Result<DaemonCommand> {
    let mut arguments = Vec::new();
    if config.source(SettingKey::ConfigFile) != Source::Default {
        arguments.extend(["--config", config.get(SettingKey::ConfigFile)].map(OsString::from));
    }
    Ok(DaemonCommand {
        program: std::env::current_exe().context("cannot find this program's file")?,
        arguments,
        cache_dir: config.path(SettingKey::CacheDir),
    })
}

/// The number of the first signal that asks for the end.
fn first_signal() -> anyhow::Result<impl Future<Output = u32>> {
    let catch = |kind| signal(kind).context("cannot catch signals");
    let mut interrupt = catch(SignalKind::interrupt())?;
    let mut terminate = catch(SignalKind::terminate())?;
    let mut hangup = catch(SignalKind::hangup())?;
    Ok(async move {
        let kind = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hangup.recv() => SignalKind::hangup(),
        };
        u32::try_from(kind.as_raw_value()).unwrap_or_default()
    })
}

/// Fails with every bound that was missed, each with what was wanted and what was got.
fn check(report: &Report) -> anyhow::Result<()> {
    for verdict in report.verdicts() {
        if verdict.outcome == Outcome::RedButMet {
            output::note(&format!(
                "red in SPECIFICATION.md, but met: {}",
                sentence(verdict)
            ));
        }
    }
    let missed: Vec<_> = pando_bench::fails(report.verdicts())
        .map(sentence)
        .collect();
    if missed.is_empty() {
        output::note("every bound of SPECIFICATION.md that is checked is kept");
        return Ok(());
    }
    let message = format!(
        "{} of SPECIFICATION.md's bounds missed\n  {}",
        missed.len(),
        missed.join("\n  ")
    );
    Err(Failure::new(exit::FAILED, message).into())
}

fn sentence(verdict: &Verdict) -> String {
    format!(
        "{}: wanted {}, got {}",
        verdict.figure, verdict.bound, verdict.got
    )
}

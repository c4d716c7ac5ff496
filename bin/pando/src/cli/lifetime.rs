//! What can be typed about how long a sandbox is there.

use super::duration;
use clap::Args;
use std::time::Duration;

/// A time, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// For ever.
    Endless,
    /// So long.
    Of(Duration),
}

impl Span {
    /// As the API has it.
    pub(crate) fn seconds(self) -> Option<f64> {
        match self {
            Self::Endless => None,
            Self::Of(time) => Some(time.as_secs_f64()),
        }
    }
}

/// How long a new sandbox is there.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LifetimeFlags {
    /// Its time from the moment at which it runs: 90, 90s, 5m, 1h, 2d, or `none`
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) timeout: Option<Span>,
    #[command(flatten)]
    pub(crate) sleep: SleepFlags,
}

/// When a sandbox sleeps or goes by itself, and wakes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SleepFlags {
    /// Its time without use, which is a call, a shell, a copy, or bytes of its ports
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) idle_timeout: Option<Span>,
    /// What becomes of it when its time is over: `kill` removes it, `pause` puts it on disk
    #[arg(long, value_name = "kill|pause", value_parser = ["kill", "pause"], hide_possible_values = true)]
    pub(crate) on_timeout: Option<String>,
    /// Let it go on when it is paused and a call or traffic needs it; that waits until it does
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on", value_parser = switch)]
    pub(crate) auto_resume: Option<bool>,
}

/// `pando timeout`.
#[derive(Debug, Args)]
pub(crate) struct Timeout {
    #[command(flatten)]
    pub(crate) sleep: SleepFlags,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: String,
    /// Its time from now, or `none`
    #[arg(value_name = "TIME", value_parser = span)]
    pub(crate) time: Option<Span>,
}

/// A time, or `none`.
pub(super) fn span(text: &str) -> Result<Span, String> {
    match text {
        "none" => Ok(Span::Endless),
        text => duration(text)
            .map(Span::Of)
            .map_err(|error| format!("{error}, or none")),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn timeout(line: &str) -> Option<Timeout> {
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        match Cli::read(&words).ok()?.command {
            Command::Timeout(timeout) => Some(timeout),
            _ => None,
        }
    }

    #[test]
    fn a_time_is_given_taken_away_or_left() {
        let read = timeout("pando timeout lab 10m --idle-timeout none --auto-resume").unwrap();
        assert_eq!(read.time, Some(Span::Of(Duration::from_secs(600))));
        assert_eq!(read.sleep.idle_timeout, Some(Span::Endless));
        assert_eq!(
            (read.sleep.auto_resume, read.sleep.on_timeout),
            (Some(true), None)
        );
        let read = timeout("pando timeout --auto-resume=off lab").unwrap();
        assert_eq!((read.id.as_str(), read.time), ("lab", None));
        assert_eq!(read.sleep.auto_resume, Some(false));
        assert_eq!(span("2d"), Ok(Span::Of(Duration::from_secs(172_800))));
        for wrong in ["0", "-1", "NaN", "inf", "never", "1e400", ""] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
        for wrong in [
            "pando timeout",
            "pando timeout lab soon",
            "pando timeout lab --on-timeout sleep",
            "pando timeout lab --auto-resume=maybe",
        ] {
            assert!(timeout(wrong).is_none(), "{wrong}");
        }
    }
}

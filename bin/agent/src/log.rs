//! Lines on the console, which the host keeps in the sandbox's log.
//!
//! A guest can cause them, so there is a budget; what is over it is counted.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Lines per [`WINDOW`]: a boot has about ten, an unlucky hour a few more.
const MAX_LINES: u32 = 50;
const WINDOW: Duration = Duration::from_secs(10);

struct Log {
    console: File,
    budget: Mutex<Budget>,
}

struct Budget {
    since: Instant,
    lines: u32,
    dropped: u32,
}

impl Budget {
    /// Whether a line may go out now, and how many were dropped before it.
    fn take(&mut self, now: Instant) -> Option<u32> {
        if now.duration_since(self.since) >= WINDOW {
            self.since = now;
            self.lines = 0;
        }
        if self.lines >= MAX_LINES {
            self.dropped += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Opens the console. Lines before that are lost.
pub(crate) fn open() {
    if let Ok(console) = OpenOptions::new().write(true).open("/dev/console") {
        let budget = Mutex::new(Budget {
            since: Instant::now(),
            lines: 0,
            dropped: 0,
        });
        let _ = LOG.set(Log { console, budget });
    }
}

/// Writes a line, if the budget allows it.
pub(crate) fn line(text: &str) {
    let Some(log) = LOG.get() else { return };
    let mut budget = log.budget.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(dropped) = budget.take(Instant::now()) {
        if dropped > 0 {
            write(&log.console, &format!("{dropped} lines left out"));
        }
        write(&log.console, text);
    }
}

/// Writes a line whatever the budget says: the last words.
pub(crate) fn last_words(text: &str) {
    if let Some(log) = LOG.get() {
        write(&log.console, text);
    }
}

fn write(mut console: &File, text: &str) {
    // One write, so that lines of others do not mix in. If the console does not
    // take it there is nobody to tell.
    let _ = console.write_all(format!("pando-agent: {text}\r\n").as_bytes());
}

/// Formats and writes a line.
macro_rules! log {
    ($($argument:tt)*) => { $crate::log::line(&format!($($argument)*)) };
}
pub(crate) use log;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_budget_are_counted_and_the_next_window_is_free() {
        let start = Instant::now();
        let mut budget = Budget {
            since: start,
            lines: 0,
            dropped: 0,
        };
        for _ in 0..MAX_LINES {
            assert_eq!(budget.take(start), Some(0));
        }
        assert_eq!(budget.take(start), None);
        assert_eq!(budget.take(start), None);
        assert_eq!(budget.take(start + WINDOW), Some(2));
    }
}

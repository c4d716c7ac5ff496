//! Steps of a longer task: one line each on the terminal, everything in a log.

use anyhow::{Context as _, Result, bail, ensure};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines of the log that a failure shows; the reason is usually among them.
const SHOWN_LINES: usize = 25;

/// A task's log and the times of its steps. Steps may run side by side.
pub(crate) struct Steps {
    log: Mutex<File>,
    log_path: PathBuf,
    on_terminal: bool,
    started: Instant,
    done: Mutex<Vec<Done>>,
}

/// A step that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) time: Duration,
    pub(crate) passed: bool,
}

impl Steps {
    /// Begins a task whose full log is `target/NAME`; the last run's is kept as `NAME.old`.
    pub(crate) fn start(root: &Path, name: &str) -> Result<Self> {
        let target = root.join("target");
        std::fs::create_dir_all(&target)?;
        let log_path = target.join(name);
        if log_path.exists() {
            std::fs::rename(&log_path, target.join(format!("{name}.old")))?;
        }
        let log = File::options().create(true).append(true).open(&log_path);
        Ok(Self {
            log: Mutex::new(log.with_context(|| format!("cannot write `{}`", log_path.display()))?),
            log_path,
            on_terminal: std::io::stderr().is_terminal(),
            started: Instant::now(),
            done: Mutex::default(),
        })
    }

    /// Runs a step and prints one line for it, with its time.
    pub(crate) fn step<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.note(&format!("--- {name}"));
        if self.on_terminal {
            eprint!("\r\x1b[K    …  {name}");
        }
        let started = Instant::now();
        let result = work();
        self.finished(name, started.elapsed(), result.is_ok());
        result.with_context(|| name.to_owned())
    }

    /// Prints a step's line; for steps that tell their end by other means.
    pub(crate) fn finished(&self, name: &str, time: Duration, passed: bool) {
        let clear = if self.on_terminal { "\r\x1b[K" } else { "" };
        let mark = if passed { "" } else { "  FAILED" };
        eprintln!("{clear}{:>7}  {name}{mark}", seconds(time));
        self.note(&format!("--- {name}: {}{mark}", seconds(time)));
        lock(&self.done).push(Done {
            name: name.to_owned(),
            time,
            passed,
        });
    }

    /// Runs a command quietly: its output goes to the log, its end to the error.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        self.capture(command).map(drop)
    }

    /// As `run`, and returns what was printed on stdout.
    pub(crate) fn capture(&self, command: &mut Command) -> Result<String> {
        let mut output = String::new();
        self.run_with(command, &mut |stream, line| {
            if stream == Stream::Stdout {
                output.push_str(line);
            }
        })?;
        Ok(output)
    }

    /// As `run`, for a command that leaves a daemon behind: that may keep the
    /// command's output open for ever, so only the command itself is waited for.
    pub(crate) fn run_detaching(&self, command: &mut Command) -> Result<()> {
        self.note(&format!("$ {}", line_of(command)));
        let log = || lock(&self.log).try_clone();
        let status = command
            .stdin(Stdio::null())
            .stdout(log()?)
            .stderr(log()?)
            .status();
        let status = status.with_context(|| format!("cannot run `{}`", line_of(command)))?;
        let log = self.log_path.display();
        ensure!(
            status.success(),
            "`{}`: {status}; its reason is in {log}",
            line_of(command)
        );
        Ok(())
    }

    /// As `run`, but shows what is printed as it comes, and returns all of it.
    pub(crate) fn show(&self, command: &mut Command) -> Result<String> {
        let mut output = String::new();
        self.run_with(command, &mut |_, line| {
            eprint!("{line}");
            output.push_str(line);
        })?;
        Ok(output)
    }

    fn run_with(
        &self,
        command: &mut Command,
        each: &mut (dyn FnMut(Stream, &str) + Send),
    ) -> Result<()> {
        self.note(&format!("$ {}", line_of(command)));
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            // The log is read with an editor, not by a terminal.
            .envs([("TERM", "dumb"), ("CARGO_TERM_COLOR", "never")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run `{program}`"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut last = VecDeque::new();
        let sink = Mutex::new(|stream: Stream, line: &str| {
            self.note(line.trim_end());
            each(stream, line);
            if last.len() == SHOWN_LINES {
                last.pop_front();
            }
            last.push_back(line.trim_end().to_owned());
        });
        std::thread::scope(|scope| {
            scope.spawn(|| relay(stderr, &mut |line| lock(&sink)(Stream::Stderr, line)));
            relay(stdout, &mut |line| lock(&sink)(Stream::Stdout, line));
        });
        let status = child.wait()?;
        if status.success() {
            return Ok(());
        }
        let last: Vec<String> = last.into();
        let log = self.log_path.display();
        bail!(
            "`{}`: {status}; the full log is {log}\n{}",
            line_of(command),
            last.join("\n")
        )
    }

    /// Writes a line to the log only.
    pub(crate) fn note(&self, line: &str) {
        // A log that cannot be written must not end the work.
        writeln!(lock(&self.log), "{line}").ok();
    }

    /// Where the log is.
    pub(crate) fn log_path(&self) -> &Path {
        &self.log_path
    }

    /// Time since the task began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The steps that have ended so far.
    pub(crate) fn done(&self) -> Vec<Done> {
        lock(&self.done).clone()
    }
}

/// Which of a command's outputs a line is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

/// Hands on each line, with its end, until there are no more.
fn relay(from: Option<impl std::io::Read>, each: &mut dyn FnMut(&str)) {
    let Some(from) = from else { return };
    let mut reader = BufReader::new(from);
    let mut bytes = Vec::new();
    while reader
        .read_until(b'\n', &mut bytes)
        .is_ok_and(|count| count > 0)
    {
        each(&String::from_utf8_lossy(&bytes));
        bytes.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command as one would type it, near enough for a message.
fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A time for people: `0.4 s`, `12 s`, `3 min 05 s`.
pub(crate) fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        whole @ 10..60 => format!("{whole} s"),
        whole => format!("{} min {:02} s", whole / 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        for (ms, text) in [
            (40, "0.0 s"),
            (9_940, "9.9 s"),
            (59_900, "59 s"),
            (185_000, "3 min 05 s"),
        ] {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }
}

//! The programs of the host that builds run.

use crate::error::BuildError;
use crate::progress::{Progress, ProgressFn};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program of the host, and where to get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    /// Its name in `PATH`.
    pub program: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// Whether only builds by an ordinary user need it.
    pub unprivileged_only: bool,
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool {
        program,
        package,
        unprivileged_only: false,
    }
}

/// What building the base template runs.
pub const REQUIRED_TOOLS: [Tool; 11] = [
    tool("mmdebstrap", "mmdebstrap"),
    tool("mkfs.erofs", "erofs-utils"),
    tool("mke2fs", "e2fsprogs"),
    tool("qemu-img", "qemu-utils"),
    tool("xz", "xz-utils"),
    tool("dpkg-deb", "dpkg"),
    tool("tar", "tar"),
    tool("setpriv", "util-linux"),
    tool("unshare", "util-linux"),
    Tool {
        program: "newuidmap",
        package: "uidmap",
        unprivileged_only: true,
    },
    Tool {
        program: "newgidmap",
        package: "uidmap",
        unprivileged_only: true,
    },
];

/// Lines of a failed program's output that its error carries: enough for apt's
/// reason, little enough for a terminal.
const LAST_LINES: usize = 12;

/// Longest line of a program's output that is looked at; progress bars without
/// a line end are cut here.
const LINE_BYTES: u64 = 4096;

/// The tools that this user's builds need and `PATH` lacks.
pub fn missing_tools() -> Vec<Tool> {
    let root = is_root();
    REQUIRED_TOOLS
        .into_iter()
        .filter(|tool| !(root && tool.unprivileged_only) && find(tool.program).is_none())
        .collect()
}

/// Fails with the first tool that is missing.
pub(crate) fn require_all() -> Result<(), BuildError> {
    match missing_tools().first() {
        Some(tool) => Err(BuildError::MissingTool {
            program: tool.program,
            package: tool.package,
        }),
        None => Ok(()),
    }
}

/// Whether this process may do as it likes with owners and mounts.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where a program is. `/usr/sbin`, where Debian keeps `mkfs.*`, is looked
/// through although an ordinary user's `PATH` lacks it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// A command that finds the system's own programs, whatever `PATH` is, in plain English.
pub(crate) fn command(program: &'static str) -> Result<Command, BuildError> {
    let Some(path) = find(program) else {
        let package = REQUIRED_TOOLS
            .iter()
            .find(|tool| tool.program == program)
            .map_or("coreutils", |tool| tool.package);
        return Err(BuildError::MissingTool { program, package });
    };
    let mut command = Command::new(path);
    let folders = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{folders}:/usr/sbin:/sbin:/usr/bin:/bin"));
    command.env("LC_ALL", "C.UTF-8");
    Ok(command)
}

/// Runs a command to its end with `input` as its standard input, and hands each
/// line of its output to `progress`; a line `pando-step: …` is a step.
pub(crate) fn run(
    program: &'static str,
    command: &mut Command,
    input: &str,
    progress: ProgressFn<'_>,
) -> Result<(), BuildError> {
    let failed = |source| BuildError::Run { program, source };
    let (output, writer) = std::io::pipe().map_err(failed)?;
    command
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer)
        .stdin(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    // The command holds the pipe's write ends; the reader below waits for them.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input is no failure.
        stdin.write_all(input.as_bytes()).ok();
    }

    let last = relay(output, progress).map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    Err(BuildError::Failed {
        program,
        status: status.to_string(),
        last_lines: last.join("\n"),
    })
}

/// Reads lines until the end and returns the last of them.
fn relay(output: impl std::io::Read, progress: ProgressFn<'_>) -> std::io::Result<Vec<String>> {
    let mut reader = BufReader::new(output);
    let mut last = VecDeque::with_capacity(LAST_LINES);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let mut line = std::io::Read::take(&mut reader, LINE_BYTES);
        if line.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(last.into());
        }
        let line = without_credentials(String::from_utf8_lossy(&bytes).trim_end());
        match line.strip_prefix("pando-step: ") {
            Some(step) => progress(Progress::Step(step)),
            None => progress(Progress::Line(&line)),
        }
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
}

/// The text with `user:password@` removed from every address in it.
pub(crate) fn without_credentials(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        clean.push_str(before);
        let end = after
            .find(|c: char| c == '/' || c.is_whitespace())
            .unwrap_or(after.len());
        let authority = &after[..end];
        clean.push_str(
            authority
                .rsplit_once('@')
                .map_or(authority, |(_, host)| host),
        );
        rest = &after[end..];
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn no_credentials_reach_a_log() {
        for (text, clean) in [
            (
                "Get:1 http://me:s3cret@mirror/debian trixie",
                "Get:1 http://mirror/debian trixie",
            ),
            ("http://a@b and https://c:d@e/f", "http://b and https://e/f"),
            ("http://plain/a@b", "http://plain/a@b"),
            ("no address at all: a@b", "no address at all: a@b"),
        ] {
            assert_eq!(without_credentials(text), clean);
        }
    }

    #[test]
    fn output_is_relayed_and_a_failure_tells_the_end_of_it() {
        let seen = Mutex::new(Vec::new());
        let progress = |progress: Progress<'_>| seen.lock().unwrap().push(format!("{progress:?}"));
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", "cat; echo pando-step: second; echo why >&2; exit 3"]);
        let error = run("sh", &mut sh, "first\n", &progress)
            .unwrap_err()
            .to_string();
        let expected = [r#"Line("first")"#, r#"Step("second")"#, r#"Line("why")"#];
        assert_eq!(*seen.lock().unwrap(), expected);
        assert!(
            error.contains("exit status: 3") && error.ends_with("why"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_tool_is_named_with_its_package() {
        let error = command("no-such-program").unwrap_err();
        assert!(matches!(
            error,
            BuildError::MissingTool {
                program: "no-such-program",
                ..
            }
        ));
        assert!(find("sh").is_some());
    }
}

//! What a request asks to run, made into what can be executed.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;

use connectrpc::ConnectError;
use pando_sys::guest::spawn::{SpawnError, Step};
use rustix::io::Errno;

use crate::paths;
use crate::users::User;

/// Behind `~/.local/bin`, where plain `pip install` puts programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What terminals of this century understand.
const TERM: &str = "xterm-256color";

/// A request to run something, as it came.
pub(crate) struct Command<'a> {
    /// Program name or path.
    pub program: &'a str,
    /// Its arguments, without its name.
    pub arguments: Vec<&'a str>,
    /// Environment of the request; wins over the sandbox's.
    pub environment: Vec<(&'a str, &'a str)>,
    /// Working directory; the user's home if there is none.
    pub directory: Option<&'a str>,
    /// As whom.
    pub user: &'a User,
    /// Whether it gets a terminal.
    pub terminal: bool,
}

/// A command in the form that the kernel takes.
pub(crate) struct Prepared {
    /// Paths to try.
    pub programs: Vec<CString>,
    /// Name and arguments.
    pub arguments: Vec<CString>,
    /// `NAME=value` strings.
    pub environment: Vec<CString>,
    /// Absolute working directory.
    pub directory: CString,
}

impl Command<'_> {
    /// # Errors
    /// An empty program name, or a zero byte anywhere: `invalid_argument`.
    pub(crate) fn prepare(
        &self,
        sandbox: &BTreeMap<String, String>,
    ) -> Result<Prepared, ConnectError> {
        if self.program.is_empty() {
            return Err(ConnectError::invalid_argument("no program is given"));
        }
        let environment = self.environment(sandbox);
        let directory = self.directory();
        let path = environment.get("PATH").map_or("", String::as_str);
        let programs = self.candidates(path, &directory);
        let names = [self.program].into_iter();
        Ok(Prepared {
            programs: c_strings(programs)?,
            arguments: c_strings(names.chain(self.arguments.iter().copied()))?,
            environment: c_strings(environment.iter().map(|(k, v)| format!("{k}={v}")))?,
            directory: c_string(directory)?,
        })
    }

    /// Later entries win: the agent's own, the sandbox's, the request's.
    fn environment(&self, sandbox: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let user = self.user;
        let path = match user.uid {
            0 => PATH.to_owned(),
            _ => format!("{}/.local/bin:{PATH}", user.home),
        };
        let own = [
            ("PATH", path.as_str()),
            ("HOME", &user.home),
            ("USER", &user.name),
            ("LOGNAME", &user.name),
            ("SHELL", &user.shell),
            ("LANG", "C.UTF-8"),
        ];
        let term = self.terminal.then_some(("TERM", TERM));
        let sandbox = sandbox.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let all = own.into_iter().chain(term).chain(sandbox);
        let all = all.chain(self.environment.iter().copied());
        all.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    fn directory(&self) -> String {
        match self.directory.filter(|directory| !directory.is_empty()) {
            Some(directory) => paths::resolve(directory, &self.user.home),
            None if std::path::Path::new(&self.user.home).is_dir() => self.user.home.clone(),
            // A user without a home, `nobody` for one, still has somewhere to be.
            None => "/".to_owned(),
        }
    }

    fn candidates(&self, path: &str, directory: &str) -> Vec<String> {
        if self.program.contains('/') {
            // Relative to where the process will be, as a shell there would see it.
            return vec![paths::resolve(self.program, directory)];
        }
        let folders = path.split(':').filter(|folder| !folder.is_empty());
        folders
            .map(|folder| format!("{folder}/{}", self.program))
            .collect()
    }

    /// What to tell the client when the process could not be started.
    pub(crate) fn explain(&self, error: &SpawnError) -> ConnectError {
        let errno = Errno::from_io_error(&error.source);
        let reason = reason_of(&error.source);
        let program = self.program;
        let directory = self.directory();
        match (error.step, errno) {
            (Step::Clone, Some(Errno::AGAIN)) => {
                ConnectError::resource_exhausted("the sandbox has as many processes as it may have")
            }
            (Step::Clone, Some(Errno::NOMEM)) => {
                ConnectError::resource_exhausted("the sandbox has no memory left for a process")
            }
            (Step::Directory, Some(Errno::NOENT)) => {
                ConnectError::invalid_argument(format!("cwd '{directory}' does not exist"))
            }
            (Step::Directory, _) => {
                ConnectError::invalid_argument(format!("cwd '{directory}': {reason}"))
            }
            (Step::Execute, Some(Errno::NOENT)) if !program.contains('/') => {
                ConnectError::invalid_argument(format!(
                    "exec: \"{program}\": executable file not found in $PATH"
                ))
            }
            (Step::Execute, _) => {
                ConnectError::invalid_argument(format!("fork/exec {program}: {reason}"))
            }
            _ => ConnectError::internal(format!("{error}")),
        }
    }
}

/// The kernel's reason in the words that programs print.
fn reason_of(error: &io::Error) -> String {
    let reason = match Errno::from_io_error(error) {
        Some(Errno::NOENT) => "no such file or directory",
        Some(Errno::ACCESS) => "permission denied",
        Some(Errno::NOTDIR) => "not a directory",
        Some(Errno::NOEXEC) => "exec format error",
        Some(Errno::TOOBIG) => "argument list too long",
        Some(Errno::ISDIR) => "is a directory",
        Some(Errno::TXTBSY) => "text file busy",
        _ => return error.to_string(),
    };
    reason.to_owned()
}

fn c_strings<S: Into<String>>(
    strings: impl IntoIterator<Item = S>,
) -> Result<Vec<CString>, ConnectError> {
    strings.into_iter().map(c_string).collect()
}

fn c_string(string: impl Into<String>) -> Result<CString, ConnectError> {
    let string = CString::new(string.into());
    string.map_err(|_| ConnectError::invalid_argument("a string has a zero byte in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "user".into(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            home: "/home/user".into(),
            shell: "/bin/bash".into(),
        }
    }

    fn command<'a>(program: &'a str, user: &'a User) -> Command<'a> {
        Command {
            program,
            arguments: vec!["-x"],
            environment: vec![("A", "request")],
            directory: Some("work"),
            user,
            terminal: false,
        }
    }

    #[test]
    fn the_requests_environment_wins_over_the_sandboxes_and_that_over_the_agents() {
        let sandbox = [("A", "sandbox"), ("LANG", "de_DE"), ("B", "sandbox")];
        let sandbox = sandbox.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let user = user();
        let environment = command("ls", &user).environment(&sandbox);
        assert_eq!(environment["A"], "request");
        assert_eq!(environment["B"], "sandbox");
        assert_eq!(environment["LANG"], "de_DE");
        assert_eq!(environment["HOME"], "/home/user");
        assert!(environment["PATH"].starts_with("/home/user/.local/bin:/usr/local/sbin:"));
        assert!(!environment.contains_key("TERM"));
    }

    #[test]
    fn programs_are_looked_up_as_a_shell_would() {
        let user = user();
        let find = |program: &str| command(program, &user).candidates("/a::/b", "/w");
        assert_eq!(find("ls"), ["/a/ls", "/b/ls"]);
        assert_eq!(find("./ls"), ["/w/ls"]);
        assert_eq!(find("/bin/ls"), ["/bin/ls"]);
    }

    #[test]
    fn what_cannot_be_executed_is_refused() {
        let user = user();
        let nothing = BTreeMap::new();
        assert!(command("", &user).prepare(&nothing).is_err());
        assert!(command("l\0s", &user).prepare(&nothing).is_err());
        let prepared = command("ls", &user).prepare(&nothing).expect("fine");
        assert_eq!(prepared.directory.as_c_str(), c"/home/user/work");
        assert_eq!(prepared.arguments, [c"ls", c"-x"].map(CString::from));
    }

    #[test]
    fn failures_are_told_in_known_words() {
        let user = user();
        let explain = |program: &str, step, errno: Errno| {
            let source = errno.into();
            let error = command(program, &user).explain(&SpawnError { step, source });
            error.message.unwrap_or_default()
        };
        assert_eq!(
            explain("foo", Step::Execute, Errno::NOENT),
            "exec: \"foo\": executable file not found in $PATH"
        );
        assert_eq!(
            explain("/etc/passwd", Step::Execute, Errno::ACCESS),
            "fork/exec /etc/passwd: permission denied"
        );
        assert_eq!(
            explain("ls", Step::Directory, Errno::NOENT),
            "cwd '/home/user/work' does not exist"
        );
    }
}

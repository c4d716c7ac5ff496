//! Exit codes: the one place that knows them. `docs/cli.md` has the same table.

use pando_client::ClientError;
use std::fmt;

/// All went well; for `run` and `exec`, the program exited with 0.
pub(crate) const DONE: u8 = 0;
/// The daemon refused, or the work failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// No daemon answers.
pub(crate) const NO_DAEMON: u8 = 3;
/// `run`, `exec`: the timeout ended the program.
pub(crate) const TIMED_OUT: u8 = 124;
/// `run`, `exec`, `shell`: Pando itself failed, so that no code of the program's is meant.
pub(crate) const PANDO_FAILED: u8 = 125;
/// `run`, `exec`, `shell`: the program could not be started.
pub(crate) const NOT_STARTED: u8 = 127;
/// A signal ended the program, or this command: 128 and the signal's number.
const SIGNAL_BASE: u32 = 128;

/// The table of the documentation.
pub(crate) const TABLE: &[(&str, &str)] = &[
    (
        "0",
        "All went well. `run`, `exec`, `shell`: the program exited with 0.",
    ),
    (
        "1",
        "The daemon refused, or the work failed; stderr says why. `rm`, `pause`, `resume`, `snapshot rm`: it \
         failed for one of those named, and the others are done. `fork`: one of the children could not be made.",
    ),
    ("2", "The command line is wrong."),
    (
        "3",
        "No daemon answers, except for `run`, `exec` and `shell`, where this is 125.",
    ),
    ("124", "`run`, `exec`: the timeout ended the program."),
    (
        "125",
        "`run`, `exec`, `shell`: Pando itself failed; the program may not have run.",
    ),
    (
        "127",
        "`run`, `exec`, `shell`: the program could not be started.",
    ),
    (
        "128+N",
        "`run`, `exec`, `shell`: signal N ended the program, or this command: 130 after Ctrl-C.",
    ),
    (
        "other",
        "`run`, `exec`, `shell`: the exit code of the program.",
    ),
];

/// A failure that already knows its exit code and, maybe, a hint.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// With an exit code of its own.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            code,
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// With something to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The exit code of a program that ended.
pub(crate) fn of_program(exit_code: Option<i32>, signal: Option<u32>, timed_out: bool) -> u8 {
    match (timed_out, signal, exit_code) {
        (true, _, _) => TIMED_OUT,
        (false, Some(signal), _) => of_signal(signal),
        // Linux keeps eight bits of an exit code.
        (false, None, Some(code)) => u8::try_from(code & 0xff).unwrap_or(FAILED),
        (false, None, None) => PANDO_FAILED,
    }
}

/// The exit code after a signal.
pub(crate) fn of_signal(signal: u32) -> u8 {
    u8::try_from(SIGNAL_BASE + signal).unwrap_or(u8::MAX)
}

/// The exit code of an error. `of_a_program`: the command's own codes are a program's.
pub(crate) fn of_error(error: &anyhow::Error, of_a_program: bool) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.code;
    }
    match error.downcast_ref::<ClientError>() {
        Some(error) if of_a_program && error.code() == Some("cannot_run") => NOT_STARTED,
        _ if of_a_program => PANDO_FAILED,
        Some(ClientError::NotReachable { .. }) => NO_DAEMON,
        _ => FAILED,
    }
}

/// What can be done about an error.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<String> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.hint.clone();
    }
    let error = error.downcast_ref::<ClientError>()?;
    match error {
        ClientError::NotReachable { .. } => {
            Some("`pando serve --detach` starts one; PANDO_URL names one elsewhere".to_owned())
        }
        ClientError::BadUrl { .. } => {
            Some("`pando config show` says where the address comes from".to_owned())
        }
        _ => error.hint().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_end_becomes_an_exit_code() {
        assert_eq!(of_program(Some(0), None, false), DONE);
        assert_eq!(of_program(Some(7), None, false), 7);
        assert_eq!(of_program(None, Some(9), false), 137);
        assert_eq!(of_program(None, Some(9), true), TIMED_OUT);
        assert_eq!(of_program(Some(256 + 3), None, false), 3);
        assert_eq!(of_program(None, None, false), PANDO_FAILED);
        assert_eq!(of_signal(2), 130);
    }

    #[test]
    fn an_error_of_pandos_is_never_taken_for_the_programs() {
        let unreachable = || {
            anyhow::Error::new(ClientError::NotReachable {
                url: "u".to_owned(),
                reason: "r".to_owned(),
            })
        };
        assert_eq!(of_error(&unreachable(), false), NO_DAEMON);
        assert_eq!(of_error(&unreachable(), true), PANDO_FAILED);
        assert!(
            hint_of(&unreachable())
                .unwrap()
                .contains("pando serve --detach")
        );
        assert_eq!(
            of_error(&anyhow::Error::new(Failure::usage("x")), true),
            USAGE
        );
        assert_eq!(of_error(&anyhow::anyhow!("x"), false), FAILED);
    }
}

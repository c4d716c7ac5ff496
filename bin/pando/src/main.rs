//! `pando`: the one program a person installs. Wiring only, one file a command.
//!
//! Nothing else in the workspace prints or ends the process.

mod agent;
mod cli;
mod commands;
mod config;
mod copy;
mod daemon_log;
mod exit;
mod follow;
mod output;
mod preload;
mod stdio;
mod supervisor;
mod terminal;

use crate::cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::read(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(cli) => cli,
        // Help and version go to stdout with 0, faults to stderr with 2.
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    // Their own exit codes are a program's, so ours must not look like one.
    let of_a_program = matches!(
        cli.command,
        Command::Run(_) | Command::Exec(_) | Command::Shell(_)
    );
    match commands::dispatch(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::report(&error);
            ExitCode::from(exit::of_error(&error, of_a_program))
        }
    }
}

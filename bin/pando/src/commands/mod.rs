//! The commands, one file each.

mod bench;
mod config;
mod cp;
mod create;
mod df;
mod doctor;
mod events;
mod exec;
mod jail;
mod limits;
mod logs;
mod mcp;
mod net;
mod port;
mod run;
mod sandboxes;
mod serve;
mod shim;
mod snapshots;
mod status;
mod stop;
mod template;
mod timeout;
mod tree;
mod uninstall;

pub(crate) use limits::flag as limit;

use crate::cli::{Cli, Command, ConfigCommand, Global, ProgramFlags};
use crate::config::Config;
use crate::exit;
use crate::output;
use crate::terminal;
use anyhow::Context as _;
use pando_client::api::stream::StreamRequest;
use pando_client::{Client, ClientError};
use std::future::Future;

/// Runs a command to its exit code.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    let global = cli.global;
    match cli.command {
        Command::Run(flags) => ask(&global, |client| run::run(client, flags)),
        Command::Create(flags) => ask(&global, |client| create::create(client, flags)),
        Command::Exec(flags) => ask(&global, |client| exec::exec(client, flags)),
        Command::Shell(flags) => ask(&global, |client| exec::shell(client, flags)),
        Command::Cp(flags) => ask(&global, |client| cp::cp(client, flags)),
        Command::Ls(flags) => ask(&global, |client| sandboxes::ls(client, flags)),
        Command::Inspect(flags) => ask(&global, |client| sandboxes::inspect(client, flags)),
        Command::Rm(flags) => ask(&global, |client| sandboxes::rm(client, flags)),
        Command::Start(flags) => ask(&global, |client| sandboxes::start(client, flags)),
        Command::Pause(flags) => ask(&global, |client| snapshots::pause(client, flags)),
        Command::Resume(flags) => ask(&global, |client| snapshots::resume(client, flags)),
        Command::Timeout(flags) => ask(&global, |client| timeout::timeout(client, flags)),
        Command::Snapshot(flags) => ask(&global, |client| snapshots::snapshot(client, flags)),
        Command::Fork(flags) => ask(&global, |client| snapshots::fork(client, flags)),
        Command::Rollback(flags) => ask(&global, |client| snapshots::rollback(client, flags)),
        Command::Port(flags) => ask(&global, |client| port::port(client, flags)),
        Command::Tree(flags) => ask(&global, |client| tree::tree(client, flags)),
        Command::Net(flags) => ask(&global, |client| net::net(client, flags)),
        Command::Df(flags) => ask(&global, |client| df::df(client, flags)),
        Command::Stop(flags) => stop::stop(&global, flags),
        Command::Logs(flags) => logs::logs(&global, flags),
        Command::Status(flags) => ask(&global, |client| status::status(client, flags)),
        Command::Doctor(flags) => doctor::doctor(&global, &flags),
        Command::Config(ConfigCommand::Show(flags)) => config::show(&load(&global)?, &flags),
        Command::Template(command) => template::template(&global, command),
        Command::Events(flags) => ask(&global, |client| events::events(client, flags)),
        Command::Bench(flags) => bench::bench(&global, &flags),
        Command::Mcp => mcp::mcp(&global),
        Command::Version => {
            output::line(&format!("pando {}", env!("CARGO_PKG_VERSION")));
            Ok(exit::DONE)
        }
        Command::Serve(flags) => serve::serve(&global, &flags),
        Command::Uninstall(flags) => uninstall::uninstall(&global, &flags),
        Command::Shim(flags) => shim::shim(&flags),
    }
}

/// The settings of a command without any of its own.
fn load(global: &Global) -> anyhow::Result<Config> {
    Config::of_process(&global.settings())
}

/// A client for the daemon that the settings name.
fn client(config: &Config) -> anyhow::Result<Client> {
    Ok(Client::new(&config.url(), config.api_key().as_deref())?)
}

/// Runs a command that asks the daemon.
fn ask<F: Future<Output = anyhow::Result<u8>>>(
    global: &Global,
    command: impl FnOnce(Client) -> F,
) -> anyhow::Result<u8> {
    let client = client(&load(global)?)?;
    block_on(command(client))
}

/// Runs asynchronous work on this thread. What it leaves behind does not hold the command.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.context("cannot start")?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

/// A program of the command line as a stream's first message.
fn stream_request(program: &ProgramFlags, argv: Vec<String>) -> anyhow::Result<StreamRequest> {
    let wants_tty = program.wants_tty();
    if wants_tty {
        terminal::require()?;
    }
    let mut env: std::collections::BTreeMap<_, _> = program.env.iter().cloned().collect();
    if wants_tty && let Ok(term) = std::env::var("TERM") {
        env.entry("TERM".to_owned()).or_insert(term);
    }
    Ok(StreamRequest {
        argv: Some(argv),
        cwd: program.workdir.clone(),
        env,
        user: program.user.clone(),
        tty: wants_tty.then(terminal::size),
        // A terminal that was not asked for is left to the person; a pipe or a file is passed on.
        stdin: !wants_tty && !terminal::stdin_is_terminal(),
        timeout_s: program.timeout.map(|timeout| timeout.as_secs_f64()),
        ..StreamRequest::default()
    })
}

/// Removes all that can be, and prints what was; fails if one cannot.
async fn remove_each(
    names: &[String],
    remove: impl AsyncFn(&str) -> Result<(), ClientError>,
) -> anyhow::Result<u8> {
    for_each(names, async |name| {
        remove(name).await.map(|()| name.to_owned())
    })
    .await
}

/// Does it to all it can be done to, and prints what comes of each; fails if it cannot be done to one.
async fn for_each(
    names: &[String],
    work: impl AsyncFn(&str) -> Result<String, ClientError>,
) -> anyhow::Result<u8> {
    let mut code = exit::DONE;
    for name in names {
        match work(name).await {
            Ok(done) => output::line(&done),
            Err(error @ ClientError::NotReachable { .. }) => return Err(error.into()),
            Err(error) => {
                output::report(&error.into());
                code = exit::FAILED;
            }
        }
    }
    Ok(code)
}

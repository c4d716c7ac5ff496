//! `pando exec` and `pando shell`: a program in a sandbox that is there.

use super::stream_request;
use crate::cli::{Exec, ProgramFlags, Shell};
use crate::exit;
use crate::follow::{self, Interrupts, OnSignal};
use crate::output;
use pando_client::Client;
use pando_client::api::stream::StreamRequest;

/// Starts the account's own shell as a login shell.
const SHELL: [&str; 3] = ["/bin/sh", "-c", "exec \"${SHELL:-/bin/sh}\" -l"];

/// Runs a program, starts it and leaves, or comes back to one.
pub(super) async fn exec(client: Client, flags: Exec) -> anyhow::Result<u8> {
    let mut request = match flags.attach {
        Some(process) => StreamRequest {
            attach: Some(process),
            ..StreamRequest::default()
        },
        None => stream_request(&flags.program, flags.argv)?,
    };
    if flags.detach {
        request.stdin = false;
        let stream = client.exec_stream(&flags.id, &request).await?;
        output::line(&stream.process_id);
        return Ok(exit::DONE);
    }
    let mut interrupts = Interrupts::catch()?;
    let ended = follow::follow(
        &client,
        &flags.id,
        &request,
        OnSignal::Forward,
        &mut interrupts,
    )
    .await?;
    Ok(ended.code())
}

/// Opens a shell on a terminal.
pub(super) async fn shell(client: Client, flags: Shell) -> anyhow::Result<u8> {
    let program = ProgramFlags {
        env: Vec::new(),
        workdir: None,
        user: flags.user,
        timeout: None,
        it: None,
        tty: true,
    };
    let request = stream_request(&program, SHELL.map(str::to_owned).to_vec())?;
    let mut interrupts = Interrupts::catch()?;
    let ended = follow::follow(
        &client,
        &flags.id,
        &request,
        OnSignal::Forward,
        &mut interrupts,
    )
    .await?;
    Ok(ended.code())
}

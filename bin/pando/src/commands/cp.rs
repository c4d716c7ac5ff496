//! `pando cp`: files and directories into a sandbox and out of it.

use crate::cli::Cp;
use crate::copy::{self, Place};
use crate::exit::{self, Failure};
use crate::follow::Interrupts;
use pando_client::Client;

/// Copies; an interrupt leaves nothing half-written under the destination's name.
pub(super) async fn cp(client: Client, flags: Cp) -> anyhow::Result<u8> {
    let mut interrupts = Interrupts::catch()?;
    tokio::select! {
        copied = copy(&client, &flags) => copied.map(|()| exit::DONE),
        signal = interrupts.next() => Ok(exit::of_signal(signal)),
    }
}

async fn copy(client: &Client, flags: &Cp) -> anyhow::Result<()> {
    let user = flags.user.as_deref();
    match (
        Place::parse(&flags.source),
        Place::parse(&flags.destination),
    ) {
        (Place::Here(from), Place::There { sandbox, path }) => {
            copy::upload(client, &from, &sandbox, &path, user).await
        }
        (Place::There { sandbox, path }, Place::Here(to)) => {
            copy::download(client, &sandbox, &path, &to, user).await
        }
        (Place::Here(_), Place::Here(_)) => {
            let failure = Failure::usage("neither of the two is in a sandbox");
            Err(failure.hint("write ID:PATH for the one that is").into())
        }
        (Place::There { .. }, Place::There { .. }) => {
            Err(Failure::usage("one of the two must be on this machine").into())
        }
    }
}

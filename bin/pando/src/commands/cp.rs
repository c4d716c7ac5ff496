//! `pando cp`: files and directories into a sandbox and out of it.

use crate::cli::Cp;
use crate::copy::{self, Place};
use crate::exit::{self, Failure};
use pando_client::Client;

/// Copies.
pub(super) async fn cp(client: Client, flags: Cp) -> anyhow::Result<u8> {
    let user = flags.user.as_deref();
    match (Place::parse(&flags.source), Place::parse(&flags.destination)) {
        (Place::Here(from), Place::There { sandbox, path }) => {
            copy::upload(&client, &from, &sandbox, &path, user).await?;
        }
        (Place::There { sandbox, path }, Place::Here(to)) => {
            copy::download(&client, &sandbox, &path, &to, user).await?;
        }
        (Place::Here(_), Place::Here(_)) => {
            let failure = Failure::usage("neither of the two is in a sandbox");
            return Err(failure.hint("write ID:PATH for the one that is").into());
        }
        (Place::There { .. }, Place::There { .. }) => {
            return Err(Failure::usage("one of the two must be on this machine").into());
        }
    }
    Ok(exit::DONE)
}

//! `pando events`: the journal.

use crate::cli::Events;
use crate::exit;
use crate::output;
use pando_client::Client;
use std::time::Duration;

/// Events asked for at once.
const PAGE: u32 = 1000;

/// How often `--follow` asks for more.
const PAUSE: Duration = Duration::from_millis(500);

/// Shows events, the oldest first.
pub(super) async fn events(client: Client, flags: Events) -> anyhow::Result<u8> {
    let mut after = flags.after;
    loop {
        let events = client.events(after, PAGE).await?;
        for event in &events {
            after = after.max(event.sequence);
            if flags.json {
                output::line(&serde_json::to_string(event)?);
            } else {
                let (sequence, at, kind) = (event.sequence, &event.at, &event.kind);
                output::line(
                    format!(
                        "{sequence:>6}  {at}  {kind:<20}  {}  {}",
                        event.subject, event.detail
                    )
                    .trim_end(),
                );
            }
        }
        let more = events.len() == PAGE as usize;
        if !more && !flags.follow {
            return Ok(exit::DONE);
        }
        if !more {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

//! `pando events`: the journal.

use crate::cli::Events;
use crate::exit;
use crate::output;
use futures::StreamExt as _;
use pando_client::{Client, EventFilter, api};

/// Events asked for at once.
const PAGE: u32 = 1000;

/// Shows events, the oldest first.
pub(super) async fn events(client: Client, flags: Events) -> anyhow::Result<u8> {
    let mut filter = EventFilter {
        after: flags.after,
        sandbox: flags.sandbox,
        kind: flags.kind,
    };
    if flags.follow {
        let mut events = client.follow_events(filter);
        while let Some(event) = events.next().await {
            show(&event?, flags.json)?;
        }
        return Ok(exit::DONE);
    }
    loop {
        let events = client.events(&filter, PAGE).await?;
        for event in &events {
            filter.after = filter.after.max(event.sequence);
            show(event, flags.json)?;
        }
        if events.len() < PAGE as usize {
            return Ok(exit::DONE);
        }
    }
}

fn show(event: &api::Event, json: bool) -> anyhow::Result<()> {
    if json {
        output::line(&serde_json::to_string(event)?);
        return Ok(());
    }
    let (sequence, at, kind) = (event.sequence, &event.at, &event.kind);
    let (subject, detail) = (&event.subject, &event.detail);
    output::line(format!("{sequence:>6}  {at}  {kind:<20}  {subject}  {detail}").trim_end());
    Ok(())
}

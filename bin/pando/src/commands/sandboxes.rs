//! `pando ls`, `inspect`, `rm`, `start`: sandboxes as a whole.

use super::{remove_each, timeout};
use crate::cli::{List, Many, One};
use crate::exit;
use crate::output;
use pando_client::Client;
use pando_client::api::Sandbox;
use std::time::SystemTime;

/// Lists sandboxes.
pub(super) async fn ls(client: Client, flags: List) -> anyhow::Result<u8> {
    let sandboxes = match flags.quiet {
        true => client.list().await?,
        false => client.list_with_usage().await?,
    };
    if flags.json {
        output::json(&sandboxes)?;
    } else if flags.quiet {
        sandboxes
            .iter()
            .for_each(|sandbox| output::line(&sandbox.id));
    } else {
        let rows: Vec<_> = sandboxes.iter().map(row).collect();
        output::table(
            &[
                "ID", "NAME", "STATE", "TEMPLATE", "CPUS", "MEMORY", "USED", "CPU", "DISK", "NET",
                "AGE", "EXPIRES",
            ],
            &rows,
        );
    }
    Ok(exit::DONE)
}

fn row(sandbox: &Sandbox) -> Vec<String> {
    let usage = sandbox.usage.unwrap_or_default();
    vec![
        sandbox.id.clone(),
        sandbox.name.clone().unwrap_or_default(),
        sandbox.state.clone(),
        sandbox.template.clone(),
        sandbox.cpus.to_string(),
        format!("{} MiB", sandbox.memory_mib),
        output::bytes(usage.memory_bytes),
        format!("{} s", usage.cpu_ms / 1000),
        output::bytes(usage.disk_bytes),
        output::bytes(usage.net_sent_bytes + usage.net_received_bytes),
        age_since(&sandbox.created_at),
        timeout::brief(sandbox),
    ]
}

/// How long ago an RFC 3339 time was.
pub(super) fn age_since(timestamp: &str) -> String {
    let Ok(then) = timestamp.parse::<jiff::Timestamp>() else {
        return "?".to_owned();
    };
    let elapsed = SystemTime::now()
        .duration_since(then.into())
        .unwrap_or_default();
    output::age(elapsed.as_secs())
}

/// Describes a sandbox.
pub(super) async fn inspect(client: Client, flags: One) -> anyhow::Result<u8> {
    output::json(&client.get(&flags.id).await?)?;
    Ok(exit::DONE)
}

/// Starts a stopped sandbox.
pub(super) async fn start(client: Client, flags: One) -> anyhow::Result<u8> {
    output::line(&client.start(&flags.id).await?.id);
    Ok(exit::DONE)
}

/// Removes sandboxes, all that can be; fails if one cannot.
pub(super) async fn rm(client: Client, flags: Many) -> anyhow::Result<u8> {
    remove_each(&flags.ids, async |id| client.remove(id).await).await
}

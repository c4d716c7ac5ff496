//! `pando status`: what the daemon is doing.

use crate::cli::Json;
use crate::exit;
use crate::output;
use pando_client::Client;

/// Shows it.
pub(super) async fn status(client: Client, flags: Json) -> anyhow::Result<u8> {
    let status = client.status().await?;
    if flags.json {
        output::json(&status)?;
        return Ok(exit::DONE);
    }
    let counts = status.sandboxes.iter().filter(|(_, count)| **count > 0);
    let counts = counts
        .map(|(state, count)| format!("{count} {state}"))
        .collect::<Vec<_>>()
        .join(", ");
    let rows = [
        (
            "daemon",
            format!(
                "pando {} at {}, process {}",
                status.version,
                client.url(),
                status.pid
            ),
        ),
        ("up", output::age(status.uptime_s)),
        ("vmm", status.vmm),
        (
            "accelerator",
            format!("{} ({})", status.accelerator, status.accelerator_reason),
        ),
        (
            "sandboxes",
            if counts.is_empty() {
                "none".to_owned()
            } else {
                counts
            },
        ),
    ];
    rows.iter()
        .for_each(|(name, value)| output::line(&format!("{name:<12} {value}")));
    Ok(exit::DONE)
}

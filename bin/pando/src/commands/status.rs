//! `pando status`: what the daemon is doing.

use crate::cli::Json;
use crate::exit;
use crate::output;
use pando_client::Client;
use pando_client::api::Pool;

/// What waits, a row for each template and size.
fn pool(pool: &Pool) -> Vec<(&'static str, String)> {
    let warm = pool.slots.iter().filter(|slots| slots.kind == "warm");
    let mut rows: Vec<_> = warm
        .map(|slots| {
            let template = slots.template.as_deref().unwrap_or("any template");
            let text = format!(
                "{} of {} clones of {template} with {} CPU, {} MiB",
                slots.waiting, slots.wanted, slots.cpus, slots.memory_mib
            );
            ("waiting", text)
        })
        .collect();
    if let Some(limit) = &pool.limited_by {
        rows.push(("", format!("fewer than wanted: {limit}")));
    }
    rows
}

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
        .chain(&pool(&status.pool))
        .for_each(|(name, value)| output::line(&format!("{name:<12} {value}")));
    Ok(exit::DONE)
}

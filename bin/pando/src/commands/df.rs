//! `pando df`: where disk space has gone.

use crate::cli::Json;
use crate::exit;
use crate::output;
use pando_client::Client;
use pando_client::api::DiskUsage;

/// Shows it.
pub(super) async fn df(client: Client, flags: Json) -> anyhow::Result<u8> {
    let usage = client.disk_usage().await?;
    if flags.json {
        output::json(&usage)?;
    } else {
        output::table(&["WHAT", "SIZE", "LIMIT"], &rows(&usage));
    }
    Ok(exit::DONE)
}

fn rows(usage: &DiskUsage) -> Vec<Vec<String>> {
    [
        ("snapshots", usage.snapshots_bytes, None),
        ("sandboxes", usage.sandboxes_bytes, None),
        (
            "materialized",
            usage.materialized_bytes,
            Some(usage.materialized_limit_bytes),
        ),
        ("bakes", usage.bakes_bytes, None),
        ("images", usage.images_bytes, None),
        ("free", usage.free_bytes, None),
    ]
    .into_iter()
    .map(|(what, bytes, limit)| {
        vec![
            what.to_owned(),
            output::bytes(bytes),
            limit.map(output::bytes).unwrap_or_default(),
        ]
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_put_together_has_a_limit() {
        let rows = rows(&DiskUsage {
            snapshots_bytes: 1,
            sandboxes_bytes: 2,
            materialized_bytes: 1 << 20,
            materialized_limit_bytes: 1 << 30,
            bakes_bytes: 3,
            images_bytes: 4,
            free_bytes: 5 << 30,
        });
        assert_eq!(rows[2], ["materialized", "1.0 MiB", "1.0 GiB"]);
        assert_eq!(rows[5], ["free", "5.0 GiB", ""]);
        assert_eq!(rows.iter().filter(|row| !row[2].is_empty()).count(), 1);
    }
}

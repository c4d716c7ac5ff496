//! `pando snapshot`, `fork`, `rollback`, `pause`, `resume`: states that are kept, and gone back to.

use super::sandboxes::age_since;
use super::{for_each, remove_each};
use crate::cli::{
    Fork, Many, ManySnapshots, Rollback, Snapshot, SnapshotCommand, SnapshotList, SnapshotShow,
    Span, TakeSnapshot,
};
use crate::exit::{self, Failure};
use crate::output;
use pando_client::Client;
use pando_client::api::{self, ForkedChild};
use std::collections::BTreeMap;

/// Takes a snapshot, or looks after those there are.
pub(super) async fn snapshot(client: Client, flags: Snapshot) -> anyhow::Result<u8> {
    match flags.command() {
        Some(SnapshotCommand::Create(flags)) => take(&client, flags).await,
        Some(SnapshotCommand::Ls(flags)) => ls(&client, flags).await,
        Some(SnapshotCommand::Show(flags)) => show(&client, flags).await,
        Some(SnapshotCommand::Rm(flags)) => rm(&client, flags).await,
        None => Err(Failure::usage("a sandbox, or the options of a new snapshot, cannot stand before a command")
            .hint("`pando snapshot ID` takes a snapshot; `pando snapshot ls`, `show` and `rm` look after those there are")
            .into()),
    }
}

async fn take(client: &Client, flags: TakeSnapshot) -> anyhow::Result<u8> {
    let wanted = api::TakeSnapshotRequest {
        name: flags.name,
        kind: flags.disk.then(|| "disk".to_owned()),
        labels: flags.label.into_iter().collect(),
        note: flags.note.unwrap_or_default(),
    };
    let taken = client
        .snapshot(&flags.id.unwrap_or_default(), &wanted)
        .await?;
    output::line(&taken.id);
    output::note(&cost(taken.pause_ms, taken.durable_ms, taken.bytes));
    if !taken.clean {
        output::note(
            "warning: the guest did not come to rest in time; what it was sending or receiving is lost in children",
        );
    }
    Ok(exit::DONE)
}

/// What a snapshot cost, in a line.
fn cost(pause_ms: f64, durable_ms: f64, bytes: u64) -> String {
    format!(
        "paused {}, durable after {}, {}",
        output::milliseconds(pause_ms),
        output::milliseconds(durable_ms),
        output::bytes(bytes)
    )
}

async fn ls(client: &Client, flags: SnapshotList) -> anyhow::Result<u8> {
    let labels: Vec<_> = flags
        .label
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let snapshots = client.snapshots(&labels).await?;
    if flags.list.json {
        output::json(&snapshots)?;
    } else if flags.list.quiet {
        snapshots
            .iter()
            .for_each(|snapshot| output::line(&snapshot.id));
    } else {
        let rows: Vec<_> = snapshots.iter().map(row).collect();
        output::table(
            &["ID", "NAME", "KIND", "SANDBOX", "PARENT", "SIZE", "AGE"],
            &rows,
        );
    }
    Ok(exit::DONE)
}

fn row(snapshot: &api::Snapshot) -> Vec<String> {
    vec![
        snapshot.id.clone(),
        snapshot.name.clone().unwrap_or_default(),
        snapshot.kind.clone(),
        snapshot.sandbox.clone(),
        snapshot.parent.clone().unwrap_or_default(),
        output::bytes(snapshot.bytes),
        age_since(&snapshot.created_at),
    ]
}

async fn show(client: &Client, flags: SnapshotShow) -> anyhow::Result<u8> {
    let snapshot = client.get_snapshot(&flags.snapshot).await?;
    if flags.json {
        output::json(&snapshot)?;
    } else {
        for (name, value) in description(&snapshot) {
            output::line(format!("{name:<9} {value}").trim_end());
        }
    }
    Ok(exit::DONE)
}

fn description(snapshot: &api::Snapshot) -> Vec<(&'static str, String)> {
    let labels: Vec<_> = snapshot
        .labels
        .iter()
        .map(|(name, value)| output::printable(&format!("{name}={value}")))
        .collect();
    let cost = cost(snapshot.pause_ms, snapshot.durable_ms, snapshot.bytes);
    let rest = if snapshot.clean {
        ""
    } else {
        "; the guest did not come to rest in time"
    };
    vec![
        ("id", snapshot.id.clone()),
        ("name", snapshot.name.clone().unwrap_or_default()),
        ("kind", snapshot.kind.clone()),
        ("sandbox", snapshot.sandbox.clone()),
        ("parent", snapshot.parent.clone().unwrap_or_default()),
        ("template", snapshot.template.clone()),
        (
            "size",
            format!("{} CPU, {} MiB", snapshot.cpus, snapshot.memory_mib),
        ),
        ("labels", labels.join(", ")),
        ("note", output::printable(&snapshot.note)),
        ("taken", snapshot.created_at.clone()),
        (
            "cost",
            format!("{cost}, {} pages of memory{rest}", snapshot.dirty_pages),
        ),
    ]
}

async fn rm(client: &Client, flags: ManySnapshots) -> anyhow::Result<u8> {
    remove_each(&flags.snapshots, async |snapshot| {
        client.remove_snapshot(snapshot).await
    })
    .await
}

/// Makes children of a sandbox; fails if one could not be made.
pub(super) async fn fork(client: Client, flags: Fork) -> anyhow::Result<u8> {
    let wanted = api::ForkRequest {
        count: Some(flags.count),
        labels: flags.label.into_iter().collect(),
        env: flags.env.into_iter().collect(),
        timeout_s: flags.lifetime.timeout.map(Span::seconds),
        idle_timeout_s: flags.lifetime.sleep.idle_timeout.map(Span::seconds),
        on_timeout: flags.lifetime.sleep.on_timeout,
        auto_resume: flags.lifetime.sleep.auto_resume,
    };
    let forked = client.fork(&flags.id, &wanted).await?;
    if flags.json {
        output::json(&forked)?;
    } else {
        for child in &forked.children {
            if let ForkedChild::Sandbox(sandbox) = child {
                output::line(&sandbox.id);
            }
        }
    }
    output::note(&cost(forked.pause_ms, forked.durable_ms, forked.bytes));
    let failures = failures(&forked.children);
    failures.iter().for_each(|failure| output::note(failure));
    Ok(if failures.is_empty() {
        exit::DONE
    } else {
        exit::FAILED
    })
}

/// Why children are missing, each reason once: with a thousand of them it is mostly the same.
fn failures(children: &[ForkedChild]) -> Vec<String> {
    let mut reasons: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
    for child in children {
        if let ForkedChild::Error(error) = child {
            *reasons
                .entry((&error.message, error.hint.as_deref()))
                .or_default() += 1;
        }
    }
    let told = reasons.into_iter().map(|((message, hint), count)| {
        let hint = hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
        format!(
            "error: {count} of {} children could not be made: {message}{hint}",
            children.len()
        )
    });
    told.collect()
}

/// Puts a sandbox back into a kept state.
pub(super) async fn rollback(client: Client, flags: Rollback) -> anyhow::Result<u8> {
    let wanted = api::RollbackRequest {
        snapshot: flags.snapshot,
        save: flags.save,
    };
    let done = client.roll_back(&flags.id, &wanted).await?;
    let back = format!("{} is back in {}", flags.id, wanted.snapshot);
    match (&done.saved, &wanted.save) {
        (Some(saved), Some(name)) => {
            output::line(&saved.id);
            output::note(&format!("{back}; what it left is kept as {name}"));
        }
        _ => output::note(&back),
    }
    Ok(exit::DONE)
}

/// Puts sandboxes on disk, all that can be; fails if one cannot.
pub(super) async fn pause(client: Client, flags: Many) -> anyhow::Result<u8> {
    for_each(&flags.ids, async |id| {
        client.pause(id).await.map(|sandbox| sandbox.id)
    })
    .await
}

/// Lets paused sandboxes go on, all that can; fails if one cannot.
pub(super) async fn resume(client: Client, flags: Many) -> anyhow::Result<u8> {
    for_each(&flags.ids, async |id| {
        client.resume(id).await.map(|sandbox| sandbox.id)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(message: &str, hint: Option<&str>) -> ForkedChild {
        ForkedChild::Error(api::ForkError {
            code: "no_space".to_owned(),
            message: message.to_owned(),
            hint: hint.map(str::to_owned),
        })
    }

    #[test]
    fn a_cost_is_a_line() {
        assert_eq!(
            cost(6.24, 80.0, 8_493_466),
            "paused 6.2 ms, durable after 80 ms, 8.1 MiB"
        );
    }

    #[test]
    fn each_reason_why_children_are_missing_is_told_once() {
        let children = [
            failed("no space left on the host: x", Some("free some")),
            failed("a fault", None),
            failed("no space left on the host: x", Some("free some")),
        ];
        assert_eq!(
            failures(&children),
            [
                "error: 1 of 3 children could not be made: a fault",
                "error: 2 of 3 children could not be made: no space left on the host: x\n  hint: free some"
            ]
        );
        assert!(failures(&[]).is_empty());
    }

    #[test]
    fn a_description_leaves_out_nothing() {
        let snapshot = api::Snapshot {
            id: "n1".to_owned(),
            name: Some("green".to_owned()),
            kind: "full".to_owned(),
            sandbox: "s1".to_owned(),
            parent: None,
            template: "base".to_owned(),
            cpus: 2,
            memory_mib: 512,
            labels: BTreeMap::from([("a".to_owned(), "1\n2".to_owned())]),
            note: "tests pass".to_owned(),
            created_at: "2026-01-01T00:00:00.000Z".to_owned(),
            pause_ms: 6.0,
            durable_ms: 80.0,
            bytes: 1 << 20,
            dirty_pages: 256,
            clean: false,
        };
        let lines: Vec<_> = description(&snapshot)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(
            lines.join("\n"),
            "id: n1\nname: green\nkind: full\nsandbox: s1\nparent: \ntemplate: base\nsize: 2 CPU, 512 MiB\n\
             labels: a=1\\n2\nnote: tests pass\ntaken: 2026-01-01T00:00:00.000Z\n\
             cost: paused 6.0 ms, durable after 80 ms, 1.0 MiB, 256 pages of memory; the guest did not come to rest in time"
        );
    }
}

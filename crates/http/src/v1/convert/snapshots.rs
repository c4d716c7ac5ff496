//! Between the API's types and the engine's: snapshots, forks, rollback, tree, disk usage.

use super::{check_env, engine, invalid, lifetime, name, sandbox, timestamp};
use crate::error::{ApiError, Refusal};
use crate::urls::Urls;
use pando_api as api;
use pando_engine::EngineError;
use pando_types::SnapshotKind;
use pando_types::limits::{ENV_BYTES, FORK_CHILDREN, NOTE_BYTES};
use std::collections::BTreeMap;

/// A snapshot to take.
pub(in crate::v1) fn take(
    request: api::TakeSnapshotRequest,
) -> Result<engine::TakeSnapshot, ApiError> {
    check_size("labels", &request.labels)?;
    if request.note.len() > NOTE_BYTES {
        return Err(invalid(format!(
            "`note` has more than {} KiB",
            NOTE_BYTES >> 10
        )));
    }
    Ok(engine::TakeSnapshot {
        name: name(request.name)?,
        kind: kind(request.kind.as_deref())?,
        labels: request.labels,
        note: request.note,
    })
}

fn kind(word: Option<&str>) -> Result<SnapshotKind, ApiError> {
    match word {
        None => Ok(SnapshotKind::default()),
        Some(word) => word.parse().map_err(|()| {
            invalid(format!(
                "`kind` cannot be `{word}`: choose `full` or `disk`"
            ))
        }),
    }
}

/// The children to make.
pub(in crate::v1) fn fork(request: api::ForkRequest) -> Result<engine::Fork, ApiError> {
    let count = request.count.unwrap_or(1);
    if !(1..=FORK_CHILDREN).contains(&count) {
        return Err(invalid(format!(
            "`count` cannot be {count}: choose 1 to {FORK_CHILDREN}"
        )));
    }
    check_size("labels", &request.labels)?;
    check_size("env", &request.env)?;
    check_env(&request.env)?;
    Ok(engine::Fork {
        lifetime: lifetime::of_children(&request)?,
        count,
        labels: request.labels,
        env: request.env,
    })
}

fn check_size(what: &str, map: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ENV_BYTES {
        return Err(invalid(format!(
            "`{what}` has more than {} KiB",
            ENV_BYTES >> 10
        )));
    }
    Ok(())
}

/// The state to go back to.
pub(in crate::v1) fn rollback(request: api::RollbackRequest) -> Result<engine::Rollback, ApiError> {
    Ok(engine::Rollback {
        snapshot: request.snapshot,
        save: name(request.save)?,
    })
}

/// The labels that a listing is to have: the query `label=NAME=VALUE`, any number of times.
pub(in crate::v1) fn label_filter(
    query: Vec<(String, String)>,
) -> Result<Vec<(String, String)>, ApiError> {
    let one = |(parameter, value): (String, String)| {
        if parameter != "label" {
            return Err(invalid(format!(
                "the query is wrong: unknown field `{parameter}`, expected `label`"
            )));
        }
        match value.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(invalid(format!("`label` is NAME=VALUE, not `{value}`"))),
        }
    };
    query.into_iter().map(one).collect()
}

/// Whether it has all of these labels.
pub(in crate::v1) fn has_labels(snapshot: &engine::Snapshot, wanted: &[(String, String)]) -> bool {
    wanted
        .iter()
        .all(|(name, value)| snapshot.labels.get(name) == Some(value))
}

/// A snapshot as the API says it.
pub(in crate::v1) fn snapshot(snapshot: engine::Snapshot) -> api::Snapshot {
    api::Snapshot {
        id: snapshot.id.to_string(),
        name: snapshot.name.map(|name| name.to_string()),
        kind: snapshot.kind.to_string(),
        sandbox: snapshot.sandbox.to_string(),
        parent: snapshot.parent.map(|parent| parent.to_string()),
        template: snapshot.template.to_string(),
        cpus: snapshot.size.cpus(),
        memory_mib: snapshot.size.memory_mib(),
        labels: snapshot.labels,
        note: snapshot.note,
        created_at: timestamp(snapshot.created_at),
        pause_ms: snapshot.cost.pause_ms,
        durable_ms: snapshot.cost.durable_ms,
        bytes: snapshot.cost.bytes,
        dirty_pages: snapshot.cost.dirty_pages,
        clean: snapshot.cost.clean,
    }
}

/// What came of a fork as the API says it.
pub(in crate::v1) fn forked(urls: &Urls, forked: engine::Forked) -> api::Forked {
    api::Forked {
        pause_ms: forked.cost.pause_ms,
        durable_ms: forked.cost.durable_ms,
        bytes: forked.cost.bytes,
        dirty_pages: forked.cost.dirty_pages,
        children: forked
            .children
            .into_iter()
            .map(|made| child(urls, made))
            .collect(),
    }
}

fn child(urls: &Urls, child: Result<engine::Sandbox, EngineError>) -> api::ForkedChild {
    match child {
        Ok(made) => api::ForkedChild::Sandbox(Box::new(sandbox(urls, made))),
        Err(error) => {
            let refusal = Refusal::from(&ApiError::from(error));
            api::ForkedChild::Error(refusal.part())
        }
    }
}

/// A rollback's outcome as the API says it.
pub(in crate::v1) fn rolled_back(urls: &Urls, done: engine::RolledBack) -> api::RolledBack {
    api::RolledBack {
        sandbox: sandbox(urls, done.sandbox),
        saved: done.saved.map(snapshot),
    }
}

/// The tree as the API says it.
pub(in crate::v1) fn tree(urls: &Urls, tree: engine::Tree) -> api::Tree {
    api::Tree {
        snapshots: tree.snapshots.into_iter().map(snapshot).collect(),
        sandboxes: tree
            .sandboxes
            .into_iter()
            .map(|one| sandbox(urls, one))
            .collect(),
    }
}

/// Disk usage as the API says it.
pub(in crate::v1) fn disk_usage(usage: engine::DiskUsage) -> api::DiskUsage {
    api::DiskUsage {
        snapshots_bytes: usage.snapshots,
        sandboxes_bytes: usage.sandboxes,
        materialized_bytes: usage.materialized,
        materialized_limit_bytes: usage.materialized_limit,
        bakes_bytes: usage.bakes,
        images_bytes: usage.images,
        free_bytes: usage.free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_types::{Size, SnapshotId};
    use std::time::SystemTime;

    fn message(result: Result<impl Sized, ApiError>) -> String {
        result.err().expect("refused").to_string()
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn kept(pairs: &[(&str, &str)]) -> engine::Snapshot {
        engine::Snapshot {
            id: SnapshotId::from_random([1; 19]),
            name: None,
            kind: SnapshotKind::Disk,
            sandbox: pando_types::SandboxId::from_random([2; 19]),
            parent: Some(SnapshotId::from_random([3; 19])),
            template: "base".parse().unwrap(),
            size: Size::DEFAULT,
            labels: labels(pairs),
            note: "n".to_owned(),
            created_at: SystemTime::UNIX_EPOCH,
            cost: engine::SnapshotCost {
                pause_ms: 6.25,
                durable_ms: 80.0,
                bytes: 1 << 20,
                dirty_pages: 256,
                clean: true,
            },
        }
    }

    #[test]
    fn an_empty_request_is_a_full_snapshot_without_a_name() {
        let wanted = take(api::TakeSnapshotRequest::default()).unwrap();
        assert_eq!((wanted.name, wanted.kind), (None, SnapshotKind::Full));
    }

    #[test]
    fn what_is_wrong_with_a_snapshots_request_is_named() {
        let none = api::TakeSnapshotRequest::default;
        assert_eq!(
            message(take(api::TakeSnapshotRequest {
                kind: Some("memory".to_owned()),
                ..none()
            })),
            "`kind` cannot be `memory`: choose `full` or `disk`"
        );
        for (bad, reason) in [
            ("../x", "is not a name"),
            ("n1234567890123456789", "looks like an id"),
            ("ls", "a command's word"),
            (&"x".repeat(200), "is not a name"),
        ] {
            let request = api::TakeSnapshotRequest {
                name: Some(bad.to_owned()),
                ..none()
            };
            assert!(message(take(request)).contains(reason), "{bad}");
        }
        assert_eq!(
            message(take(api::TakeSnapshotRequest {
                labels: labels(&[("a", &"x".repeat(ENV_BYTES))]),
                ..none()
            })),
            "`labels` has more than 128 KiB"
        );
        assert_eq!(
            message(take(api::TakeSnapshotRequest {
                note: "x".repeat(NOTE_BYTES + 1),
                ..none()
            })),
            "`note` has more than 4 KiB"
        );
    }

    #[test]
    fn a_fork_has_one_to_a_thousand_children() {
        let count = |count| {
            fork(api::ForkRequest {
                count,
                ..Default::default()
            })
        };
        assert_eq!(count(None).unwrap().count, 1);
        assert_eq!(count(Some(1000)).unwrap().count, 1000);
        for bad in [0, 1001, u32::MAX] {
            assert_eq!(
                message(count(Some(bad))),
                format!("`count` cannot be {bad}: choose 1 to 1000")
            );
        }
        let request = api::ForkRequest {
            env: labels(&[("A=B", "")]),
            ..Default::default()
        };
        assert_eq!(message(fork(request)), "`A=B` cannot be a variable's name");
    }

    #[test]
    fn a_rollback_may_keep_what_it_leaves() {
        let request = |save: Option<&str>| api::RollbackRequest {
            snapshot: "green".to_owned(),
            save: save.map(str::to_owned),
        };
        let wanted = rollback(request(Some("before"))).unwrap();
        assert_eq!(wanted.snapshot, "green");
        assert_eq!(wanted.save.unwrap().as_str(), "before");
        assert!(message(rollback(request(Some("a/b")))).contains("is not a name"));
    }

    #[test]
    fn a_listing_is_filtered_by_labels() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let query = vec![pair("label", "a=1"), pair("label", "b=x=y")];
        let wanted = label_filter(query).unwrap();
        assert_eq!(wanted, [pair("a", "1"), pair("b", "x=y")]);
        assert!(has_labels(&kept(&[("a", "1"), ("b", "x=y")]), &wanted));
        assert!(!has_labels(&kept(&[("a", "1")]), &wanted));
        assert!(has_labels(&kept(&[]), &[]));
        assert_eq!(
            message(label_filter(vec![pair("label", "a")])),
            "`label` is NAME=VALUE, not `a`"
        );
        assert_eq!(
            message(label_filter(vec![pair("lable", "a=1")])),
            "the query is wrong: unknown field `lable`, expected `label`"
        );
    }

    #[test]
    fn a_snapshot_is_told_with_what_it_cost() {
        let told = snapshot(kept(&[("a", "1")]));
        assert_eq!(
            (told.kind.as_str(), told.cpus, told.memory_mib),
            ("disk", 1, 512)
        );
        assert_eq!(told.parent.unwrap().as_bytes()[0], b'n');
        assert_eq!(told.created_at, "1970-01-01T00:00:00.000Z");
        assert_eq!(
            (told.pause_ms, told.bytes, told.dirty_pages, told.clean),
            (6.25, 1 << 20, 256, true)
        );
    }

    #[test]
    fn a_child_that_could_not_be_made_has_a_code_and_a_hint() {
        let outcome = forked(
            &Urls::new(None, 1),
            engine::Forked {
                cost: engine::SnapshotCost::default(),
                children: vec![Err(EngineError::NoSpace("x".to_owned()))],
            },
        );
        let [api::ForkedChild::Error(error)] = &outcome.children[..] else {
            panic!("{outcome:?}")
        };
        assert_eq!(error.code, "no_space");
        assert!(error.hint.as_ref().unwrap().contains("#no_space"));
    }
}

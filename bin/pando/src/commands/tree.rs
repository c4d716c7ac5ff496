//! `pando tree`: snapshots and sandboxes, drawn below what they came from.
//!
//! ```text
//! base
//! ├─ n4k2m9x7q1w8e3r6t5y0 green (full, 8.1 MiB)
//! │  ├─ s7x1q0w8e3r6t5y0k2m9 web (running)
//! │  └─ n9x7q1w8e3r6t5y0k2m4 (removed)
//! │     └─ s1q0w8e3r6t5y0k2m9x7 (paused)
//! └─ s0w8e3r6t5y0k2m9x7q1 (running)
//! ```
//! The roots are templates. A parent that is gone is drawn below the template of its children: what
//! it came from itself went with it.

use crate::cli::Json;
use crate::exit;
use crate::output;
use pando_client::Client;
use pando_client::api::{Sandbox, Snapshot, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// Draws it.
pub(super) async fn tree(client: Client, flags: Json) -> anyhow::Result<u8> {
    let tree = client.tree().await?;
    if flags.json {
        output::json(&tree)?;
    } else {
        output::data(&draw(&tree));
    }
    Ok(exit::DONE)
}

/// What something is drawn below: a template, or a snapshot by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Parent<'a> {
    Template(&'a str),
    Snapshot(&'a str),
}

/// A line to be: what it says, and the snapshot it is, if it can have something below.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node<'a> {
    created_at: &'a str,
    label: String,
    snapshot: Option<&'a str>,
}

type Children<'a> = BTreeMap<Parent<'a>, BTreeSet<Node<'a>>>;

/// The whole drawing. What stands beside each other is in the order of its making.
fn draw(tree: &Tree) -> String {
    let children = children(tree);
    let mut text = String::new();
    for parent in children.keys() {
        if let Parent::Template(template) = parent {
            text.push_str(template);
            text.push('\n');
            draw_below(&children, *parent, &mut text);
        }
    }
    text
}

/// Draws what is below a root. A chain of snapshots may be long, so nothing here calls itself.
fn draw_below<'c>(children: &'c Children<'c>, root: Parent<'c>, text: &mut String) {
    let mut waiting = Vec::new();
    wait(children, root, "", &mut waiting);
    while let Some((node, prefix, is_last)) = waiting.pop() {
        let (corner, line) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        text.push_str(&format!("{prefix}{corner}{}\n", node.label));
        if let Some(snapshot) = node.snapshot {
            let prefix = format!("{prefix}{line}");
            wait(children, Parent::Snapshot(snapshot), &prefix, &mut waiting);
        }
    }
}

/// Puts what is below a parent on the pile: the oldest on top, with what stands before it, and
/// whether it is the last there.
fn wait<'c>(
    children: &'c Children<'c>,
    parent: Parent<'c>,
    prefix: &str,
    waiting: &mut Vec<(&'c Node<'c>, String, bool)>,
) {
    let below = children.get(&parent).into_iter().flatten().rev();
    waiting.extend(
        below
            .enumerate()
            .map(|(index, node)| (node, prefix.to_owned(), index == 0)),
    );
}

/// What is below each parent.
fn children(tree: &Tree) -> Children<'_> {
    let known: BTreeSet<&str> = tree.snapshots.iter().map(|one| &*one.id).collect();
    let mut children = Children::new();
    let snapshots = tree.snapshots.iter().map(|snapshot| {
        let node = Node {
            created_at: &snapshot.created_at,
            label: snapshot_label(snapshot),
            snapshot: Some(&snapshot.id),
        };
        (&*snapshot.template, snapshot.parent.as_deref(), node)
    });
    let sandboxes = tree.sandboxes.iter().map(|sandbox| {
        let node = Node {
            created_at: &sandbox.created_at,
            label: sandbox_label(sandbox),
            snapshot: None,
        };
        (&*sandbox.template, sandbox.parent.as_deref(), node)
    });
    for (template, parent, node) in snapshots.chain(sandboxes) {
        let parent = match parent {
            None => Parent::Template(template),
            Some(id) => {
                if !known.contains(id) {
                    let removed = children.entry(Parent::Template(template)).or_default();
                    removed.insert(removed_node(id));
                }
                Parent::Snapshot(id)
            }
        };
        children.entry(parent).or_default().insert(node);
    }
    children
}

/// A snapshot that is gone. It is older than all that came from it, and nothing more is known.
fn removed_node(id: &str) -> Node<'_> {
    Node {
        created_at: "",
        label: format!("{id} (removed)"),
        snapshot: Some(id),
    }
}

fn snapshot_label(snapshot: &Snapshot) -> String {
    let facts = format!("{}, {}", snapshot.kind, output::bytes(snapshot.bytes));
    label(&snapshot.id, snapshot.name.as_deref(), &facts)
}

fn sandbox_label(sandbox: &Sandbox) -> String {
    label(&sandbox.id, sandbox.name.as_deref(), &sandbox.state)
}

fn label(id: &str, name: Option<&str>, facts: &str) -> String {
    match name {
        Some(name) => format!("{id} {name} ({facts})"),
        None => format!("{id} ({facts})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn snapshot(id: &str, parent: Option<&str>, made: u32, more: Value) -> Value {
        let mut value = json!({
            "id": id, "name": null, "kind": "full", "sandbox": "s0", "parent": parent, "template": "base",
            "cpus": 1, "memory_mib": 512, "labels": {}, "note": "", "created_at": at(made), "pause_ms": 1.0,
            "durable_ms": 2.0, "bytes": 1024, "dirty_pages": 3, "clean": true,
        });
        merge(&mut value, more);
        value
    }

    fn sandbox(id: &str, parent: Option<&str>, made: u32, more: Value) -> Value {
        let mut value = json!({
            "id": id, "name": null, "state": "running", "state_reason": null, "template": "base", "parent": parent,
            "isolation": { "vmm": "", "accelerator": "tcg", "reason": "", "layers": [] }, "cpus": 1,
            "memory_mib": 512, "labels": {}, "egress": { "default": "allow", "allow": [], "deny": [] }, "created_at": at(made),
            "started_at": null, "url_template": "http://{port}-s.localhost:7000/", "timeout_s": null,
            "expires_at": null, "idle_timeout_s": null, "last_used_at": at(made), "on_timeout": "kill",
            "auto_resume": false,
        });
        merge(&mut value, more);
        value
    }

    fn at(minute: u32) -> String {
        format!("2026-01-01T00:{minute:02}:00.000Z")
    }

    fn merge(value: &mut Value, more: Value) {
        if let Value::Object(more) = more {
            value.as_object_mut().unwrap().extend(more);
        }
    }

    fn drawn(snapshots: &[Value], sandboxes: &[Value]) -> String {
        let tree = json!({ "snapshots": snapshots, "sandboxes": sandboxes });
        draw(&serde_json::from_value(tree).unwrap())
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert_eq!(drawn(&[], &[]), "");
    }

    #[test]
    fn everything_is_below_what_it_came_from_in_the_order_of_its_making() {
        let text = drawn(
            &[
                snapshot("n1", None, 1, json!({ "name": "green" })),
                snapshot("n2", Some("n1"), 3, json!({ "kind": "disk", "bytes": 0 })),
                snapshot("n3", None, 9, json!({ "template": "desktop" })),
            ],
            &[
                sandbox("s1", None, 0, json!({ "name": "web", "state": "stopped" })),
                sandbox("s2", Some("n1"), 2, json!({})),
                sandbox("s3", Some("n2"), 4, json!({ "state": "paused" })),
                sandbox("s4", Some("n1"), 5, json!({})),
            ],
        );
        assert_eq!(
            text,
            "base\n\
             ├─ s1 web (stopped)\n\
             └─ n1 green (full, 1.0 KiB)\n\
             \u{20}  ├─ s2 (running)\n\
             \u{20}  ├─ n2 (disk, 0 B)\n\
             \u{20}  │  └─ s3 (paused)\n\
             \u{20}  └─ s4 (running)\n\
             desktop\n\
             └─ n3 (full, 1.0 KiB)\n"
        );
    }

    #[test]
    fn a_parent_that_is_gone_is_shown_once_above_all_its_children() {
        let text = drawn(
            &[snapshot("n2", Some("n1"), 3, json!({}))],
            &[
                sandbox("s1", None, 1, json!({})),
                sandbox("s2", Some("n1"), 2, json!({})),
                sandbox("s3", Some("n2"), 4, json!({})),
            ],
        );
        assert_eq!(
            text,
            "base\n\
             ├─ n1 (removed)\n\
             │  ├─ s2 (running)\n\
             │  └─ n2 (full, 1.0 KiB)\n\
             │     └─ s3 (running)\n\
             └─ s1 (running)\n"
        );
    }

    #[test]
    fn a_long_chain_is_drawn_to_its_end() {
        let mut snapshots = vec![snapshot("n0", None, 0, json!({}))];
        for number in 1..2000 {
            let parent = format!("n{}", number - 1);
            snapshots.push(snapshot(&format!("n{number}"), Some(&parent), 0, json!({})));
        }
        let text = drawn(&snapshots, &[]);
        assert_eq!(text.lines().count(), 2001);
        assert!(text.lines().last().unwrap().contains("└─ n1999 "));
    }
}

//! QEMU's command line, from a sandbox's to our own.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What we talk to it over: QMP, and the guest's two ports.
pub(super) const SOCKETS: [&str; 3] = ["qmp", "ctl", "data"];

/// Where the guest's network card leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// Nowhere.
    None,
    /// QEMU's own gateway, `-netdev user`: the host is 10.0.2.2.
    User,
}

/// Where one of them is.
pub(super) fn socket(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

/// The file of the disk that is written.
pub(super) fn top_disk(arguments: &[String]) -> Option<PathBuf> {
    let nodes = arguments.iter().filter_map(|argument| parse(argument));
    let mut written = nodes.filter(|node| node["driver"] == "file" && node["read-only"] == false);
    written.next()?["filename"].as_str().map(PathBuf::from)
}

/// The same machine with files in another place, sockets of its own and no word on where it
/// is loaded from.
pub(super) fn rewrite(
    arguments: Vec<String>,
    slot: &Path,
    directory: &Path,
    network: Network,
) -> Vec<String> {
    let (slot, place) = (slot.display().to_string(), directory.display().to_string());
    let mut rewritten: Vec<String> = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == "-incoming" {
            arguments.next();
            continue;
        }
        rewritten.push(own(&argument.replace(&slot, &place), directory, network));
    }
    rewritten
}

fn own(argument: &str, directory: &Path, network: Network) -> String {
    for name in SOCKETS {
        if argument.starts_with(&format!("socket,id={name},")) {
            let path = socket(directory, name);
            return format!(
                "socket,id={name},path={},server=on,wait=off",
                path.display()
            );
        }
    }
    if argument.starts_with("socket,id=console,") {
        return "null,id=console".to_owned();
    }
    match parse(argument) {
        Some(mut node) => {
            own_node(&mut node, network);
            node.to_string()
        }
        None => argument.to_owned(),
    }
}

fn own_node(node: &mut Value, network: Network) {
    if node["type"] == "dgram" {
        *node = match network {
            Network::None => json!({ "type": "hubport", "id": node["id"], "hubid": 0 }),
            Network::User => json!({ "type": "user", "id": node["id"] }),
        };
    }
    if let Some(node) = node.as_object_mut() {
        // As QEMU does it when nobody says otherwise: what is saved is on the disk.
        node.remove("cache");
    }
}

/// An argument in JSON.
fn parse(argument: &str) -> Option<Value> {
    argument
        .starts_with('{')
        .then(|| serde_json::from_str(argument).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEIRS: [&str; 15] = [
        "/usr/bin/qemu",
        "-S",
        "-incoming",
        "defer",
        "-chardev",
        "socket,id=qmp,fd=3",
        "-chardev",
        "socket,id=console,fd=7",
        "-blockdev",
        r#"{"cache":{"no-flush":true},"driver":"file","filename":"/s/slot/disk.0","read-only":true}"#,
        "-blockdev",
        r#"{"cache":{"no-flush":true},"driver":"file","filename":"/s/slot/disk.1","read-only":false}"#,
        "-netdev",
        r#"{"id":"net","local":{"str":"6","type":"fd"},"type":"dgram"}"#,
        "-nodefaults",
    ];

    #[test]
    fn the_machine_stays_and_its_surroundings_are_our_own() {
        let theirs = THEIRS.map(str::to_owned).to_vec();
        assert_eq!(top_disk(&theirs), Some(PathBuf::from("/s/slot/disk.1")));
        let (slot, place) = (Path::new("/s/slot"), Path::new("/b"));
        let online = rewrite(theirs.clone(), slot, place, Network::User);
        assert!(online.contains(&r#"{"id":"net","type":"user"}"#.to_owned()));
        let ours = rewrite(theirs, slot, place, Network::None);
        assert_eq!(
            ours,
            [
                "/usr/bin/qemu",
                "-S",
                "-chardev",
                "socket,id=qmp,path=/b/qmp.sock,server=on,wait=off",
                "-chardev",
                "null,id=console",
                "-blockdev",
                r#"{"driver":"file","filename":"/b/disk.0","read-only":true}"#,
                "-blockdev",
                r#"{"driver":"file","filename":"/b/disk.1","read-only":false}"#,
                "-netdev",
                r#"{"hubid":0,"id":"net","type":"hubport"}"#,
                "-nodefaults",
            ]
        );
        assert_eq!(top_disk(&["-S".to_owned(), "{".to_owned()]), None);
    }
}

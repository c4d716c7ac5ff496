//! The smallest OCI bundles that run a program of this host.

use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs in the root file system.
const PROGRAMS: [&str; 3] = ["true", "sleep", "dd"];

/// Makes the root file system that all bundles share: the programs and the libraries
/// that the host's loader finds for them.
pub(super) fn make_root(root: &Path) -> io::Result<()> {
    for directory in ["bin", "dev", "proc", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    for program in PROGRAMS {
        let source = Path::new("/bin").join(program);
        fs::copy(&source, root.join("bin").join(program))?;
        for library in libraries(&source)? {
            let target = root.join(library.strip_prefix("/").unwrap_or(&library));
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(&library, target)?;
        }
    }
    Ok(())
}

/// Makes a bundle that runs `argv`, and gives its directory.
pub(super) fn make(directory: PathBuf, root: &Path, argv: &[&str]) -> io::Result<PathBuf> {
    fs::create_dir_all(&directory)?;
    let user = rustix::process::geteuid().as_raw();
    let text = config(root, argv, user).to_string();
    fs::write(directory.join("config.json"), text)?;
    Ok(directory)
}

/// The shared libraries of a program of this host.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    Ok(parse_ldd(&String::from_utf8_lossy(&output.stdout)))
}

/// `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn parse_ldd(text: &str) -> Vec<PathBuf> {
    let paths = text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

/// A container that is as isolated as these runtimes make it without more being asked:
/// namespaces of its own, no network, no capabilities, a read-only root.
fn config(root: &Path, argv: &[&str], user: u32) -> Value {
    let mut namespaces: Vec<_> = ["pid", "ipc", "uts", "mount", "network"]
        .into_iter()
        .map(|kind| json!({ "type": kind }))
        .collect();
    let mut linux = json!({});
    if user != 0 {
        namespaces.push(json!({ "type": "user" }));
        let map = json!([{ "containerID": 0, "hostID": user, "size": 1 }]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    linux["namespaces"] = Value::Array(namespaces);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": argv,
            "env": ["PATH=/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": { "path": root, "readonly": true },
        "hostname": "bench",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" },
            // A container's own: in a root that several share, runc makes its links in `/dev`
            // there, and of two that start at once one fails.
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
        ],
        "linux": linux,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_with_a_path() {
        let text = "\tlinux-vdso.so.1 (0x00007f26)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f26)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f26)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(parse_ldd(text), expected.map(PathBuf::from));
        assert!(parse_ldd("\tstatically linked\n").is_empty());
    }

    #[test]
    fn only_an_ordinary_user_needs_a_user_namespace() {
        let root = config(Path::new("/r"), &["/bin/true"], 0);
        assert_eq!(root["linux"]["namespaces"].as_array().unwrap().len(), 5);
        assert!(root["linux"]["uidMappings"].is_null());
        let user = config(Path::new("/r"), &["/bin/true"], 1000);
        assert_eq!(user["linux"]["namespaces"].as_array().unwrap().len(), 6);
        assert_eq!(user["linux"]["uidMappings"][0]["hostID"], 1000);
    }
}

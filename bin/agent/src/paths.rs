//! Paths in requests.

/// Makes a path absolute: `~` and what is relative count from the given folder.
/// `.` and `..` are resolved in the text, as clients expect of paths they get back.
pub(crate) fn resolve(path: &str, home: &str) -> String {
    let absolute = match path {
        "" | "~" => home.to_owned(),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{home}/{}", path.strip_prefix("~/").unwrap_or(path)),
    };
    let mut parts = Vec::new();
    for part in absolute.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn paths_resolve_against_the_home() {
        let resolve = |path| resolve(path, "/home/user");
        assert_eq!(resolve("a/b"), "/home/user/a/b");
        assert_eq!(resolve("~/a"), "/home/user/a");
        assert_eq!(resolve("~"), "/home/user");
        assert_eq!(resolve(""), "/home/user");
        assert_eq!(resolve("./a//b/"), "/home/user/a/b");
        assert_eq!(resolve("/etc/../etc/./hosts"), "/etc/hosts");
        assert_eq!(resolve("/../.."), "/");
        assert_eq!(resolve("~other"), "/home/user/~other");
    }
}

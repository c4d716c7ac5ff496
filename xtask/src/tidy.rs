//! Rules of the tree that no compiler knows, checked by `cargo test -p xtask`.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Every package of the workspace with the packages of the workspace it is built from.
    fn manifests() -> BTreeMap<String, BTreeSet<String>> {
        let mut found = BTreeMap::new();
        for folder in ["crates", "bin"] {
            for entry in std::fs::read_dir(root().join(folder)).unwrap() {
                let text = read(&entry.unwrap().path().join("Cargo.toml"));
                let mut dependencies = BTreeSet::new();
                let (mut name, mut section) = (String::new(), String::new());
                for line in text.lines() {
                    if let Some(head) = line.strip_prefix('[') {
                        section = head.trim_end_matches(']').to_owned();
                    } else if section == "package" && line.starts_with("name = ") {
                        name = line["name = ".len()..].trim_matches('"').to_owned();
                    } else if section == "dependencies" && line.starts_with("pando-") {
                        let end = line.find(['.', ' ', '=']).unwrap();
                        dependencies.insert(line[..end].to_owned());
                    }
                }
                found.insert(name, dependencies);
            }
        }
        found
    }

    /// The table between the two marks of ARCHITECTURE.md: names in backticks, the
    /// package first, then what it may depend on.
    fn table() -> BTreeMap<String, BTreeSet<String>> {
        let text = read(&root().join("ARCHITECTURE.md"));
        let table = text
            .split("<!-- crates: begin -->")
            .nth(1)
            .and_then(|rest| rest.split("<!-- crates: end -->").next())
            .expect("ARCHITECTURE.md has the crate table between its two marks");
        let mut found = BTreeMap::new();
        for row in table.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let named = |cell: &str| -> Vec<String> {
                cell.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(ToOwned::to_owned)
                    .collect()
            };
            let package = named(cells[1]).remove(0);
            found.insert(package, named(cells[2]).into_iter().collect());
        }
        found
    }

    #[test]
    fn the_arrows_in_the_manifests_are_those_of_architecture_md() {
        let full = |name: &String| -> String {
            match name.as_str() {
                "pando" => name.clone(),
                short if short.starts_with("pando-") => name.clone(),
                short => format!("pando-{short}"),
            }
        };
        let documented: BTreeMap<String, BTreeSet<String>> = table()
            .iter()
            .map(|(name, others)| (full(name), others.iter().map(full).collect()))
            .collect();
        for (package, dependencies) in manifests() {
            assert_eq!(
                documented.get(&package),
                Some(&dependencies),
                "`{package}`: correct its row of the crate table in ARCHITECTURE.md, or its Cargo.toml"
            );
        }
    }

    #[test]
    fn unsafe_code_is_in_sys_and_preload_alone() {
        let mut files = Vec::new();
        let mut folders = vec![
            root().join("crates"),
            root().join("bin"),
            root().join("tests"),
            root().join("xtask/src"),
        ];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let exempt = ["generated", "crates/sys", "crates/preload"];
                if path.is_dir() && !exempt.iter().any(|end| path.ends_with(end)) {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    files.push(path);
                }
            }
        }
        let word = concat!("uns", "afe ");
        for file in files {
            let code = read(&file);
            let found = code.lines().any(|line| {
                let code = line.split("//").next().unwrap_or_default();
                [
                    format!("{word}{{"),
                    format!("{word}fn"),
                    format!("{word}impl"),
                    format!("{word}extern"),
                ]
                .iter()
                .any(|form| code.contains(form))
            });
            assert!(
                !found,
                "{}: move it to crates/sys and give it a safe face",
                file.display()
            );
        }
    }
}

//! The list of third-party code in the program, as CycloneDX 1.5 JSON
//! (<https://cyclonedx.org/docs/1.5/json/>).
//!
//! Cargo itself says what is linked in. The ready-made tools look at one package of the
//! workspace; but the program carries two more programs inside it, the guest agent and
//! the library for QEMU, and what those are made of is handed out with it too.

use crate::artifacts;
use crate::artifacts::TARGET;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The programs that are handed out as one.
const PROGRAMS: [&str; 3] = ["pando", "pando-agent", "pando-preload"];

/// A crate: name, version.
type Crate = (String, String);

/// The document. It holds no time and no serial number: the same sources give the same bytes.
pub(super) fn make(root: &Path, version: &str) -> Result<Vec<u8>> {
    let mut crates = BTreeMap::new();
    for program in PROGRAMS {
        crates.extend(linked(root, program)?);
    }
    let lock = std::fs::read_to_string(root.join("Cargo.lock"))?;
    let checksums = checksums(&lock);
    let components: Vec<Value> = crates
        .iter()
        .map(|(key, licence)| component(key, licence, checksums.get(key)))
        .collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": format!("pando@{version}"),
                "name": "pando",
                "version": version,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": components,
    });
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

fn component((name, version): &Crate, licence: &str, checksum: Option<&String>) -> Value {
    // From a registry, or of this workspace: only the first are published under their name.
    let purl = format!("pkg:cargo/{name}@{version}");
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
    });
    if !licence.is_empty() {
        // Cargo's older way of writing `OR`.
        let expression = licence.replace('/', " OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(checksum) = checksum {
        component["purl"] = purl.into();
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// What a program is linked of, with licences: no macros, which run in the compiler, and
/// nothing that only builds or tests.
fn linked(root: &Path, program: &str) -> Result<BTreeMap<Crate, String>> {
    let mut tree = artifacts::cargo(root);
    tree.args(["tree", "--locked", "--package", program, "--target", TARGET]);
    tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none"]);
    tree.args(["--no-dedupe", "--format", "{p}|{l}"]);
    let output = tree.output().context("cannot run `cargo tree`")?;
    ensure!(
        output.status.success(),
        "`cargo tree`: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: BTreeSet<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines.into_iter().map(parse).collect()
}

/// `serde v1.0.228|MIT OR Apache-2.0`, or with a path after the version.
fn parse(line: &str) -> Result<(Crate, String)> {
    let read = || {
        let (package, licence) = line.split_once('|')?;
        let mut words = package.split(' ');
        let name = words.next()?.to_owned();
        let version = words.next()?.strip_prefix('v')?.to_owned();
        Some(((name, version), licence.to_owned()))
    };
    read().with_context(|| format!("`cargo tree` told `{line}`"))
}

/// What the lock file says of the packages from registries.
fn checksums(lock: &str) -> BTreeMap<Crate, String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let line = package
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert((name, version), checksum);
        }
    }
    found
}

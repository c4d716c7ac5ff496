//! `cargo xtask codegen`: the Rust code of the `.proto` files.
//!
//! The output is committed, so that a build needs neither `protoc` nor this
//! step; `--check` fails when it is stale.

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};

const FILES: [&str; 4] = [
    "filesystem/filesystem.proto",
    "pando/guest/v1/guest.proto",
    "pando/shim/v1/shim.proto",
    "process/process.proto",
];

/// Writes `crates/wire/src/generated`, or compares it when `check` is set.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let proto = root.join("crates/wire/proto");
    let committed = root.join("crates/wire/src/generated");
    let fresh = root.join("target/codegen");
    std::fs::remove_dir_all(&fresh).ok();
    std::fs::create_dir_all(&fresh)?;

    let descriptors = fresh.join("descriptors.bin");
    let set = protox::Compiler::new([&proto])?
        .include_source_info(true)
        .include_imports(true)
        .open_files(FILES)?
        .encode_file_descriptor_set();
    std::fs::write(&descriptors, set)?;
    connectrpc_build::Config::new()
        .descriptor_set(&descriptors)
        .files(&FILES)
        .out_dir(&fresh)
        .file_per_package(true)
        .emit_rerun_directives(false)
        .include_file("mod.rs")
        .compile()
        .context("cannot generate code")?;
    std::fs::remove_file(&descriptors)?;

    if check {
        return compare(&fresh, &committed);
    }
    std::fs::remove_dir_all(&committed).ok();
    std::fs::create_dir_all(&committed)?;
    for file in files(&fresh)? {
        std::fs::copy(fresh.join(&file), committed.join(&file))?;
    }
    Ok(())
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(dir)?
        .map(|entry| Ok(PathBuf::from(entry?.file_name())))
        .collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn compare(fresh: &Path, committed: &Path) -> Result<()> {
    let names = files(fresh)?;
    let same = names == files(committed)?
        && names.iter().all(|name| {
            std::fs::read(fresh.join(name)).ok() == std::fs::read(committed.join(name)).ok()
        });
    if !same {
        bail!(
            "crates/wire/src/generated is stale: run `cargo xtask codegen` and commit the result"
        );
    }
    Ok(())
}

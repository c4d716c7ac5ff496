//! Puts the guest agent and the library for QEMU where `include_bytes!` finds them:
//! `OUT_DIR/pando-agent` and `OUT_DIR/preload.so`.
//!
//! Both have their own profile and target, so this script does not build them:
//! `cargo xtask build` does, and sets `PANDO_AGENT` and `PANDO_PRELOAD`. Without
//! these (a plain `cargo check`, an editor) the last ones built are taken, or else
//! empty files. Without the agent `pando` says what is missing as soon as it needs it;
//! without the library it does without.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Below cargo's target folder.
const BUILT: &str = "x86_64-unknown-linux-gnu/agent";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    embed("PANDO_AGENT", "pando-agent", "pando-agent");
    embed("PANDO_PRELOAD", "libpando_preload.so", "preload.so");
}

/// Copies the file that the variable names, or else the one that was `built`.
fn embed(variable: &str, built: &str, embedded: &str) {
    println!("cargo::rerun-if-env-changed={variable}");
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    let out = path("OUT_DIR").expect("cargo sets OUT_DIR");
    let built = target_dir(&out).map(|target| target.join(BUILT).join(built));
    let found = path(variable).or(built).filter(|path| path.is_file());
    let content = match &found {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", path.display());
            fs::read(path).expect("what was built can be read")
        }
        None => Vec::new(),
    };
    fs::write(out.join(embedded), content).expect("OUT_DIR can be written");
}

/// `OUT_DIR` is `TARGET/PROFILE/build/PACKAGE-HASH/out`.
fn target_dir(out: &Path) -> Option<&Path> {
    out.ancestors().nth(4)
}

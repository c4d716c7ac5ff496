//! Puts the guest agent where `include_bytes!` finds it: `OUT_DIR/pando-agent`.
//!
//! The agent is another program with its own profile and target, so this script
//! does not build it: `cargo xtask build` does, and sets `PANDO_AGENT`. Without
//! it (a plain `cargo check`, an editor) the last one built is taken, or else an
//! empty file, with which `pando` says what is missing as soon as it needs it.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Below cargo's target folder.
const BUILT_AGENT: &str = "x86_64-unknown-linux-gnu/agent/pando-agent";

fn main() {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let out = variable("OUT_DIR").expect("cargo sets OUT_DIR");
    println!("cargo::rerun-if-env-changed=PANDO_AGENT");
    println!("cargo::rerun-if-changed=build.rs");

    let named = variable("PANDO_AGENT");
    let built = target_dir(&out).map(|target| target.join(BUILT_AGENT));
    let agent = named.or(built).filter(|path| path.is_file());
    let content = match &agent {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", path.display());
            fs::read(path).expect("the agent can be read")
        }
        None => Vec::new(),
    };
    fs::write(out.join("pando-agent"), content).expect("OUT_DIR can be written");
}

/// `OUT_DIR` is `TARGET/PROFILE/build/PACKAGE-HASH/out`.
fn target_dir(out: &Path) -> Option<&Path> {
    out.ancestors().nth(4)
}

//! Tasks of the project that are not the product: code generation, checks, CI.
mod codegen;
use anyhow::Result;
use std::path::PathBuf;

fn main() -> Result<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent").to_path_buf();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    codegen::run(&root, arguments.iter().any(|a| a == "--check"))
}

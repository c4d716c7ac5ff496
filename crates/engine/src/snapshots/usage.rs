//! Where disk space has gone.

use crate::engine::Inner;
use crate::request::DiskUsage;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Files are counted once, by inode, for whoever comes first: templates, then snapshots,
/// then memories, then sandboxes. Blocks that files share are counted for none of them.
pub(super) fn measure(inner: &Inner) -> io::Result<DiskUsage> {
    let mut seen = HashSet::new();
    let cache = &inner.config.cache_dir;
    let mut images = 0;
    for entry in fs::read_dir(cache)? {
        let path = entry?.path();
        if path.is_dir() && path != cache.join(pando_store::LAYOUT) {
            images += bytes_below(&path, &mut seen)?;
        }
    }
    Ok(DiskUsage {
        images,
        bakes: bytes_below(inner.bakery.bakes.dir(), &mut seen)?,
        snapshots: bytes_below(inner.snapshots.dir(), &mut seen)?,
        materialized: bytes_below(inner.materialized.dir(), &mut seen)?,
        materialized_limit: inner.materialized.limit_bytes(),
        sandboxes: bytes_below(inner.dirs.dir(), &mut seen)?,
        free: pando_sys::host::disk_free_bytes(&inner.config.state_dir)?,
    })
}

/// What is removed meanwhile is not counted.
fn bytes_below(dir: &Path, seen: &mut HashSet<(u64, u64)>) -> io::Result<u64> {
    let mut total = 0;
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // Never through a link that a sandbox's account may have put there.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            total += bytes_below(&entry.path(), seen)?;
        } else if metadata.is_file() && seen.insert((metadata.dev(), metadata.ino())) {
            let unshared =
                File::open(entry.path()).and_then(|file| pando_sys::file::unshared_bytes(&file));
            total += unshared.unwrap_or(metadata.blocks() * 512);
        }
    }
    Ok(total)
}

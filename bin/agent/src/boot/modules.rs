//! The kernel modules that the initrd carries.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::io::Errno;

const FOLDER: &str = "/modules";

/// Loads the modules in the order that `/modules/order` names, then frees the
/// memory they took in the initrd.
pub(super) fn load_all() -> Result<()> {
    let folder = Path::new(FOLDER);
    let Ok(order) = std::fs::read_to_string(folder.join("order")) else {
        // A kernel with everything built in.
        return Ok(());
    };
    for name in order.lines().map(str::trim).filter(|name| !name.is_empty()) {
        let file = File::open(folder.join(name)).with_context(|| format!("module {name}"))?;
        match rustix::system::finit_module(&file, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            // One that this processor has no use for.
            Err(Errno::NODEV) => {}
            Err(error) => return Err(error).with_context(|| format!("module {name}")),
        }
    }
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}

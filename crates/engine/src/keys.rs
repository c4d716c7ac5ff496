//! API keys: made here, kept as hashes, compared in constant time.

use crate::EngineError;
use crate::request::Caller;
use pando_store::Index;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The tenant of whoever runs the daemon.
pub(crate) const DEFAULT_TENANT: &str = "default";

/// Random bytes of a key, written as 40 hex digits.
const KEY_BYTES: usize = 20;

/// The hash a key is known by. Keys are long and random: a fast hash suffices.
fn hash(key: &str) -> [u8; 32] {
    *blake3::hash(key.as_bytes()).as_bytes()
}

/// Reads a tenant's first key, or makes it at the first start: one line, mode 0600.
///
/// # Errors
/// The file cannot be read or written.
pub(crate) fn ensure(index: &Index, path: &Path, tenant: &str) -> Result<(), EngineError> {
    let failed = |error: std::io::Error| {
        EngineError::Internal(format!("cannot use `{}`: {error}", path.display()))
    };
    let key = match fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hex: String = crate::ids::random::<KEY_BYTES>()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let key = format!("pando_{hex}");
            write_private(path, &key).map_err(failed)?;
            key
        }
        Err(error) => return Err(failed(error)),
    };
    index
        .add_key(&hash(&key), tenant, "admin")
        .map_err(|error| EngineError::internal(&error))
}

/// Whole or not at all: temporary name, sync, rename.
fn write_private(path: &Path, key: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    drop(fs::remove_file(&temporary));
    let mut file = File::create_new(&temporary)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    writeln!(file, "{key}")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// Who holds `key`. Every stored hash is compared whole, whatever matched before.
pub(crate) fn find(known: &[([u8; 32], String)], key: &str) -> Option<Caller> {
    let wanted = blake3::Hash::from_bytes(hash(key));
    let mut found = None;
    for (hash, tenant) in known {
        // `blake3::Hash` compares in constant time.
        if wanted == blake3::Hash::from_bytes(*hash) {
            found = Some(tenant);
        }
    }
    found.map(|tenant| Caller {
        tenant: tenant.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_key_is_made_once_and_found() {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::open(&dir.path().join("pando.db")).unwrap();
        let path = dir.path().join("admin.key");
        ensure(&index, &path, DEFAULT_TENANT).unwrap();
        ensure(&index, &path, DEFAULT_TENANT).unwrap();
        let key = fs::read_to_string(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!((key.trim().len(), &key[..6]), (46, "pando_"));
        let known = index.keys().unwrap();
        assert_eq!(known.len(), 1);
        assert_eq!(find(&known, key.trim()).unwrap().tenant, DEFAULT_TENANT);
        assert_eq!(
            find(&known, "pando_0000000000000000000000000000000000000000"),
            None
        );
        let path = dir.path().join("other.key");
        ensure(&index, &path, "other").unwrap();
        let key = fs::read_to_string(&path).unwrap();
        let known = index.keys().unwrap();
        assert_eq!(known.len(), 2);
        assert_eq!(find(&known, key.trim()).unwrap().tenant, "other");
    }
}

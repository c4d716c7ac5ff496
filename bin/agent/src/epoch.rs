//! A name for one life of this sandbox, for programs in it.
//!
//! A program that was copied with its memory cannot tell by itself. The file has another
//! content in each clone, from before the clone's first instruction on.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Name of the file, in the folder that programs know.
const FILE: &str = "epoch";

/// Where it is written before it takes the other's place.
const NEXT: &str = ".epoch.next";

/// As many as a program needs to tell all clones of all times apart.
const BYTES: usize = 8;

/// Begins a new epoch. Whoever reads meanwhile gets the old line or the new one, whole.
///
/// # Errors
/// The folder cannot be written, or the kernel has no entropy.
pub(crate) fn renew(folder: &Path) -> io::Result<()> {
    let mut bytes = [0; BYTES];
    pando_sys::random::fill(&mut bytes)?;
    let next = folder.join(NEXT);
    // Left by one that was cut off; or root put something else there.
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).open(&next)?;
    file.set_permissions(PermissionsExt::from_mode(0o644))?;
    writeln!(file, "{:016x}", u64::from_ne_bytes(bytes))?;
    fs::rename(&next, folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_is_one_line_of_sixteen_digits_that_all_may_read() {
        let folder = tempfile::tempdir().expect("folder");
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..8 {
            renew(folder.path()).expect("renewed");
            let line = fs::read_to_string(folder.path().join(FILE)).expect("text");
            let digits = line.strip_suffix('\n').expect("a line");
            assert_eq!(digits.len(), 16);
            assert!(digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            assert!(seen.insert(line), "the same twice");
        }
        let data = fs::metadata(folder.path().join(FILE)).expect("it is there");
        assert_eq!(data.permissions().mode() & 0o7777, 0o644);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1);
    }

    #[test]
    fn a_reader_that_has_it_open_keeps_the_whole_old_line() {
        let folder = tempfile::tempdir().expect("folder");
        renew(folder.path()).expect("renewed");
        let old = fs::read_to_string(folder.path().join(FILE)).expect("text");
        let mut open = File::open(folder.path().join(FILE)).expect("open");
        renew(folder.path()).expect("renewed");
        assert_eq!(io::read_to_string(&mut open).expect("text"), old);
    }

    #[test]
    fn what_lies_in_the_way_is_not_written_through() {
        let folder = tempfile::tempdir().expect("folder");
        let other = folder.path().join("other");
        fs::write(&other, "mine").expect("written");
        std::os::unix::fs::symlink(&other, folder.path().join(NEXT)).expect("link");
        renew(folder.path()).expect("renewed");
        assert_eq!(fs::read_to_string(&other).expect("text"), "mine");
    }
}

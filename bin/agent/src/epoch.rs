//! A name for one life of this sandbox, for programs in it.
//!
//! A program that was copied with its memory cannot tell by itself. The file has another
//! content in each clone, from before the clone's first instruction on.
//!
//! There are two files that change places at each spawn: to make a new one and to free an
//! old one costs a spawn without KVM ten milliseconds, since all that code has to be
//! translated first.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Name of the file, in the folder that programs know.
const FILE: &str = "epoch";

/// Where the next one is written before they change places.
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
    let line = format!("{:016x}\n", u64::from_ne_bytes(bytes));
    let (file, next) = (folder.join(FILE), folder.join(NEXT));
    open(&next)?.write_all(line.as_bytes())?;
    match renameat_with(CWD, &next, CWD, &file, RenameFlags::EXCHANGE) {
        // The first one, or root removed it.
        Err(Errno::NOENT) => fs::rename(&next, &file),
        exchanged => Ok(exchanged?),
    }
}

/// The file before last, or a new one that all may read.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    options.write(true).create(true).mode(0o644);
    options.custom_flags(no_link).truncate(false);
    match options.open(path) {
        // Root put a link there.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            fs::remove_file(path)?;
            options.open(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

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
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 2);
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

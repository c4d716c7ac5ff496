//! A writer of `newc` cpio archives, the form the kernel unpacks an initrd from.
//!
//! ```text
//!   header: "070701" + 13 fields of 8 hex digits     110 bytes
//!   name, NUL                                        padded to 4 with the header
//!   content                                          padded to 4
//!   …
//!   an entry named "TRAILER!!!"                      padded to 512 in all
//! ```
//!
//! Times are 0 and inode numbers count up, so equal content makes equal bytes.

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Archives are padded to this, as GNU cpio does.
const BLOCK: usize = 512;

/// An archive in the making.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory; parents come before what is in them.
    pub(crate) fn directory(&mut self, name: &str, permissions: u32) {
        self.entry(name, DIRECTORY | permissions, (0, 0), &[]);
    }

    /// Adds a regular file. The format holds files below 4 GiB.
    pub(crate) fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.entry(name, REGULAR | permissions, (0, 0), content);
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, name: &str, permissions: u32, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE | permissions, (major, minor), &[]);
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.pad(BLOCK);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("the callers' files are far below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        let links = 1;
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            name_size,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend(content);
        self.pad(4);
    }

    fn pad(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn example() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.directory("modules", 0o755);
        archive.file("modules/a.ko", 0o644, b"12345");
        archive.file("init", 0o755, &vec![7; 70_000]);
        archive.device("console", 0o600, 5, 1);
        archive.finish()
    }

    #[test]
    fn cpio_lists_what_was_written() {
        let mut cpio = Command::new("cpio")
            .args(["--list", "--verbose", "--numeric-uid-gid", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Debian's package `cpio` is installed");
        cpio.stdin.take().unwrap().write_all(&example()).unwrap();
        let output = cpio.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let seen: Vec<(&str, &str)> = text
            .lines()
            .map(|line| {
                let mut words = line.split_whitespace();
                (words.next().unwrap(), words.next_back().unwrap())
            })
            .collect();
        let expected = [
            ("drwxr-xr-x", "modules"),
            ("-rw-r--r--", "modules/a.ko"),
            ("-rwxr-xr-x", "init"),
            ("crw-------", "console"),
        ];
        assert_eq!(seen, expected);
        assert!(text.contains(" 70000 ") && text.contains(" 5, "), "{text}");
    }

    #[test]
    fn equal_content_makes_equal_bytes_on_whole_blocks() {
        assert_eq!(example(), example());
        assert_eq!(example().len() % BLOCK, 0);
    }
}

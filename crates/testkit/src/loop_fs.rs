//! A small file system of a test's own, which it may fill, or cut from its power.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// What a state directory can be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Without reflinks.
    Ext4,
    /// With them.
    Xfs,
}

/// A file with a file system in it, mounted; unmounted and removed when dropped.
#[derive(Debug)]
pub struct LoopFs {
    dir: TempDir,
}

impl LoopFs {
    /// A fresh one of this size. Blocks that nothing is written to take no space.
    pub fn new(kind: FileSystem, mib: u32) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("pando-test-fs-")
            .tempdir()
            .expect("a temporary directory");
        // Sandboxes' accounts must be able to pass through.
        crate::world::open_to_all(dir.path());
        let made = Self { dir };
        std::fs::create_dir(made.path()).expect("a place to mount");
        let image = std::fs::File::create_new(made.image()).expect("a file");
        let length = u64::from(mib) << 20;
        image.set_len(length).expect("a length");
        let image = made.image();
        match kind {
            // Nothing is set aside for root, which the daemon is.
            FileSystem::Ext4 => run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(image)),
            FileSystem::Xfs => run(Command::new("mkfs.xfs").arg("-q").arg(image)),
        }
        made.mount();
        made
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// A state directory in it. The bakes of the usual size are there already: a cache on
    /// another file system is no place for them, and making them takes many seconds.
    pub fn state_dir(&self) -> PathBuf {
        let state = self.path().join("state");
        let bakes = state.join("v1/bakes");
        std::fs::create_dir_all(&bakes).expect("a directory");
        for bake in usual_bakes() {
            run(Command::new("cp")
                .args(["-a", "--reflink=auto", "--sparse=always"])
                .arg(bake)
                .arg(&bakes));
        }
        self.sync();
        state
    }

    /// Bytes that can be written.
    pub fn free_bytes(&self) -> u64 {
        let mut df = Command::new("df");
        df.args(["--output=avail", "--block-size=1"])
            .arg(self.path());
        let output = df.output().expect("`df`");
        let text = String::from_utf8_lossy(&output.stdout);
        let free = text
            .lines()
            .nth(1)
            .and_then(|line| line.trim().parse().ok());
        free.unwrap_or_else(|| panic!("`df` said: {text}"))
    }

    /// Fills it until just this is free, in whole blocks.
    pub fn leave_free(&self, bytes: u64) {
        // What was written and has no place yet is free no more.
        self.sync();
        let (mut length, mut piece) = (0, u64::MAX);
        loop {
            let free = self.free_bytes();
            piece = piece.min(free.saturating_sub(bytes));
            if piece < 4096 {
                break;
            }
            let mut allocate = Command::new("fallocate");
            allocate
                .args(["-o", &length.to_string(), "-l", &piece.to_string()])
                .arg(self.filler());
            let output = allocate.output().expect("`fallocate`");
            length = std::fs::metadata(self.filler()).map_or(0, |file| file.len());
            if !output.status.success() {
                // The file system keeps some of it for itself.
                piece /= 2;
            }
        }
        // What tells where the filler lies has taken blocks, too.
        let filler = std::fs::OpenOptions::new().write(true).open(self.filler());
        let filler = filler.expect("it was filled");
        while self.free_bytes() < bytes {
            assert!(length > 0, "no {bytes} bytes can be free");
            length = length.saturating_sub(4096);
            filler.set_len(length).expect("a length");
            self.sync();
        }
    }

    /// What filled it goes.
    pub fn make_room(&self) {
        std::fs::remove_file(self.filler()).expect("it was filled");
    }

    /// From now on nothing reaches the disk any more, not even what the file system has in
    /// its log in memory.
    pub fn cut_power(&self) {
        run(Command::new("xfs_io")
            .args(["-x", "-c", "shutdown"])
            .arg(self.path()));
    }

    /// Mounts what is on the disk. Nobody may use the old one any more.
    pub fn mount_again(&self) {
        // Files of a killed process are closed a moment after it is gone.
        await_moment("the file system is still in use", || {
            let mut umount = Command::new("umount");
            let output = umount.arg(self.path()).output().expect("`umount`");
            output.status.success()
        });
        // Two file systems on one disk would destroy it: the kernel may have the old one for a
        // moment after the last of its mounts.
        await_moment("the loop device is still in use", || {
            let mut list = Command::new("losetup");
            let output = list.arg("-j").arg(self.image()).output();
            output.expect("`losetup`").stdout.is_empty()
        });
        self.mount();
    }

    fn sync(&self) {
        run(Command::new("sync").arg("-f").arg(self.path()));
    }

    fn mount(&self) {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(self.image())
            .arg(self.path()));
        // Whoever may pass through the state directory must come as far.
        crate::world::open_to_all(&self.path());
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        // Lazily: a test that failed may have left processes in it.
        drop(Command::new("umount").arg("-l").arg(self.path()).status());
    }
}

/// The bakes of the usual size that were of use last, one to start and one to stop and
/// start again.
fn usual_bakes() -> Vec<PathBuf> {
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    let bakes = std::fs::read_dir(crate::world::cache_dir().join("v1/bakes"));
    for bake in bakes.into_iter().flatten().flatten() {
        let manifest = bake.path().join("manifest");
        let of_the_usual_size = std::fs::read_to_string(&manifest)
            .is_ok_and(|text| text.contains("\"memory_mib\": 512,"));
        let used = std::fs::metadata(&manifest).and_then(|file| file.modified());
        if let (true, Ok(used)) = (of_the_usual_size, used) {
            found.push((used, bake.path()));
        }
    }
    found.sort();
    found
        .into_iter()
        .rev()
        .take(2)
        .map(|(_, path)| path)
        .collect()
}

/// Waits for what the kernel does soon.
fn await_moment(otherwise: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{otherwise}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

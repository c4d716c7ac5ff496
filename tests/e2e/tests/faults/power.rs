//! The power fails: the file system of the state directory is cut off, with what it had not
//! written yet, every process dies, and the host starts anew from what is on the disk.

use crate::in_full;
use crate::stage::{
    Contents, Operation, check_files, check_snapshots, create_from, remove_all, snapshot_names,
    take,
};
use pando_testkit::{FileSystem, LoopFs, Options, World};

/// When it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Right after the answer to this.
    Answered(Operation),
    /// Right after the answer to a snapshot of a sandbox that booted, whose root image is in
    /// the cache alone, on another file system.
    AnsweredOfABoot,
    /// Right after the answer to a stop.
    Stopped,
    /// In the middle of a snapshot: the daemon dies at this point, and nothing is written
    /// any more.
    At(&'static str),
}

use Moment::{Answered, AnsweredOfABoot, At, Stopped};

/// All moments.
const MOMENTS: [Moment; 9] = [
    Answered(Operation::Snapshot),
    Answered(Operation::Pause),
    Answered(Operation::Rollback),
    At("snapshot.after_rename"),
    Stopped,
    At("take.captured"),
    At("snapshot.manifest_written"),
    At("take.indexed"),
    AnsweredOfABoot,
];

#[test]
fn a_power_cut_on_ext4_takes_nothing_that_was_reported() {
    let count = if in_full() { MOMENTS.len() } else { 4 };
    cut_at(FileSystem::Ext4, &MOMENTS[..count]);
}

#[test]
fn a_power_cut_on_xfs_takes_nothing_that_was_reported() {
    let count = if in_full() { MOMENTS.len() } else { 1 };
    cut_at(FileSystem::Xfs, &MOMENTS[..count]);
}

fn cut_at(kind: FileSystem, moments: &[Moment]) {
    let fs = LoopFs::new(kind, 1500);
    let mut world = World::with(Options {
        state_dir: Some(fs.state_dir()),
        ..Options::default()
    });
    for moment in moments {
        moment.run(&fs, &mut world);
        remove_all(&world);
    }
}

/// Nothing reaches the disk any more, and everybody dies; then another boot of the host.
fn cut_power(fs: &LoopFs, world: &mut World) {
    fs.cut_power();
    world.kill_all();
    fs.mount_again();
    world.host_starts_anew();
    world.forget_env();
    world.start_daemon();
}

impl Moment {
    fn run(self, fs: &LoopFs, world: &mut World) {
        let id = match self {
            AnsweredOfABoot => world.ok(["create", "--start", "boot"]),
            _ => world.create(),
        };
        let mut before = Contents::begin(world, &id);
        before.mark(world, &id, "one");
        take(world, &id, "before");
        let mut now = before.clone();
        now.mark(world, &id, "two");
        self.pass(world, &id);
        cut_power(fs, world);

        check_files(world);
        let names = snapshot_names(world);
        assert!(names.contains(&"before".to_owned()), "{self:?}: {names:?}");
        if matches!(self, Answered(Operation::Snapshot) | AnsweredOfABoot) {
            assert!(names.contains(&"fresh".to_owned()), "{self:?}: {names:?}");
        }
        check_snapshots(world, &[("before", &before), ("fresh", &now)]);
        if self == Answered(Operation::Pause) {
            assert_eq!(world.inspect(&id)["state"], "paused");
            world.ok(["resume", &id]);
        } else if self == Stopped {
            assert_eq!(world.inspect(&id)["state"], "stopped");
            world.ok(["start", &id]);
            now = now.of_the_disk();
        } else {
            // What it wrote since its last snapshot was never promised to survive.
            let found = world.inspect(&id);
            assert_eq!(
                (&found["state"], &found["state_reason"]),
                (&"failed".into(), &"the host restarted".into())
            );
            world.ok(["rollback", &id, "before"]);
            now = before;
        }
        let what = format!("the sandbox after {self:?}");
        now.check(world, &id, &what);
        now.mark(world, &id, "three");
        take(world, &id, "after");
        let child = create_from(world, "after");
        now.check(world, &child, &format!("a child after {self:?}"));
        check_files(world);
    }

    /// Does what it is about, until the moment.
    fn pass(self, world: &mut World, id: &str) {
        match self {
            Answered(operation) => {
                let answer = operation.request(world, id).expect("an answer");
                assert!(
                    matches!(answer.status, 200 | 201),
                    "{self:?}: {}",
                    answer.text
                );
            }
            AnsweredOfABoot => take(world, id, "fresh"),
            Stopped => drop(world.ok(["stop", id])),
            At(point) => {
                world.kill_daemon();
                world.set_env("PANDO_FAULT", point);
                world.start_daemon();
                let answer = Operation::Snapshot.request(world, id);
                assert!(answer.is_err(), "{self:?} was answered: {answer:?}");
            }
        }
    }
}

//! Each operation, cut off at each point that it reaches, by the death of whoever is there.

use crate::in_full;
use crate::stage::{
    Contents, Operation, check_files, check_slots, check_snapshots, create_from, remove,
    remove_all, rows, snapshot_names, take, text,
};
use pando_testkit::{Answer, World};
use std::panic::AssertUnwindSafe;

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Daemon,
    Shim,
    Vmm,
}

/// An operation that is cut off.
#[derive(Clone, Copy, Debug)]
struct Cell {
    operation: Operation,
    point: &'static str,
    victim: Victim,
}

use Operation as O;
use Victim as V;

/// The points that a daemon reaches when it publishes a snapshot.
const PUBLISH: [&str; 4] = [
    "snapshot.layers_written",
    "snapshot.manifest_written",
    "snapshot.before_rename",
    "snapshot.after_rename",
];

/// The points that a shim reaches when it takes one.
const SHIM: [&str; 5] = [
    "shim.frozen",
    "shim.saved",
    "shim.switched",
    "shim.went_on",
    "shim.written",
];

/// The other points of a daemon, of each operation; whether it takes a snapshot, too.
fn points_of(operation: Operation) -> (&'static [&'static str], bool) {
    match operation {
        O::Snapshot => (
            &["take.captured", "take.indexed", "take.parent_replaced"],
            true,
        ),
        O::Fork => (
            &[
                "take.captured",
                "take.parent_replaced",
                "fork.taken",
                "sandbox.dir_made",
                "rollback.indexed",
            ],
            true,
        ),
        O::CreateFrom => (&["sandbox.dir_made", "rollback.indexed"], false),
        O::Rollback => (
            &["sandbox.dir_made", "rollback.spawned", "rollback.indexed"],
            false,
        ),
        O::RollbackSave => (
            &[
                "take.captured",
                "take.indexed",
                "take.parent_replaced",
                "rollback.spawned",
                "rollback.indexed",
            ],
            true,
        ),
        O::Pause => (&["take.captured", "pause.indexed", "pause.ended"], true),
        O::Resume => (
            &["sandbox.dir_made", "resume.spawned", "resume.indexed"],
            false,
        ),
    }
}

/// All cells of an operation.
fn cells_of(operation: Operation) -> Vec<Cell> {
    let cell = |victim| {
        move |point: &&'static str| Cell {
            operation,
            point,
            victim,
        }
    };
    let (points, takes) = points_of(operation);
    let mut cells: Vec<Cell> = points.iter().map(cell(V::Daemon)).collect();
    if takes {
        cells.extend(PUBLISH.iter().map(cell(V::Daemon)));
        cells.extend(SHIM.iter().map(cell(V::Shim)));
        cells.extend(SHIM.iter().map(cell(V::Vmm)));
    }
    cells
}

/// Runs the sample, or all cells of these operations; all that went wrong is told together.
fn run(operations: &[Operation], sample: &[(Operation, &'static str, Victim)]) {
    let cells: Vec<Cell> = match in_full() {
        true => operations.iter().flat_map(|one| cells_of(*one)).collect(),
        false => sample
            .iter()
            .map(|(operation, point, victim)| Cell {
                operation: *operation,
                point,
                victim: *victim,
            })
            .collect(),
    };
    let failed: Vec<String> = cells
        .iter()
        .filter(|cell| std::panic::catch_unwind(AssertUnwindSafe(|| cell.run())).is_err())
        .map(|cell| format!("{cell:?}"))
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {}:\n{}",
        failed.len(),
        cells.len(),
        failed.join("\n")
    );
}

#[test]
fn a_snapshot_or_a_fork_that_is_cut_off_loses_nothing() {
    let sample = [
        (O::Snapshot, "take.captured", V::Daemon),
        (O::Snapshot, "take.indexed", V::Daemon),
        (O::Fork, "shim.written", V::Shim),
        (O::CreateFrom, "rollback.indexed", V::Daemon),
    ];
    run(&[O::Snapshot, O::Fork, O::CreateFrom], &sample);
}

#[test]
fn a_pause_or_a_resume_that_is_cut_off_loses_nothing() {
    let sample = [
        (O::Pause, "pause.indexed", V::Daemon),
        (O::Pause, "shim.saved", V::Vmm),
        (O::Resume, "resume.indexed", V::Daemon),
    ];
    run(&[O::Pause, O::Resume], &sample);
}

#[test]
fn a_rollback_that_is_cut_off_loses_nothing() {
    let sample = [
        (O::Rollback, "rollback.spawned", V::Daemon),
        (O::RollbackSave, "rollback.indexed", V::Daemon),
    ];
    run(&[O::Rollback, O::RollbackSave], &sample);
}

/// A sandbox, and what it held when `before` was taken of it and holds now.
struct Subject {
    id: String,
    before: Contents,
    now: Contents,
}

impl Cell {
    fn run(&self) {
        let mut world = World::start();
        let mut subject = self.prepare(&mut world);
        let answer = self.operation.request(&world, &subject.id);
        match self.victim {
            V::Daemon => assert!(answer.is_err(), "{self:?} was answered: {answer:?}"),
            V::Shim | V::Vmm => assert!(answer.is_ok(), "{self:?}: {answer:?}"),
        }
        let done = answer.is_ok_and(|answer| is_success(&answer));
        world.kill_daemon();
        world.forget_env();
        world.start_daemon();

        let state = self.state_after(done);
        world.await_state(&subject.id, state);
        check_files(&world);
        self.check_rows(&world, &subject, done);
        self.check_state(&world, &mut subject, state, done);
        go_on(&world, &mut subject);
        remove_all(&world);
    }

    /// A sandbox, to which something will be done by a daemon, or a shim, that dies of it.
    fn prepare(&self, world: &mut World) -> Subject {
        let first = world.create();
        let mut before = Contents::begin(world, &first);
        before.mark(world, &first, "one");
        take(world, &first, "before");
        let fault = match self.victim {
            V::Vmm => format!("{}!vmm", self.point),
            V::Daemon | V::Shim => self.point.to_owned(),
        };
        let mut now = before.clone();
        if self.operation == O::Resume {
            now.mark(world, &first, "two");
            world.ok(["pause", &first]);
        }
        world.kill_daemon();
        world.set_env("PANDO_FAULT", &fault);
        world.start_daemon();
        let id = match self.victim {
            V::Daemon => first,
            // Its shim is to have the fault from its daemon.
            V::Shim | V::Vmm => {
                remove(world, &first);
                create_from(world, "before")
            }
        };
        if self.operation != O::Resume {
            now.mark(world, &id, "two");
        }
        Subject { id, before, now }
    }

    /// What the sandbox is after it: what the index said last is true.
    fn state_after(&self, done: bool) -> &'static str {
        match (self.victim, self.operation, self.point) {
            (V::Daemon, O::Pause, "pause.indexed" | "pause.ended") => "paused",
            (V::Daemon, O::Resume, "sandbox.dir_made" | "resume.spawned") => "paused",
            (V::Daemon, _, _) => "running",
            (V::Shim | V::Vmm, O::Pause, _) if done => "paused",
            (V::Shim | V::Vmm, O::RollbackSave, _) if done => "running",
            (V::Shim | V::Vmm, _, _) => "failed",
        }
    }

    /// Whether it is back in the state of `before`.
    fn is_back(&self, done: bool) -> bool {
        let rolls_back = matches!(self.operation, O::Rollback | O::RollbackSave);
        rolls_back && (done || self.point == "rollback.indexed")
    }

    /// Snapshots and sandboxes that are listed are whole, and those that were reported are
    /// listed.
    fn check_rows(&self, world: &World, subject: &Subject, done: bool) {
        let names = snapshot_names(world);
        assert!(names.contains(&"before".to_owned()), "{names:?}");
        let takes = matches!(self.operation, O::Snapshot | O::RollbackSave);
        if takes && done {
            assert!(names.contains(&"fresh".to_owned()), "{names:?}");
        }
        check_snapshots(
            world,
            &[("before", &subject.before), ("fresh", &subject.now)],
        );
        let sandboxes = rows(world, "sandboxes");
        let children: Vec<String> = sandboxes
            .iter()
            .map(|row| text(row, "id"))
            .filter(|id| *id != subject.id)
            .collect();
        assert!(children.len() <= 1, "{children:?}");
        let expected = match self.operation {
            O::CreateFrom => &subject.before,
            _ => &subject.now,
        };
        for child in children {
            expected.check(world, &child, "a child");
            remove(world, &child);
        }
    }

    /// The sandbox holds what it held, or can be brought back to it; it runs then.
    fn check_state(&self, world: &World, subject: &mut Subject, state: &str, done: bool) {
        if self.is_back(done) {
            subject.now = subject.before.clone();
        }
        match state {
            "paused" => drop(world.ok(["resume", &subject.id])),
            "failed" if self.victim == V::Vmm => {
                world.ok(["start", &subject.id]);
                subject.now = subject.now.of_the_disk();
            }
            // Its shim is of the daemon that had the fault, too.
            "running" if self.victim == V::Daemon => {}
            _ => {
                world.ok(["rollback", &subject.id, "before"]);
                subject.now = subject.before.clone();
            }
        }
        let what = format!("the sandbox, which was {state}");
        subject.now.check(world, &subject.id, &what);
    }
}

fn is_success(answer: &Answer) -> bool {
    match answer.status {
        200..300 => !answer.text.contains("\"error\""),
        400..600 => false,
        other => panic!("{other}: {}", answer.text),
    }
}

/// A further snapshot of the sandbox has all that it holds, too what was captured by one
/// that came to nothing.
fn go_on(world: &World, subject: &mut Subject) {
    let Subject { id, now, .. } = subject;
    now.mark(world, id, "three");
    take(world, id, "after");
    check_slots(world);
    now.check(world, id, "the sandbox after a further snapshot");
    let child = create_from(world, "after");
    now.check(world, &child, "a child of a further snapshot");
    check_files(world);
}

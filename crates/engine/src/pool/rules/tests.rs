//! The rules against a host and requests of the tests' own: no VM.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

fn target(key: &str, kind: Kind) -> Target {
    Target {
        key: key.to_owned(),
        kind,
    }
}

fn want(key: &str, kind: Kind, count: usize) -> Want {
    Want {
        target: target(key, kind),
        count,
        blocked: false,
    }
}

/// An idle host with room.
fn idle(wants: Vec<Want>, haves: Vec<Have<u32>>) -> View<u32> {
    View {
        wants,
        haves,
        memory_available_bytes: 8 << 30,
        memory_reserve_bytes: 1 << 30,
        disk_free_bytes: 64 << 30,
        cpus: 2,
        spawns: 0,
        quiet: Duration::from_secs(9),
        put_off: Duration::ZERO,
    }
}

fn have(id: u32, key: &str, kind: Kind, waiting: bool) -> Have<u32> {
    Have {
        id,
        target: target(key, kind),
        waiting,
    }
}

fn limited_by(view: &View<u32>) -> Option<Limit> {
    match next(view) {
        Step::Rest { limited_by, .. } => limited_by,
        other => panic!("it does not rest: {other:?}"),
    }
}

#[test]
fn an_idle_host_fills_what_is_wanted_most() {
    let wants = vec![want("a", Kind::Warm, 1), want("a", Kind::Bound, 1)];
    let step = next(&idle(wants.clone(), vec![]));
    assert_eq!(step, Step::Fill(target("a", Kind::Warm)));
    let step = next(&idle(wants, vec![have(1, "a", Kind::Warm, true)]));
    assert_eq!(step, Step::Fill(target("a", Kind::Bound)));
}

#[test]
fn requests_come_first_but_not_for_ever() {
    let mut view = idle(vec![want("a", Kind::Warm, 1)], vec![]);
    view.spawns = 1;
    assert_eq!(limited_by(&view), Some(Limit::Requests));
    view.spawns = 0;
    view.quiet = Duration::from_millis(1);
    assert_eq!(limited_by(&view), Some(Limit::Requests));
    view.put_off = PATIENCE;
    assert_eq!(next(&view), Step::Fill(target("a", Kind::Warm)));
}

#[test]
fn what_is_being_made_counts_against_memory_and_cpus() {
    let filling = have(1, "a", Kind::Warm, false);
    let mut view = idle(vec![want("a", Kind::Warm, 3)], vec![filling]);
    assert_eq!(limited_by(&view), None);
    view.cpus = 8;
    assert_eq!(next(&view), Step::Fill(target("a", Kind::Warm)));
    // Room for one, and one is on its way.
    view.memory_available_bytes = view.memory_reserve_bytes + Kind::Warm.cost_bytes();
    assert_eq!(limited_by(&view), Some(Limit::Memory));
}

#[test]
fn a_target_that_fails_does_not_hold_up_the_others() {
    let mut wants = vec![want("a", Kind::Warm, 1), want("b", Kind::Warm, 1)];
    wants[0].blocked = true;
    let view = idle(wants, vec![]);
    assert_eq!(next(&view), Step::Fill(target("b", Kind::Warm)));
    let view = idle(view.wants, vec![have(1, "b", Kind::Warm, true)]);
    assert_eq!(limited_by(&view), Some(Limit::Failures));
}

#[test]
fn a_full_disk_gets_no_slots() {
    let mut view = idle(vec![want("a", Kind::Warm, 1)], vec![]);
    view.disk_free_bytes = DISK_RESERVE_BYTES - 1;
    assert_eq!(limited_by(&view), Some(Limit::Disk));
}

#[test]
fn a_pool_that_nobody_wants_sleeps() {
    let view: View<u32> = idle(vec![], vec![]);
    let asleep = Step::Rest {
        again_in: None,
        limited_by: None,
    };
    assert_eq!(next(&view), asleep);
}

/// Something that happens to a pool.
#[derive(Clone, Debug)]
enum Happens {
    /// A slot that is being made waits, or fails.
    Made { nth: usize, works: bool },
    /// A request takes a slot of this key, if one waits, and takes this long.
    Request { key: u8, ticks: u8 },
    /// A waiting slot dies.
    Dies { nth: usize },
    /// So much is wanted of this key from now on.
    Wanted { key: u8, warm: usize, bound: usize },
    /// Others on the host use so much memory.
    Others { mib: u64 },
    /// The disk is full, or is not.
    Disk { full: bool },
    /// Time passes.
    Tick,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (0..4_usize, prop::bool::weighted(0.9)).prop_map(|(nth, works)| Happens::Made { nth, works }),
        3 => (0..3_u8, 0..5_u8).prop_map(|(key, ticks)| Happens::Request { key, ticks }),
        1 => (0..9_usize).prop_map(|nth| Happens::Dies { nth }),
        1 => (0..3_u8, 0..4_usize, 0..2_usize).prop_map(|(key, warm, bound)| Happens::Wanted { key, warm, bound }),
        1 => (0..2048_u64).prop_map(|mib| Happens::Others { mib }),
        1 => any::<bool>().prop_map(|full| Happens::Disk { full }),
        4 => Just(Happens::Tick),
    ]
}

const TICK: Duration = Duration::from_millis(100);
const HOST_MIB: u64 = 2048;
const RESERVE_MIB: u64 = 512;

/// A host, its pool and its requests.
#[derive(Default)]
struct World {
    wanted: BTreeMap<u8, (usize, usize)>,
    slots: Vec<Have<u32>>,
    next_id: u32,
    others_mib: u64,
    disk_full: bool,
    requests: Vec<u8>,
    quiet: Duration,
    put_off: Duration,
}

impl World {
    fn used_mib(&self) -> u64 {
        let slots = self.slots.iter().filter(|slot| slot.waiting);
        let cost: u64 = slots.map(|slot| slot.target.kind.cost_bytes()).sum();
        self.others_mib + cost / MIB
    }

    fn view(&self) -> View<u32> {
        let mut wants = Vec::new();
        for kind in [Kind::Warm, Kind::Bound] {
            for (key, (warm, bound)) in &self.wanted {
                let count = if kind == Kind::Warm { *warm } else { *bound };
                wants.push(want(&key.to_string(), kind, count));
            }
        }
        View {
            wants,
            haves: self.slots.clone(),
            memory_available_bytes: HOST_MIB.saturating_sub(self.used_mib()) * MIB,
            memory_reserve_bytes: RESERVE_MIB * MIB,
            disk_free_bytes: if self.disk_full { 0 } else { 1 << 40 },
            cpus: 2,
            spawns: self.requests.len(),
            quiet: self.quiet,
            put_off: self.put_off,
        }
    }

    fn nth(&self, nth: usize, waiting: bool) -> Option<usize> {
        let mut found = (0..self.slots.len()).filter(|index| self.slots[*index].waiting == waiting);
        found.nth(nth)
    }

    fn apply(&mut self, event: &Happens) {
        match *event {
            Happens::Made { nth, works } => match (self.nth(nth, false), works) {
                (Some(index), true) => self.slots[index].waiting = true,
                (Some(index), false) => drop(self.slots.remove(index)),
                (None, _) => {}
            },
            Happens::Request { key, ticks } => {
                let key = key.to_string();
                let fits = |slot: &Have<u32>| slot.waiting && slot.target.key == key;
                if let Some(index) = self.slots.iter().position(fits) {
                    self.slots.remove(index);
                }
                self.requests.push(ticks);
                self.quiet = Duration::ZERO;
            }
            Happens::Dies { nth } => {
                if let Some(index) = self.nth(nth, true) {
                    self.slots.remove(index);
                }
            }
            Happens::Wanted { key, warm, bound } => drop(self.wanted.insert(key, (warm, bound))),
            Happens::Others { mib } => self.others_mib = mib,
            Happens::Disk { full } => self.disk_full = full,
            Happens::Tick => self.tick(),
        }
    }

    fn tick(&mut self) {
        let before = self.requests.len();
        self.requests.retain_mut(|left| match left.checked_sub(1) {
            Some(less) => {
                *left = less;
                true
            }
            None => false,
        });
        if self.requests.len() < before {
            self.quiet = Duration::ZERO;
        }
        self.quiet += TICK;
        let waits = matches!(
            next(&self.view()),
            Step::Rest {
                limited_by: Some(Limit::Requests),
                ..
            }
        );
        self.put_off = if waits {
            self.put_off + TICK
        } else {
            Duration::ZERO
        };
    }

    /// Does what the rules say until they rest; checks each step.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let view = self.view();
            match next(&view) {
                Step::Fill(target) => self.fill(&view, target),
                Step::Retire(id) => self.retire(&view, id),
                Step::Rest { .. } => return,
            }
        }
        panic!("the rules never rest");
    }

    fn fill(&mut self, view: &View<u32>, target: Target) {
        let wanted = view.wants.iter().find(|want| want.target == target);
        let wanted = wanted.expect("only what is wanted is filled").count;
        assert!(
            count(view, &target) < wanted,
            "more than wanted of {target:?}"
        );
        let busy = view.spawns > 0 || view.quiet < QUIET;
        assert!(!busy || view.put_off >= PATIENCE, "it does not yield");
        let filling: Vec<_> = view.haves.iter().filter(|have| !have.waiting).collect();
        assert!(filling.len() < at_once(view.cpus));
        let soon: u64 = filling
            .iter()
            .map(|have| have.target.kind.cost_bytes())
            .sum();
        let left = view.memory_available_bytes - soon - target.kind.cost_bytes();
        assert!(left >= view.memory_reserve_bytes, "the reserve is touched");
        assert!(view.disk_free_bytes >= DISK_RESERVE_BYTES);
        self.put_off = Duration::ZERO;
        self.next_id += 1;
        self.slots.push(Have {
            id: self.next_id,
            target,
            waiting: false,
        });
    }

    fn retire(&mut self, view: &View<u32>, id: u32) {
        let index = self.slots.iter().position(|slot| slot.id == id);
        let slot = self.slots.remove(index.expect("it is there"));
        assert!(slot.waiting, "what is being made is not ended half-way");
        let want = view.wants.iter().find(|want| want.target == slot.target);
        let unwanted = count(view, &slot.target) > want.map_or(0, |want| want.count);
        let pressure = view.memory_available_bytes < view.memory_reserve_bytes;
        assert!(unwanted || pressure, "a slot is given up for nothing");
    }

    /// Lets everything come to an end on a host with room.
    fn calm_down(&mut self) {
        self.others_mib = 0;
        self.disk_full = false;
        for _ in 0..200 {
            self.settle();
            self.apply(&Happens::Made {
                nth: 0,
                works: true,
            });
            self.tick();
        }
        self.settle();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens: only what is wanted is made, it yields, the reserve stays
    /// (all checked at each step), and a calm host ends with exactly what is wanted.
    #[test]
    fn a_pool_keeps_its_rules_and_gets_full(events in prop::collection::vec(happens(), 0..80)) {
        let mut world = World::default();
        for event in &events {
            world.apply(event);
            world.settle();
        }
        world.calm_down();
        // All that can be wanted at once fits: three keys, three warm and one bound each.
        for want in world.view().wants {
            let waiting = world.slots.iter().filter(|slot| slot.waiting && slot.target == want.target);
            prop_assert_eq!(waiting.count(), want.count, "{:?}", want.target);
        }
    }

    /// Under pressure nothing waits, however much is wanted.
    #[test]
    fn pressure_empties_the_pool(events in prop::collection::vec(happens(), 0..60)) {
        let mut world = World::default();
        for event in &events {
            world.apply(event);
            world.settle();
        }
        world.others_mib = HOST_MIB - RESERVE_MIB + 1;
        while world.slots.iter().any(|slot| !slot.waiting) {
            world.apply(&Happens::Made { nth: 0, works: true });
        }
        world.settle();
        prop_assert!(world.slots.is_empty());
    }
}

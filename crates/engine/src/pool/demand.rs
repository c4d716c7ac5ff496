//! How many slots are wanted, from what was asked for lately: pure, no I/O.

use super::rules::{Kind, Target, Want};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How many warm clones are wanted of what is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmCount {
    /// As many as were asked for within a minute, within bounds.
    Auto,
    /// So many; 0: nothing waits.
    Fixed(usize),
}

impl std::str::FromStr for WarmCount {
    type Err = String;

    /// `auto` or a number up to 64.
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count)) if count <= MAX_WARM => Ok(Self::Fixed(count)),
            _ => Err(format!(
                "`{text}` is neither `auto` nor a number up to {MAX_WARM}"
            )),
        }
    }
}

/// Of one template and size, whatever the setting.
const MAX_WARM: usize = 64;

/// Bounds of `auto`: one for the next request and one for the one after; the upper one is
/// what a person's agents start at once. A burst beyond it is served from the snapshot.
const AUTO: std::ops::RangeInclusive<usize> = 2..=8;

/// What was asked for within this time sets the wish.
const RECENT: Duration = Duration::from_secs(60);

/// What nobody has asked for this long has no slots.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// Waiting VMMs beside the warm clones: for the request that finds none.
const BOUND: usize = 1;

/// Waiting VMMs that fit any snapshot of a size.
const GENERIC: usize = 1;

/// How long a target that failed is left alone, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// What is known of the demand for one snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// A template's usual size: wanted before the first request, and for good.
    standing: bool,
    /// Requests within [`RECENT`], the oldest first.
    requests: VecDeque<Instant>,
    last_used: Instant,
}

/// Targets that could not be filled a short while ago.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<Target, Failed>);

#[derive(Clone, Copy, Debug)]
struct Failed {
    times: u32,
    blocked_until: Instant,
}

impl Demand {
    /// New, from now on.
    pub(crate) fn new(now: Instant, standing: bool) -> Self {
        Self {
            standing,
            requests: VecDeque::new(),
            last_used: now,
        }
    }

    /// A sandbox of it was asked for.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.last_used = now;
        self.requests.push_back(now);
        self.forget_old(now);
    }

    /// It is wanted from now on, whether or not it is asked for.
    pub(crate) fn stand(&mut self) {
        self.standing = true;
    }

    fn forget_old(&mut self, now: Instant) {
        // As many as there can be an effect of.
        while self.requests.len() > MAX_WARM
            || self
                .requests
                .front()
                .is_some_and(|then| now.duration_since(*then) > RECENT)
        {
            self.requests.pop_front();
        }
    }

    /// Whether nobody wants it any more.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        !self.standing && now.duration_since(self.last_used) > IDLE
    }

    /// When it was last asked for.
    pub(crate) fn last_used(&self) -> Instant {
        self.last_used
    }

    /// The wishes that follow, for the snapshot `key`, one of those that `shape` fits.
    pub(crate) fn wants(
        &mut self,
        (key, shape): (&str, &str),
        warm: WarmCount,
        now: Instant,
    ) -> [Want; 3] {
        self.forget_old(now);
        let warm = match warm {
            WarmCount::Fixed(count) => count,
            WarmCount::Auto => self.requests.len().clamp(*AUTO.start(), *AUTO.end()),
        };
        let want = |key: &str, kind, count| Want {
            target: Target {
                key: key.to_owned(),
                kind,
            },
            count,
            blocked: false,
        };
        [
            want(key, Kind::Warm, warm),
            want(key, Kind::Bound, BOUND.min(warm)),
            want(shape, Kind::Generic, GENERIC.min(warm)),
        ]
    }
}

impl Failures {
    /// A slot of it was made.
    pub(crate) fn succeeded(&mut self, target: &Target) {
        self.0.remove(target);
    }

    /// A slot of it could not be made.
    pub(crate) fn failed(&mut self, target: &Target, now: Instant) {
        let (first, most) = BACKOFF;
        let times = self.0.get(target).map_or(0, |failed| failed.times);
        let pause = first.saturating_mul(1 << times.min(16)).min(most);
        let failed = Failed {
            times: times + 1,
            blocked_until: now + pause,
        };
        self.0.insert(target.clone(), failed);
    }

    /// Marks what is left alone for now, and forgets what nobody wants.
    pub(crate) fn mark(&mut self, wants: &mut [Want], now: Instant) {
        self.0
            .retain(|target, _| wants.iter().any(|want| want.target == *target));
        for want in wants {
            let failed = self.0.get(&want.target);
            want.blocked = failed.is_some_and(|failed| now < failed.blocked_until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn warm(demand: &mut Demand, setting: WarmCount, now: Instant) -> usize {
        demand.wants(("k", "s"), setting, now)[0].count
    }

    #[test]
    fn the_setting_is_auto_or_a_small_number() {
        assert_eq!("auto".parse(), Ok(WarmCount::Auto));
        assert_eq!("0".parse(), Ok(WarmCount::Fixed(0)));
        assert!("65".parse::<WarmCount>().is_err());
        assert!("-1".parse::<WarmCount>().is_err());
        assert!("".parse::<WarmCount>().is_err());
    }

    #[test]
    fn auto_follows_the_last_minute_within_bounds() {
        let begun = Instant::now();
        let mut demand = Demand::new(begun, true);
        assert_eq!(warm(&mut demand, WarmCount::Auto, begun), 2);
        for _ in 0..5 {
            demand.asked(begun);
        }
        assert_eq!(warm(&mut demand, WarmCount::Auto, begun), 5);
        for _ in 0..500 {
            demand.asked(begun + SECOND);
        }
        assert_eq!(warm(&mut demand, WarmCount::Auto, begun + SECOND), 8);
        assert_eq!(warm(&mut demand, WarmCount::Auto, begun + 62 * SECOND), 2);
        assert_eq!(warm(&mut demand, WarmCount::Fixed(3), begun), 3);
    }

    #[test]
    fn nothing_waits_where_nothing_is_to() {
        let now = Instant::now();
        let mut demand = Demand::new(now, true);
        let wants = demand.wants(("k", "s"), WarmCount::Fixed(0), now);
        assert!(wants.iter().all(|want| want.count == 0));
    }

    #[test]
    fn what_is_idle_is_over_unless_it_stands() {
        let now = Instant::now();
        let later = now + IDLE + SECOND;
        assert!(Demand::new(now, false).is_over(later));
        assert!(!Demand::new(now, true).is_over(later));
        let mut used = Demand::new(now, false);
        used.asked(now + 2 * SECOND);
        assert!(!used.is_over(later));
    }

    #[test]
    fn a_target_that_fails_is_tried_ever_less_often() {
        let mut now = Instant::now();
        let mut wants = Demand::new(now, true).wants(("k", "s"), WarmCount::Auto, now);
        let mut failures = Failures::default();
        let mut tries = 0;
        let end = now + Duration::from_secs(3600);
        while now < end {
            failures.mark(&mut wants, now);
            if !wants[0].blocked {
                tries += 1;
                failures.failed(&wants[0].target, now);
            }
            now += SECOND;
        }
        assert!((15..=22).contains(&tries), "{tries} tries in an hour");
        assert!(!wants[1].blocked, "another kind is not to blame");
        failures.succeeded(&wants[0].target);
        failures.mark(&mut wants, now);
        assert!(!wants[0].blocked);
        failures.failed(&wants[0].target, now);
        failures.mark(&mut wants[1..], now);
        assert!(failures.0.is_empty(), "what nobody wants is forgotten");
    }
}

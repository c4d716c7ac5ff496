//! The rate of the host's time stamp counter.
//!
//! A guest without KVM reads the host's counter and cannot find its rate out by
//! itself: it must be told, and a wrong rate makes its time run fast or slow.

use std::time::Duration;

/// How long the counter is watched. A pair of readings is good to about a
/// microsecond, so this gives a few parts in 100,000.
const WATCHED: Duration = Duration::from_millis(100);

/// Readings at each end, of which the one made in the least time counts: the
/// others were interrupted between the two clocks.
const READINGS: usize = 16;

/// Measures the time stamp counter's rate in kHz against the monotonic clock,
/// within 0.05 %. Takes a tenth of a second. `None` where there is no such counter.
pub fn measure_tsc_khz() -> Option<u32> {
    let first = reading()?;
    std::thread::sleep(WATCHED);
    let second = reading()?;
    let ticks = second.ticks.checked_sub(first.ticks)?;
    let nanoseconds = second.nanoseconds.checked_sub(first.nanoseconds)?;
    let khz = u128::from(ticks) * 1_000_000 / u128::from(nanoseconds.max(1));
    u32::try_from(khz).ok().filter(|khz| *khz > 0)
}

/// Both clocks at nearly the same instant.
#[derive(Clone, Copy)]
struct Reading {
    ticks: u64,
    nanoseconds: u64,
    /// Ticks between the readings before and after the clock's.
    spread: u64,
}

fn reading() -> Option<Reading> {
    (0..READINGS)
        .filter_map(|_| {
            let before = ticks()?;
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let after = ticks()?;
            let spread = after.checked_sub(before)?;
            let nanoseconds = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            Some(Reading {
                ticks: before + spread / 2,
                nanoseconds,
                spread,
            })
        })
        .min_by_key(|reading| reading.spread)
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 has the instruction, and Linux allows it in user mode.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        let first = f64::from(measure_tsc_khz().unwrap());
        let second = f64::from(measure_tsc_khz().unwrap());
        assert!((first / second - 1.0).abs() < 0.001, "{first} and {second}");
    }
}

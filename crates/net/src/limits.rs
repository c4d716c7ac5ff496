//! How much one guest may have, and buckets to measure it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What one sandbox may use of the host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Connections at once, those that are being dialled included. Each has a descriptor
    /// and, while bytes wait, up to half a megabyte.
    pub connections: usize,
    /// New connections per second, on average; four seconds' worth may come at once.
    pub new_connections_per_second: u32,
    /// UDP flows and pings at once, a descriptor each; the longest unused goes first.
    pub udp_flows: usize,
    /// Names asked for per second, on average; two and a half seconds' worth may come at
    /// once.
    pub dns_per_second: u32,
    /// Payload bytes per second, each way; `None` for no limit.
    pub bandwidth_bytes_per_second: Option<u64>,
}

impl Default for GatewayLimits {
    /// A build that fetches hundreds of packages stays below; a scanner does not.
    fn default() -> Self {
        Self {
            connections: 1024,
            new_connections_per_second: 1000,
            udp_flows: 256,
            dns_per_second: 200,
            bandwidth_bytes_per_second: None,
        }
    }
}

impl GatewayLimits {
    pub(crate) fn connection_bucket(&self) -> Bucket {
        let rate = u64::from(self.new_connections_per_second);
        Bucket::new(rate, rate * 4)
    }

    pub(crate) fn dns_bucket(&self) -> Bucket {
        let rate = u64::from(self.dns_per_second);
        Bucket::new(rate, rate * 5 / 2)
    }

    pub(crate) fn bandwidth_bucket(&self) -> Option<Bucket> {
        /// Short enough that a transfer looks steady, long enough for a timer.
        const BURST_PART: u64 = 8;
        /// So that a datagram passes at any rate.
        const LEAST_BURST: u64 = 64 << 10;
        let rate = self.bandwidth_bytes_per_second?.max(1);
        Some(Bucket::new(rate, (rate / BURST_PART).max(LEAST_BURST)))
    }
}

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: u64,
    burst: u64,
    state: Mutex<BucketState>,
}

#[derive(Debug)]
struct BucketState {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: u64, burst: u64) -> Self {
        let burst = burst.max(1);
        Self {
            rate,
            burst,
            state: Mutex::new(BucketState {
                tokens: as_float(burst),
                filled: Instant::now(),
            }),
        }
    }

    /// Takes one, if there is one.
    pub(crate) fn take_one(&self) -> bool {
        self.take(1, Instant::now())
    }

    /// Takes `count`, or nothing where fewer are left.
    pub(crate) fn take(&self, count: u64, now: Instant) -> bool {
        let mut state = self.filled(now);
        let enough = state.tokens >= as_float(count);
        if enough {
            state.tokens -= as_float(count);
        }
        enough
    }

    /// How many are left now.
    pub(crate) fn left(&self, now: Instant) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between 0 and the burst"
        )]
        let left = self.filled(now).tokens.max(0.0) as usize;
        left
    }

    /// Takes what was used after [`Bucket::left`] was asked; others may have used it too,
    /// and the difference is owed.
    pub(crate) fn use_up(&self, count: usize) {
        self.filled(Instant::now()).tokens -= as_float(count as u64);
    }

    /// How long until a useful amount is there.
    pub(crate) fn wait(&self) -> Duration {
        /// A quarter of the burst, for few wake-ups.
        const PART: f64 = 4.0;
        let tokens = self.filled(Instant::now()).tokens;
        let missing = (as_float(self.burst) / PART - tokens).max(1.0);
        Duration::from_secs_f64((missing / as_float(self.rate.max(1))).min(1.0))
    }

    fn filled(&self, now: Instant) -> std::sync::MutexGuard<'_, BucketState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.filled).as_secs_f64();
        state.tokens = (state.tokens + passed * as_float(self.rate)).min(as_float(self.burst));
        state.filled = state.filled.max(now);
        state
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
fn as_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let bucket = Bucket::new(10, 25);
        let start = Instant::now();
        let taken = (0..100).filter(|_| bucket.take(1, start)).count();
        assert_eq!(taken, 25);
        let later = start + Duration::from_secs(1);
        let taken = (0..100).filter(|_| bucket.take(1, later)).count();
        assert_eq!(taken, 10);
    }

    #[test]
    fn what_is_owed_is_paid_first() {
        let bucket = Bucket::new(1000, 1000);
        bucket.use_up(3000);
        assert!(bucket.wait() > Duration::from_millis(900));
        let now = Instant::now();
        assert_eq!(bucket.left(now), 0);
        assert_eq!(bucket.left(now + Duration::from_millis(1900)), 0);
        assert!(bucket.left(now + Duration::from_millis(2500)) > 0);
    }
}

//! Numbers from samples.

use serde::Serialize;
use std::time::Instant;

/// What a figure's numbers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// 1,000,000 bytes a second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// 1,048,576 bytes.
    #[serde(rename = "MiB")]
    Mebibytes,
    /// Time for each 1,048,576 bytes.
    #[serde(rename = "ms/MiB")]
    MillisecondsPerMebibyte,
    /// Requests and their answers in a second.
    #[serde(rename = "requests/s")]
    RequestsPerSecond,
    /// Hundredths.
    #[serde(rename = "%")]
    Percent,
}

impl Unit {
    const ALL: [Self; 7] = [
        Self::Milliseconds,
        Self::Seconds,
        Self::MegabytesPerSecond,
        Self::Mebibytes,
        Self::MillisecondsPerMebibyte,
        Self::RequestsPerSecond,
        Self::Percent,
    ];

    /// Its word, in tables and bounds.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::MegabytesPerSecond => "MB/s",
            Self::Mebibytes => "MiB",
            Self::MillisecondsPerMebibyte => "ms/MiB",
            Self::RequestsPerSecond => "requests/s",
            Self::Percent => "%",
        }
    }

    /// The unit with this word.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.word() == word)
    }

    /// What less of it is.
    pub(crate) fn better_word(self) -> &'static str {
        match self {
            Self::Mebibytes => "smaller",
            _ => "faster",
        }
    }

    /// What more of it is.
    pub(crate) fn worse_word(self) -> &'static str {
        match self {
            Self::Mebibytes => "larger",
            _ => "slower",
        }
    }

    /// Whether it says how fast the machine is as much as how fast Pando is.
    pub(crate) fn is_time(self) -> bool {
        matches!(
            self,
            Self::Milliseconds | Self::Seconds | Self::MillisecondsPerMebibyte
        )
    }
}

/// Which of two numbers is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    /// The smaller.
    Less,
    /// The larger.
    More,
}

/// Samples in short. At least N % of them are as good as `pN` or better; so with fewer
/// than 100 samples `p99` is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// How many.
    pub(crate) n: usize,
    /// The best.
    pub(crate) best: f64,
    /// The median.
    pub(crate) p50: f64,
    /// See above.
    pub(crate) p90: f64,
    /// See above.
    pub(crate) p99: f64,
    /// The worst.
    pub(crate) worst: f64,
}

impl Summary {
    /// Of samples; `None` of none.
    pub(crate) fn of(samples: &[f64], better: Better) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        if better == Better::More {
            sorted.reverse();
        }
        let rank = |percent: usize| {
            let rank = (percent * sorted.len()).div_ceil(100).max(1);
            sorted.get(rank - 1).copied()
        };
        Some(Self {
            n: sorted.len(),
            best: *sorted.first()?,
            p50: rank(50)?,
            p90: rank(90)?,
            p99: rank(99)?,
            worst: *sorted.last()?,
        })
    }
}

/// The slope of the line that is nearest to some points, by least squares; `None` where
/// there is none.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let spread = sum(&|point| (point.0 - x).powi(2));
    (spread > 0.0).then(|| sum(&|point| (point.0 - x) * (point.1 - y)) / spread)
}

/// Time that has passed, to the microsecond: what is beyond is noise.
pub(crate) fn milliseconds_since(began: Instant) -> f64 {
    began.elapsed().as_micros() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks_from_the_best() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let times = Summary::of(&samples, Better::Less).unwrap();
        assert_eq!((times.best, times.p50, times.p90), (1.0, 50.0, 90.0));
        assert_eq!((times.p99, times.worst, times.n), (99.0, 100.0, 100));
        let rates = Summary::of(&samples, Better::More).unwrap();
        assert_eq!((rates.best, rates.p50, rates.p90), (100.0, 51.0, 11.0));
        assert_eq!((rates.p99, rates.worst), (2.0, 1.0));
    }

    #[test]
    fn few_samples_have_no_tail_beyond_the_worst() {
        let one = Summary::of(&[7.0], Better::Less).unwrap();
        assert_eq!((one.p50, one.p99, one.n), (7.0, 7.0, 1));
        let three = Summary::of(&[3.0, 1.0, 2.0], Better::Less).unwrap();
        assert_eq!((three.p50, three.p90, three.p99), (2.0, 3.0, 3.0));
        assert_eq!(Summary::of(&[], Better::Less), None);
    }

    #[test]
    fn a_slope_is_that_of_the_nearest_line() {
        let near =
            |points: &[(f64, f64)], wanted: f64| (slope(points).unwrap() - wanted).abs() < 1e-9;
        assert!(near(&[(1.0, 5.0), (8.0, 8.5), (16.0, 12.5)], 0.5));
        assert!(near(&[(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)], 0.0));
        assert_eq!(slope(&[(2.0, 1.0), (2.0, 3.0)]), None);
        assert_eq!(slope(&[]), None);
    }

    #[test]
    fn units_are_read_as_they_are_written() {
        for unit in Unit::ALL {
            assert_eq!(Unit::of_word(unit.word()), Some(unit));
            let json = serde_json::to_string(&unit).unwrap();
            assert_eq!(json, format!("\"{}\"", unit.word()));
        }
        assert_eq!(Unit::of_word("µs"), None);
    }
}

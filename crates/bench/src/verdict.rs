//! Whether a figure keeps its bounds.

use crate::bounds::{Bound, Limit};
use crate::figure::{Figure, Measured};
use crate::stats::Better;
use serde::Serialize;

/// How a bound was kept.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The figure.
    pub figure: String,
    /// The bound as SPECIFICATION.md has it.
    pub bound: String,
    /// How it went.
    pub outcome: Outcome,
    /// What was measured, in the bound's terms.
    pub got: String,
    /// Whether the check fails when it is missed. Times depend on the machine, so only
    /// their ratios are checked.
    pub checked: bool,
    /// The baseline that the bound names.
    pub baseline: Option<String>,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As promised.
    Met,
    /// Promised, and not so.
    Missed,
    /// Not so, and SPECIFICATION.md says that.
    Red,
    /// SPECIFICATION.md says that it is not so, but it is.
    RedButMet,
    /// Nothing was measured.
    Unknown,
}

impl Verdict {
    /// On one bound of a figure.
    pub(crate) fn on(bound: &Bound, figure: &Figure) -> Self {
        let comparison = compare(bound, figure);
        let (outcome, got) = match comparison {
            Ok(Comparison { kept, got }) => (Outcome::of(kept, bound.red), got),
            Err(reason) => (Outcome::Unknown, reason),
        };
        let absolute_time = match &bound.limit {
            Limit::AtMost(_, unit) | Limit::AtLeast(_, unit) => unit.is_time(),
            Limit::Better(..) | Limit::Times(..) => false,
        };
        Self {
            figure: bound.figure.clone(),
            bound: bound.text.clone(),
            outcome,
            got,
            checked: !absolute_time && !bound.red,
            baseline: bound.limit.baseline().map(str::to_owned),
        }
    }

    /// Whether the check fails for it.
    pub fn is_failure(&self) -> bool {
        self.checked && matches!(self.outcome, Outcome::Missed | Outcome::Unknown)
    }
}

impl Outcome {
    fn of(kept: bool, red: bool) -> Self {
        match (kept, red) {
            (true, false) => Self::Met,
            (false, false) => Self::Missed,
            (false, true) => Self::Red,
            (true, true) => Self::RedButMet,
        }
    }

    /// For the table.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Red => "red",
            Self::RedButMet => "met, though red in SPECIFICATION.md",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// The verdicts for which the check fails.
pub fn fails(verdicts: &[Verdict]) -> impl Iterator<Item = &Verdict> {
    verdicts.iter().filter(|verdict| verdict.is_failure())
}

struct Comparison {
    kept: bool,
    got: String,
}

fn compare(bound: &Bound, figure: &Figure) -> Result<Comparison, String> {
    let measured = match &figure.measured {
        Measured::Samples { summary, .. } => bound.statistic.of(summary),
        Measured::Missing { missing } => return Err(missing.clone()),
    };
    Ok(match &bound.limit {
        Limit::AtMost(most, unit) => Comparison {
            kept: measured <= *most,
            got: format!("{} {}", number(measured), unit.word()),
        },
        Limit::AtLeast(least, unit) => Comparison {
            kept: measured >= *least,
            got: format!("{} {}", number(measured), unit.word()),
        },
        Limit::Better(least, name) => {
            let ratio = advantage(figure.better, measured, baseline(figure, name)?);
            Comparison {
                kept: ratio >= *least,
                got: format!("{} × {}", number(ratio), figure.unit.better_word()),
            }
        }
        Limit::Times(most, name) => {
            let ratio = 1.0 / advantage(figure.better, measured, baseline(figure, name)?);
            Comparison {
                kept: ratio <= *most,
                got: format!("{} ×", number(ratio)),
            }
        }
    })
}

/// How many times better a number is than another.
pub(crate) fn advantage(better: Better, measured: f64, other: f64) -> f64 {
    match better {
        Better::Less => other / measured,
        Better::More => measured / other,
    }
}

/// The median of a baseline.
fn baseline(figure: &Figure, name: &str) -> Result<f64, String> {
    let baseline = figure.baseline(name);
    match baseline.map(|baseline| &baseline.measured) {
        Some(Measured::Samples { summary, .. }) => Ok(summary.p50),
        Some(Measured::Missing { missing }) => Err(format!("`{name}`: {missing}")),
        None => Err(format!("`{name}` is no baseline of this figure")),
    }
}

/// A number as short as its size allows.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Statistic;
    use crate::figure::Baseline;
    use crate::stats::Unit;

    fn bound(limit: Limit, red: bool) -> Bound {
        Bound {
            figure: "create-warm".to_owned(),
            text: "as written".to_owned(),
            statistic: Statistic::P50,
            limit,
            red,
        }
    }

    fn figure(samples: &[f64]) -> Figure {
        let runsc = Baseline {
            name: "runsc run",
            what: String::new(),
            measured: Measured::of(vec![150.0], Better::Less),
        };
        let crun = Baseline {
            name: "crun run",
            what: String::new(),
            measured: Measured::missing("not installed"),
        };
        Figure::new("create-warm", samples.to_vec()).baselines([runsc, crun])
    }

    fn faster(times: f64) -> Limit {
        Limit::Better(times, "runsc run".to_owned())
    }

    #[test]
    fn ratios_fail_the_check_and_times_do_not() {
        let slow = figure(&[75.0]);
        let time = Verdict::on(
            &bound(Limit::AtMost(60.0, Unit::Milliseconds), false),
            &slow,
        );
        assert_eq!(time.outcome, Outcome::Missed);
        assert!(!time.is_failure());
        let ratio = Verdict::on(&bound(faster(3.0), false), &slow);
        assert_eq!(
            (ratio.outcome, ratio.got.as_str()),
            (Outcome::Missed, "2.00 × faster")
        );
        assert!(ratio.is_failure());
        let kept = Verdict::on(&bound(faster(2.0), false), &slow);
        assert_eq!(kept.outcome, Outcome::Met);
        let times = Limit::Times(0.4, "runsc run".to_owned());
        assert_eq!(Verdict::on(&bound(times, false), &slow).got, "0.50 ×");
        assert_eq!(fails(&[time, ratio, kept]).count(), 1);
    }

    #[test]
    fn red_rows_never_fail_and_say_when_they_are_met() {
        let missed = Verdict::on(&bound(faster(3.0), true), &figure(&[75.0]));
        assert_eq!(missed.outcome, Outcome::Red);
        let met = Verdict::on(&bound(faster(3.0), true), &figure(&[40.0]));
        assert_eq!(met.outcome, Outcome::RedButMet);
        assert!(!missed.is_failure() && !met.is_failure());
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let crun = Limit::Better(1.0, "crun run".to_owned());
        let verdict = Verdict::on(&bound(crun, false), &figure(&[75.0]));
        assert_eq!(verdict.got, "`crun run`: not installed");
        assert!(verdict.is_failure());
        let other = Limit::Better(1.0, "podman".to_owned());
        assert!(Verdict::on(&bound(other, false), &figure(&[75.0])).is_failure());
        let none = Figure::missing("create-warm", "no room");
        let verdict = Verdict::on(&bound(faster(3.0), false), &none);
        assert_eq!(
            (verdict.outcome, verdict.got.as_str()),
            (Outcome::Unknown, "no room")
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            (number(0.1234), number(12.34)),
            ("0.12".into(), "12.3".into())
        );
        assert_eq!(number(123.4), "123");
    }
}

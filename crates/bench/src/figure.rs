//! Figures: the numbers that come out, each with a name that SPECIFICATION.md uses.

use crate::stats::{Better, Summary, Unit};
use serde::Serialize;

/// What is fixed about a figure. What it measures is said in SPECIFICATION.md.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FigureInfo {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
}

const fn figure(name: &'static str, unit: Unit, better: Better) -> FigureInfo {
    FigureInfo { name, unit, better }
}

/// Every figure, in the order in which they are shown.
#[rustfmt::skip]
pub(crate) const FIGURES: &[FigureInfo] = {
    use Better::{Less, More};
    use Unit::{
        MegabytesPerSecond, Mebibytes, Milliseconds, MillisecondsPerMebibyte, Percent,
        RequestsPerSecond, Seconds,
    };
    &[
        figure("create-warm", Milliseconds, Less),
        figure("create-warm-hits", Percent, More),
        figure("create-snapshot", Milliseconds, Less),
        figure("create-burst", Milliseconds, Less),
        figure("create-burst-wall", Seconds, Less),
        figure("create-burst-hits", Percent, More),
        figure("create-at-once", Milliseconds, Less),
        figure("create-at-once-wall", Seconds, Less),
        figure("create-at-once-hits", Percent, More),
        figure("burst-100", Milliseconds, Less),
        figure("burst-100-wall", Seconds, Less),
        figure("burst-100-first", Percent, More),
        figure("exec", Milliseconds, Less),
        figure("ping", Milliseconds, Less),
        figure("files-upload", MegabytesPerSecond, More),
        figure("files-download", MegabytesPerSecond, More),
        figure("files-daemon-growth", Mebibytes, Less),
        figure("files-shim-growth", Mebibytes, Less),
        figure("memory", Mebibytes, Less),
        figure("memory-guest", Mebibytes, Less),
        figure("memory-vmm", Mebibytes, Less),
        figure("memory-shim", Mebibytes, Less),
        figure("idle-exec", Milliseconds, Less),
        figure("idle-daemon", Mebibytes, Less),
        figure("idle-cpu", Percent, Less),
        figure("snapshot-pause", Milliseconds, Less),
        figure("snapshot-slope", MillisecondsPerMebibyte, Less),
        figure("snapshot-durable", Milliseconds, Less),
        figure("snapshot-bytes", Mebibytes, Less),
        figure("snapshot-tenth", Milliseconds, Less),
        figure("snapshot-tenth-bytes", Mebibytes, Less),
        figure("snapshot-gap", Milliseconds, Less),
        figure("rollback", Milliseconds, Less),
        figure("rollback-exec", Milliseconds, Less),
        figure("resume", Milliseconds, Less),
        figure("resume-exec", Milliseconds, Less),
        figure("fork", Seconds, Less),
        figure("fork-cpu", Milliseconds, Less),
        figure("fork-memory", Mebibytes, Less),
        figure("net-download", MegabytesPerSecond, More),
        figure("net-upload", MegabytesPerSecond, More),
        figure("net-connect", Milliseconds, Less),
        figure("net-held", Mebibytes, Less),
        figure("net-left-memory", Percent, Less),
        figure("net-left-descriptors", Percent, Less),
        figure("ports-requests", RequestsPerSecond, More),
        figure("ports-download", MegabytesPerSecond, More),
        figure("ports-exec-delay", Milliseconds, Less),
    ]
};

/// What is fixed about the figure of this name.
pub(crate) fn info(name: &str) -> Option<&'static FigureInfo> {
    FIGURES.iter().find(|figure| figure.name == name)
}

/// What was measured, or why it could not be.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Measured {
    /// The samples, in the order in which they were taken.
    Samples {
        #[serde(flatten)]
        summary: Summary,
        samples: Vec<f64>,
    },
    /// Nothing.
    Missing {
        /// A sentence.
        missing: String,
    },
}

impl Measured {
    /// Of samples that were taken.
    pub(crate) fn of(samples: Vec<f64>, better: Better) -> Self {
        match Summary::of(&samples, better) {
            Some(summary) => Self::Samples { summary, samples },
            None => Self::missing("no sample was taken"),
        }
    }

    /// Nothing, for this reason.
    pub(crate) fn missing(reason: impl Into<String>) -> Self {
        Self::Missing {
            missing: reason.into(),
        }
    }

    /// In short, if there is anything.
    pub(crate) fn summary(&self) -> Option<&Summary> {
        match self {
            Self::Samples { summary, .. } => Some(summary),
            Self::Missing { .. } => None,
        }
    }
}

/// Something that a figure is compared with, measured beside it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Baseline {
    /// As bounds name it.
    pub(crate) name: &'static str,
    /// What was measured.
    pub(crate) what: String,
    /// The numbers, in the figure's unit.
    pub(crate) measured: Measured,
}

/// Part of a figure's samples, for whoever wonders where the time goes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) measured: Measured,
}

/// A figure with its baselines.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    pub(crate) measured: Measured,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<Part>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) baselines: Vec<Baseline>,
    /// What a reader of the numbers must know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

impl Figure {
    /// A figure of [`FIGURES`] from its samples.
    pub(crate) fn new(name: &'static str, samples: Vec<f64>) -> Self {
        let (unit, better) = Self::kind(name);
        Self::with(name, unit, better, Measured::of(samples, better))
    }

    /// A figure that could not be measured.
    pub(crate) fn missing(name: &'static str, reason: impl Into<String>) -> Self {
        let (unit, better) = Self::kind(name);
        Self::with(name, unit, better, Measured::missing(reason))
    }

    fn with(name: &'static str, unit: Unit, better: Better, measured: Measured) -> Self {
        Self {
            name,
            unit,
            better,
            measured,
            parts: Vec::new(),
            baselines: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn kind(name: &str) -> (Unit, Better) {
        let found = info(name);
        debug_assert!(found.is_some(), "`{name}` is not in FIGURES");
        found.map_or((Unit::Milliseconds, Better::Less), |info| {
            (info.unit, info.better)
        })
    }

    pub(crate) fn part(mut self, name: &'static str, samples: Vec<f64>) -> Self {
        let measured = Measured::of(samples, self.better);
        self.parts.push(Part { name, measured });
        self
    }

    pub(crate) fn baselines(mut self, baselines: impl IntoIterator<Item = Baseline>) -> Self {
        self.baselines.extend(baselines);
        self
    }

    pub(crate) fn notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }

    /// The baseline of this name.
    pub(crate) fn baseline(&self, name: &str) -> Option<&Baseline> {
        self.baselines.iter().find(|baseline| baseline.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_begin_with_an_experiment() {
        let names: HashSet<_> = FIGURES.iter().map(|figure| figure.name).collect();
        assert_eq!(names.len(), FIGURES.len());
        for figure in FIGURES {
            let begins = |experiment: Experiment| {
                let rest = figure.name.strip_prefix(experiment.word());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            assert!(Experiment::ALL.into_iter().any(begins), "{}", figure.name);
        }
    }
}

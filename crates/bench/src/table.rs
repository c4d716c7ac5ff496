//! A report for people.

use crate::figure::{Baseline, Figure, Measured};
use crate::report::Report;
use crate::verdict::{Verdict, advantage, number};
use std::fmt::Write as _;

const HEADINGS: [&str; 10] = [
    "FIGURE", "N", "P50", "P90", "P99", "BASELINE", "ITS P50", "PANDO IS", "TARGET", "",
];

type Row = [String; HEADINGS.len()];

/// The machine, the figures, and what they mean.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    head(&mut text, report);
    let mut rows: Vec<Row> = vec![HEADINGS.map(str::to_owned)];
    for figure in &report.figures {
        let verdicts = report.verdicts.iter();
        let verdicts: Vec<_> = verdicts
            .filter(|verdict| verdict.figure == figure.name)
            .collect();
        rows.extend(rows_of(figure, &verdicts));
    }
    text.push_str(&columns(&rows));
    text.push('\n');
    for definition in &report.definitions {
        let _ = writeln!(text, "{}: {}", definition.figure, definition.what);
    }
    baselines(&mut text, report);
    text.push_str(
        "pN: N % of the samples are as good or better. Times depend on the machine: `--check` fails for \
         ratios, memory, rates.\n",
    );
    text
}

fn head(text: &mut String, report: &Report) {
    let (machine, pando) = (&report.machine, &report.pando);
    let _ = writeln!(
        text,
        "machine  {}, {} cores, {} MiB, {}, Linux {}, load before {}\n\
         pando    {}, {}, {} ({})\n\
         run      {}, {:.0} s\n",
        machine.cpu,
        machine.cores,
        machine.memory_mib,
        machine.system,
        machine.kernel,
        machine.load,
        pando.version,
        pando.vmm,
        pando.accelerator,
        pando.accelerator_reason,
        report.started_at,
        report.duration_s,
    );
}

/// One row a bound; baselines that no bound names fill rows up or get their own.
fn rows_of(figure: &Figure, verdicts: &[&Verdict]) -> Vec<Row> {
    let named = |baseline: &&Baseline| {
        verdicts
            .iter()
            .any(|verdict| verdict.baseline.as_deref() == Some(baseline.name))
    };
    let mut others = figure.baselines.iter().filter(|baseline| !named(baseline));
    let mut rows: Vec<Row> = Vec::new();
    for verdict in verdicts {
        let baseline = match &verdict.baseline {
            Some(name) => figure.baseline(name),
            None => others.next(),
        };
        rows.push(row(figure, baseline, Some(verdict)));
    }
    rows.extend(others.map(|baseline| row(figure, Some(baseline), None)));
    if rows.is_empty() {
        rows.push(row(figure, None, None));
    }
    name_first(figure, &mut rows[0]);
    rows
}

fn name_first(figure: &Figure, row: &mut Row) {
    row[0] = figure.name.to_owned();
    if let Some(summary) = figure.measured.summary() {
        row[1] = summary.n.to_string();
        let unit = figure.unit.word();
        row[2] = format!("{} {unit}", number(summary.p50));
        if summary.n > 1 {
            row[3] = number(summary.p90);
            row[4] = number(summary.p99);
        }
    } else {
        row[1] = "0".to_owned();
    }
}

fn row(figure: &Figure, baseline: Option<&Baseline>, verdict: Option<&Verdict>) -> Row {
    let mut row = Row::default();
    if let Some(baseline) = baseline {
        row[5] = baseline.name.to_owned();
        (row[6], row[7]) = against(figure, baseline);
    }
    if let Some(verdict) = verdict {
        row[8].clone_from(&verdict.bound);
        row[9] = verdict.outcome.word().to_owned();
    }
    row
}

fn against(figure: &Figure, baseline: &Baseline) -> (String, String) {
    let other = match &baseline.measured {
        Measured::Samples { summary, .. } => summary.p50,
        Measured::Missing { .. } => return ("none".to_owned(), String::new()),
    };
    let ratio = figure.measured.summary().map(|summary| {
        let ratio = advantage(figure.better, summary.p50, other);
        match ratio < 1.0 {
            true => format!("{} × {}", number(1.0 / ratio), figure.unit.worse_word()),
            false => format!("{} × {}", number(ratio), figure.unit.better_word()),
        }
    });
    (number(other), ratio.unwrap_or_default())
}

/// What each baseline is, said once, and what was odd.
fn baselines(text: &mut String, report: &Report) {
    let mut said = Vec::new();
    for figure in &report.figures {
        for baseline in &figure.baselines {
            if said.contains(&baseline.name) {
                continue;
            }
            said.push(baseline.name);
            let _ = write!(text, "{}: {}", baseline.name, baseline.what);
            if let Measured::Missing { missing } = &baseline.measured {
                let _ = write!(text, "; {missing}");
            }
            text.push('\n');
        }
    }
    for figure in &report.figures {
        if let Measured::Missing { missing } = &figure.measured {
            let _ = writeln!(text, "{} was not measured: {missing}", figure.name);
        }
        let parts = figure.parts.iter().filter_map(|part| {
            let p50 = part.measured.summary()?.p50;
            Some(format!("{} {}", part.name, number(p50)))
        });
        let parts: Vec<_> = parts.collect();
        if !parts.is_empty() {
            let _ = writeln!(
                text,
                "{}, p50 of its parts: {}",
                figure.name,
                parts.join(", ")
            );
        }
        let first = report.first_attempts.iter();
        for first in first.filter(|first| first.name == figure.name) {
            if let Some(summary) = first.measured.summary() {
                let p50 = number(summary.p50);
                let _ = writeln!(
                    text,
                    "{}: measured twice, p50 was {p50} at first",
                    first.name
                );
            }
        }
        for note in &figure.notes {
            let _ = writeln!(text, "{}: note: {note}", figure.name);
        }
    }
}

/// Two spaces apart, as wide as they need; numbers to the right.
fn columns(rows: &[Row]) -> String {
    let mut widths = [0; HEADINGS.len()];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = match at {
                1..=4 | 6 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Better;
    use crate::verdict::Outcome;

    fn verdict(bound: &str, baseline: Option<&str>) -> Verdict {
        Verdict {
            figure: "create-warm".to_owned(),
            bound: bound.to_owned(),
            outcome: Outcome::Met,
            got: String::new(),
            checked: true,
            baseline: baseline.map(str::to_owned),
        }
    }

    #[test]
    fn a_bound_stands_beside_the_baseline_that_it_names() {
        let baseline = |name, samples: &[f64]| Baseline {
            name,
            what: String::new(),
            measured: Measured::of(samples.to_vec(), Better::Less),
        };
        let figure = Figure::new("create-warm", vec![50.0, 70.0, 60.0]).baselines([
            baseline("crun run", &[15.0]),
            baseline("runsc run", &[180.0]),
            baseline("runc run", &[]),
        ]);
        let first = verdict("p50 ≤ 60 ms", None);
        let second = verdict("p50 ≥ 3 × faster than `runsc run`", Some("runsc run"));
        let rows = rows_of(&figure, &[&first, &second]);
        let text = columns(&rows);
        assert_eq!(
            text,
            "create-warm  3  60.0 ms  70.0  70.0  crun run   15.0  4.00 × slower  p50 ≤ 60 ms                        met\n\
             \x20                                    runsc run   180  3.00 × faster  p50 ≥ 3 × faster than `runsc run`  met\n\
             \x20                                    runc run   none\n"
        );
    }
}

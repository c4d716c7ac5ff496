//! The Speed table of SPECIFICATION.md: what is measured and what is promised.
//!
//! ```text
//!   | figure        | what is measured   | bound                              | state |
//!   | `create-warm` | POST …, then exec  | p50 ≤ 60 ms                        | met   |
//!   | `create-warm` |                    | p50 ≥ 3 × faster than `runsc run`  | met   |
//!   | `ping`        | POST …/ping        | p50 ≤ 4 × `GET /healthz`           | red   |
//!   | `snapshot-bytes` |                 | p50 ≥ 5 × smaller than `savevm`    | met   |
//!   | `net-upload` |                    | p50 ≥ 0.8 × `-netdev user`         | met   |
//!   | `memory-shim` | private memory …   | –                                  | –     |
//! ```
//!
//! A figure may have several rows; the first says what is measured.

use crate::figure::info;
use crate::stats::{Better, Summary, Unit};
use serde::Serialize;

/// Where the table begins and ends.
const BEGIN: &str = "<!-- bench: begin -->";
const END: &str = "<!-- bench: end -->";

/// What stands where there is no bound.
const NONE: &str = "–";

/// The table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    /// What each figure measures.
    pub(crate) definitions: Vec<Definition>,
    /// What is promised or hoped for.
    pub(crate) bounds: Vec<Bound>,
}

/// What a figure measures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Definition {
    pub(crate) figure: String,
    pub(crate) what: String,
}

/// A row with a bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) figure: String,
    /// As it is written.
    pub(crate) text: String,
    pub(crate) statistic: Statistic,
    pub(crate) limit: Limit,
    /// Whether it is known to be missed for now.
    pub(crate) red: bool,
}

/// Which number of a figure is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    P50,
    P90,
    P99,
    Worst,
}

impl Statistic {
    fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "p50" => Self::P50,
            "p90" => Self::P90,
            "p99" => Self::P99,
            "worst" => Self::Worst,
            _ => return None,
        })
    }

    /// That number.
    pub(crate) fn of(self, summary: &Summary) -> f64 {
        match self {
            Self::P50 => summary.p50,
            Self::P90 => summary.p90,
            Self::P99 => summary.p99,
            Self::Worst => summary.worst,
        }
    }
}

/// What a number is held against.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Limit {
    /// `≤ 60 ms`.
    AtMost(f64, Unit),
    /// `≥ 30 MB/s`.
    AtLeast(f64, Unit),
    /// `≥ 3 × faster than` or `smaller than` the baseline's median; of a rate also `≥ 0.8 ×` it.
    Better(f64, String),
    /// `≤ 4 ×` the baseline's median.
    Times(f64, String),
}

impl Limit {
    /// The baseline that it names.
    pub(crate) fn baseline(&self) -> Option<&str> {
        match self {
            Self::AtMost(..) | Self::AtLeast(..) => None,
            Self::Better(_, name) | Self::Times(_, name) => Some(name),
        }
    }
}

/// What is wrong with the table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// One of its marks is missing.
    #[error("there is no `{0}`")]
    NoMark(&'static str),
    /// A row that cannot be read.
    #[error("{reason}: `{row}`")]
    Row {
        /// The row.
        row: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// The table that this program was built with.
pub(crate) fn built_in() -> Result<Table, TableError> {
    parse(include_str!("../../../SPECIFICATION.md"))
}

fn parse(text: &str) -> Result<Table, TableError> {
    let (_, rest) = text.split_once(BEGIN).ok_or(TableError::NoMark(BEGIN))?;
    let (body, _) = rest.split_once(END).ok_or(TableError::NoMark(END))?;
    let mut table = Table {
        definitions: Vec::new(),
        bounds: Vec::new(),
    };
    // The heading and the line below it name no figure.
    for row in body.lines().filter(|line| line.starts_with("| `")) {
        parse_row(row, &mut table).map_err(|reason| TableError::Row {
            row: row.to_owned(),
            reason,
        })?;
    }
    Ok(table)
}

fn parse_row(row: &str, table: &mut Table) -> Result<(), &'static str> {
    let cells: Vec<_> = row.trim().trim_matches('|').split('|').collect();
    let cells: Vec<_> = cells.into_iter().map(str::trim).collect();
    let &[name, what, text, state] = &*cells else {
        return Err("a row has four cells");
    };
    let figure = name.trim_matches('`').to_owned();
    let better = info(&figure).ok_or("there is no such figure")?.better;
    let known = table.definitions.iter().any(|known| known.figure == figure);
    match (known, what.is_empty()) {
        (false, true) => return Err("a figure's first row says what is measured"),
        (true, false) => return Err("what is measured is said in a figure's first row only"),
        (false, false) => table.definitions.push(Definition {
            figure: figure.clone(),
            what: what.to_owned(),
        }),
        (true, true) => {}
    }
    let red = match (text == NONE, state) {
        (true, NONE) => return Ok(()),
        (false, "met") => false,
        (false, "red") => true,
        _ => return Err("the state of a bound is `met` or `red`"),
    };
    let (statistic, limit) = parse_bound(text, better)?;
    table.bounds.push(Bound {
        figure,
        text: text.to_owned(),
        statistic,
        limit,
        red,
    });
    Ok(())
}

/// `p50 ≤ 60 ms`, `p50 ≥ 3 × faster than NAME`, `p50 ≤ 4 × NAME`.
fn parse_bound(text: &str, better: Better) -> Result<(Statistic, Limit), &'static str> {
    let mut words = text.splitn(4, ' ');
    let mut word = || words.next().ok_or("a bound has four words at least");
    let statistic =
        Statistic::of_word(word()?).ok_or("a bound begins with p50, p90, p99, worst")?;
    let relation = word()?;
    let number: f64 = word()?.parse().map_err(|_| "a bound has a number")?;
    let rest = word()?;
    let limit = match (relation, rest.strip_prefix("× ")) {
        ("≤", None) => Limit::AtMost(number, unit(rest)?),
        ("≥", None) => Limit::AtLeast(number, unit(rest)?),
        ("≤", Some(baseline)) => Limit::Times(number, name(baseline)?),
        ("≥", Some(than)) => {
            let baseline = than.strip_prefix("faster than ");
            let baseline = baseline.or_else(|| than.strip_prefix("smaller than "));
            let baseline = match (baseline, better) {
                (Some(baseline), _) => baseline,
                (None, Better::More) => than,
                (None, Better::Less) => return Err("`≥ N × faster than` or `smaller than`"),
            };
            Limit::Better(number, name(baseline)?)
        }
        _ => return Err("a bound has `≤` or `≥`"),
    };
    Ok((statistic, limit))
}

fn unit(word: &str) -> Result<Unit, &'static str> {
    Unit::of_word(word).ok_or("there is no such unit")
}

fn name(quoted: &str) -> Result<String, &'static str> {
    let inner = quoted
        .strip_prefix('`')
        .and_then(|rest| rest.strip_suffix('`'));
    inner.map(str::to_owned).ok_or("a baseline is in backticks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::FIGURES;

    fn of_rows(rows: &str) -> Result<Table, TableError> {
        parse(&format!(
            "x\n{BEGIN}\n| figure | what | bound | state |\n|---|---|---|---|\n{rows}\n{END}\n"
        ))
    }

    #[test]
    fn every_kind_of_row_is_read() {
        let table = of_rows(
            "| `create-warm` | a, then b | p50 ≤ 60 ms | met |\n\
             | `create-warm` | | p50 ≥ 3 × faster than `runsc run` | red |\n\
             | `ping` | there and back | p99 ≤ 4.5 × `GET /healthz` | met |\n\
             | `snapshot-bytes` | on disk | p50 ≥ 5 × smaller than `savevm` | met |\n\
             | `files-upload` | 64 MiB | worst ≥ 30 MB/s | met |\n\
             | `memory-shim` | private memory | – | – |",
        )
        .unwrap();
        assert_eq!(table.definitions.len(), 5);
        assert_eq!(table.definitions[0].what, "a, then b");
        let limits: Vec<_> = table.bounds.iter().map(|bound| &bound.limit).collect();
        assert_eq!(
            limits,
            [
                &Limit::AtMost(60.0, Unit::Milliseconds),
                &Limit::Better(3.0, "runsc run".to_owned()),
                &Limit::Times(4.5, "GET /healthz".to_owned()),
                &Limit::Better(5.0, "savevm".to_owned()),
                &Limit::AtLeast(30.0, Unit::MegabytesPerSecond),
            ]
        );
        assert_eq!(table.bounds[2].statistic, Statistic::P99);
        let red: Vec<_> = table.bounds.iter().map(|bound| bound.red).collect();
        assert_eq!(red, [false, true, false, false, false]);
    }

    #[test]
    fn a_wrong_row_is_named() {
        for (row, says) in [
            ("| `speed` | x | – | – |", "no such figure"),
            ("| `ping` | x | p50 ≤ 1 ms |", "four cells"),
            ("| `ping` | | p50 ≤ 1 ms | met |", "first row"),
            ("| `ping` | x | p50 ≤ 1 ms | soon |", "`met` or `red`"),
            ("| `ping` | x | – | met |", "`met` or `red`"),
            ("| `ping` | x | p51 ≤ 1 ms | met |", "begins with"),
            ("| `ping` | x | p50 < 1 ms | met |", "`≤` or `≥`"),
            ("| `ping` | x | p50 ≤ one ms | met |", "number"),
            ("| `ping` | x | p50 ≤ 1 hour | met |", "unit"),
            ("| `ping` | x | p50 ≤ 1 × healthz | met |", "backticks"),
            ("| `ping` | x | p50 ≥ 1 × `healthz` | met |", "faster than"),
        ] {
            let error = of_rows(row).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(row), "{error}");
        }
        assert_eq!(parse("nothing"), Err(TableError::NoMark(BEGIN)));
    }

    #[test]
    fn the_specification_says_of_every_figure_what_it_measures() {
        let table = built_in().unwrap();
        for figure in FIGURES {
            let said = table
                .definitions
                .iter()
                .any(|known| known.figure == figure.name);
            assert!(said, "SPECIFICATION.md lacks a row of `{}`", figure.name);
        }
        for bound in &table.bounds {
            let unit = info(&bound.figure).map(|figure| figure.unit);
            if let Limit::AtMost(_, written) | Limit::AtLeast(_, written) = bound.limit {
                assert_eq!(unit, Some(written), "{bound:?}");
            }
        }
    }
}

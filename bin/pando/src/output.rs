//! Everything this program prints: data on stdout, talk on stderr.

use crate::exit;
use pando_client::ClientError;
use serde::Serialize;
use std::io::{self, Write as _};

/// Prints data on stdout. A reader that went away is no error.
pub(crate) fn data(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Prints a line of data.
pub(crate) fn line(text: &str) {
    data(&format!("{text}\n"));
}

/// Prints JSON, indented.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Tells a person something.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Tells a person what went wrong, why, and what can be done.
pub(crate) fn report(error: &anyhow::Error) {
    let mut text = format!("error: {error}");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("\n  because: {cause}"));
    }
    if let Some(hint) = exit::hint_of(error) {
        text.push_str(&format!("\n  hint: {hint}"));
    }
    note(&text);
    if let Some(ClientError::Api(refusal)) = error.downcast_ref()
        && refusal.status >= 500
    {
        note(&format!("  request: {}", refusal.request_id));
    }
}

/// A table for people: columns two spaces apart, as wide as they need.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) {
    data(&render_table(headings, rows));
}

fn render_table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings
        .iter()
        .map(|heading| (*heading).to_owned())
        .collect();
    let lines = || std::iter::once(&headings).chain(rows);
    let width = |column: usize| {
        lines()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    for row in lines() {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{count} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A short time for people: milliseconds as long as they say something.
pub(crate) fn milliseconds(count: f64) -> String {
    if count < 10.0 {
        format!("{count:.1} ms")
    } else if count < 10_000.0 {
        format!("{count:.0} ms")
    } else {
        format!("{:.1} s", count / 1000.0)
    }
}

/// Text that somebody gave, on one line and without what a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// A span of time for people: its largest unit.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let rows = [
            vec!["s1".to_owned(), "".to_owned()],
            vec!["sandbox".to_owned(), "ä".to_owned()],
        ];
        assert_eq!(
            render_table(&["ID", "NAME"], &rows),
            "ID       NAME\ns1\nsandbox  ä\n"
        );
        assert_eq!(render_table(&["ID"], &[]), "ID\n");
    }

    #[test]
    fn a_note_cannot_drive_a_terminal() {
        assert_eq!(
            printable("two\nlines, \u{1b}[2Jü"),
            "two\\nlines, \\u{1b}[2Jü"
        );
    }

    #[test]
    fn sizes_and_ages_are_readable() {
        assert_eq!(
            (bytes(0), bytes(1023), bytes(1536)),
            ("0 B".to_owned(), "1023 B".to_owned(), "1.5 KiB".to_owned())
        );
        assert_eq!(bytes(350 << 20), "350.0 MiB");
        assert_eq!(
            [0.0, 6.24, 80.4, 1234.0, 12_345.0].map(milliseconds),
            ["0.0 ms", "6.2 ms", "80 ms", "1234 ms", "12.3 s"]
        );
        assert_eq!(
            (age(5), age(300), age(10_000), age(400_000)),
            ("5s".into(), "5m".into(), "2h".into(), "4d".into())
        );
    }
}

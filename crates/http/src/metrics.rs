//! What `/metrics` counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Answers by the first digit of their status: 1xx to 5xx.
const CLASSES: usize = 5;

/// Counters since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    answers: [AtomicU64; CLASSES],
}

impl Metrics {
    /// A request was answered with this status.
    pub(crate) fn answered(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, CLASSES) - 1;
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    /// The counters in Prometheus's text format.
    pub(crate) fn render(&self, sandboxes: &BTreeMap<&'static str, u64>, uptime_s: u64) -> String {
        let mut text = String::from(
            "# HELP pando_http_requests_total Requests answered, by class of status.\n\
             # TYPE pando_http_requests_total counter\n",
        );
        for (index, count) in self.answers.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "pando_http_requests_total{{class=\"{}xx\"}} {count}",
                index + 1
            );
        }
        text.push_str(
            "# HELP pando_sandboxes Sandboxes, by state.\n# TYPE pando_sandboxes gauge\n",
        );
        for (state, count) in sandboxes {
            let _ = writeln!(text, "pando_sandboxes{{state=\"{state}\"}} {count}");
        }
        text.push_str("# HELP pando_uptime_seconds Since the daemon's start.\n# TYPE pando_uptime_seconds gauge\n");
        let _ = writeln!(text, "pando_uptime_seconds {uptime_s}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_rendered_by_class_and_state() {
        let metrics = Metrics::default();
        for status in [200, 204, 404, 999] {
            metrics.answered(status);
        }
        let text = metrics.render(&BTreeMap::from([("running", 3)]), 9);
        for line in [
            "pando_http_requests_total{class=\"2xx\"} 2",
            "pando_http_requests_total{class=\"5xx\"} 1",
            "pando_sandboxes{state=\"running\"} 3",
            "pando_uptime_seconds 9",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing in:\n{text}"
            );
        }
    }
}

//! What `/metrics` counts.

use pando_engine::request::{PoolStatus, Status};
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
    pub(crate) fn render(&self, status: &Status) -> String {
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
        for (state, count) in &status.sandboxes {
            let _ = writeln!(text, "pando_sandboxes{{state=\"{state}\"}} {count}");
        }
        write_pool(&mut text, &status.pool);
        let uptime_s = status.uptime.as_secs();
        text.push_str("# HELP pando_uptime_seconds Since the daemon's start.\n# TYPE pando_uptime_seconds gauge\n");
        let _ = writeln!(text, "pando_uptime_seconds {uptime_s}");
        text
    }
}

fn write_pool(text: &mut String, pool: &PoolStatus) {
    text.push_str("# HELP pando_pool_slots Slots that wait for a request, by kind and what they are made from.\n# TYPE pando_pool_slots gauge\n");
    for slots in &pool.slots {
        let _ = writeln!(
            text,
            "pando_pool_slots{{kind=\"{}\",template=\"{}\",cpus=\"{}\",memory_mib=\"{}\"}} {}",
            slots.kind,
            slots.template.as_deref().unwrap_or_default(),
            slots.size.cpus(),
            slots.size.memory_mib(),
            slots.waiting
        );
    }
    text.push_str("# HELP pando_pool_claims_total Sandboxes made, by the kind of slot they were made from.\n# TYPE pando_pool_claims_total counter\n");
    for (kind, count) in &pool.claims {
        let _ = writeln!(text, "pando_pool_claims_total{{kind=\"{kind}\"}} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_engine::request::PoolSlots;
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[test]
    fn counters_are_rendered_by_class_and_state() {
        let metrics = Metrics::default();
        for status in [200, 204, 404, 999] {
            metrics.answered(status);
        }
        let slots = PoolSlots {
            template: Some("base:latest".to_owned()),
            size: pando_types::Size::DEFAULT,
            kind: "warm",
            waiting: 2,
            wanted: 4,
        };
        let text = metrics.render(&Status {
            version: String::new(),
            pid: 1,
            accelerator: pando_types::Accelerator::Tcg,
            accelerator_reason: String::new(),
            vmm: String::new(),
            sandboxes: BTreeMap::from([("running", 3)]),
            uptime: Duration::from_secs(9),
            pool: PoolStatus {
                slots: vec![slots],
                claims: BTreeMap::from([("warm", 5)]),
                ..PoolStatus::default()
            },
            starts_under_way: 0,
            starts_refused: 0,
        });
        for line in [
            "pando_http_requests_total{class=\"2xx\"} 2",
            "pando_http_requests_total{class=\"5xx\"} 1",
            "pando_sandboxes{state=\"running\"} 3",
            "pando_pool_slots{kind=\"warm\",template=\"base:latest\",cpus=\"1\",memory_mib=\"512\"} 2",
            "pando_pool_claims_total{kind=\"warm\"} 5",
            "pando_uptime_seconds 9",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing in:\n{text}"
            );
        }
    }
}

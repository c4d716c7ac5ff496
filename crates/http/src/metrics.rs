//! What `/metrics` counts.
//!
//! Counters and histograms live as long as the daemon; what is true of the moment is put
//! beside them when it is asked for. Label values are words of the engine's, never a
//! caller's, templates' names apart, which are as many as there are templates.

use crate::process::Process;
use pando_engine::request::{PoolStatus, Status};
use pando_engine::{Finished, Observer, Operation};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bounds of the latencies' buckets, in seconds: from a quick exec to a bake.
const BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Answers by the first digit of their status.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

type Labels = Vec<(&'static str, String)>;
type Number = Gauge<f64, AtomicU64>;

/// Counters since the daemon's start.
#[derive(Debug)]
pub(crate) struct Metrics {
    answers: [Counter; CLASSES.len()],
    took: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Family<Labels, Gauge>,
    registry: Registry,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = Family::<Labels, Counter>::default();
        let answers = CLASSES.map(|class| {
            let labels = vec![("class", class.to_owned())];
            requests.get_or_create_owned(&labels)
        });
        registry.register(
            "pando_http_requests",
            "Requests answered, by class of status",
            requests,
        );
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let took = Family::new_with_constructor(histogram);
        registry.register(
            "pando_operation_duration_seconds",
            "How long operations took, by what they were, what a sandbox was made from, and what came of them",
            took.clone(),
        );
        let in_flight = Family::<Labels, Gauge>::default();
        for operation in Operation::ALL {
            in_flight.get_or_create_owned(&vec![("operation", operation.as_str().to_owned())]);
        }
        registry.register(
            "pando_operations_in_flight",
            "Operations under way",
            in_flight.clone(),
        );
        Self {
            answers,
            took,
            in_flight,
            registry,
        }
    }
}

impl Observer for Metrics {
    fn began(&self, operation: Operation) {
        let labels = vec![("operation", operation.as_str().to_owned())];
        self.in_flight.get_or_create(&labels).inc();
    }

    fn ended(&self, finished: &Finished) {
        let operation = ("operation", finished.operation.as_str().to_owned());
        self.in_flight.get_or_create(&vec![operation.clone()]).dec();
        let labels = vec![
            operation,
            ("source", finished.source.to_owned()),
            ("result", finished.outcome.as_str().to_owned()),
        ];
        self.took
            .get_or_create(&labels)
            .observe(finished.took.as_secs_f64());
    }
}

impl Metrics {
    /// A request was answered with this status.
    pub(crate) fn answered(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        self.answers[class].inc();
    }

    /// All of it in Prometheus's text format.
    pub(crate) fn render(&self, status: &Status) -> String {
        let mut moment = Moment::default();
        moment.sandboxes(status);
        moment.pool(&status.pool);
        moment.host(status);
        moment.process(status, &Process::of_this());
        let mut text = String::new();
        for registry in [&self.registry, &moment.registry] {
            // Into a string it cannot fail.
            let _ = prometheus_text::encode(&mut text, registry);
        }
        text
    }
}

/// What is true now.
#[derive(Default)]
struct Moment {
    registry: Registry,
}

impl Moment {
    fn put(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.registry.register(name, help, metric);
    }

    fn number(&mut self, name: &str, help: &str, value: f64) {
        let number = Number::default();
        number.set(value);
        self.put(name, help, number);
    }

    #[allow(clippy::cast_precision_loss, reason = "bytes and counts below 2^53")]
    fn count(&mut self, name: &str, help: &str, value: u64) {
        self.number(name, help, value as f64);
    }

    fn sandboxes(&mut self, status: &Status) {
        let sandboxes = Family::<Labels, Gauge>::default();
        for (state, count) in &status.sandboxes {
            set(&sandboxes, vec![("state", (*state).to_owned())], *count);
        }
        self.put("pando_sandboxes", "Sandboxes, by state", sandboxes);
        self.count(
            "pando_starts_under_way",
            "Starts of sandboxes that wait for their turn or have it",
            status.starts_under_way as u64,
        );
        let refused = Counter::<u64>::default();
        refused.inc_by(status.starts_refused);
        self.put(
            "pando_starts_refused",
            "Starts refused, by limits or by a full or busy host",
            refused,
        );
        self.count(
            "pando_adopted_sandboxes",
            "Sandboxes that ran and were taken over at the daemon's start",
            status.adoption.sandboxes as u64,
        );
        self.number(
            "pando_adoption_duration_seconds",
            "From the daemon's start until it had taken over what ran",
            status.adoption.took.as_secs_f64(),
        );
    }

    fn pool(&mut self, pool: &PoolStatus) {
        let waiting = Family::<Labels, Gauge>::default();
        for slots in &pool.slots {
            let labels = vec![
                ("kind", slots.kind.to_owned()),
                ("template", slots.template.clone().unwrap_or_default()),
                ("cpus", slots.size.cpus().to_string()),
                ("memory_mib", slots.size.memory_mib().to_string()),
            ];
            set(&waiting, labels, slots.waiting as u64);
        }
        self.put(
            "pando_pool_slots",
            "Slots that wait for a request, by kind and what they are made from",
            waiting,
        );
        let claims = Family::<Labels, Counter>::default();
        for (kind, count) in &pool.claims {
            let labels = vec![("kind", (*kind).to_owned())];
            claims.get_or_create_owned(&labels).inc_by(*count);
        }
        self.put(
            "pando_pool_claims",
            "Sandboxes made, by the kind of slot they were made from",
            claims,
        );
    }

    fn host(&mut self, status: &Status) {
        let info = Family::<Labels, Gauge>::default();
        let labels = vec![
            ("version", status.version.clone()),
            ("accelerator", status.accelerator.to_string()),
            ("vmm", status.vmm.clone()),
        ];
        set(&info, labels, 1);
        self.put("pando_build_info", "What runs here", info);
        let headroom = &status.headroom;
        for (name, help, value) in [
            (
                "pando_host_memory_available_bytes",
                "Memory that the host could give",
                headroom.memory_available_bytes,
            ),
            (
                "pando_host_memory_total_bytes",
                "Memory of the host",
                headroom.memory_total_bytes,
            ),
            (
                "pando_state_disk_available_bytes",
                "Room on the state directory's file system",
                headroom.disk_available_bytes,
            ),
            (
                "pando_state_disk_size_bytes",
                "Size of the state directory's file system",
                headroom.disk_size_bytes,
            ),
            (
                "pando_host_cpus",
                "CPUs that the daemon may use",
                headroom.cpus as u64,
            ),
        ] {
            self.count(name, help, value);
        }
        self.number(
            "pando_host_load1",
            "Tasks that run or wait on the host, the average of a minute",
            headroom.load_1m,
        );
    }

    /// The names are those of Prometheus's own client libraries.
    fn process(&mut self, status: &Status, process: &Process) {
        let uptime = "pando_uptime_seconds";
        self.count(uptime, "Since the daemon's start", status.uptime.as_secs());
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory of the daemon",
                process.resident_bytes,
            ),
            (
                "process_open_fds",
                "Open file descriptors of the daemon",
                process.open_fds,
            ),
            (
                "process_max_fds",
                "File descriptors that the daemon may have open",
                process.max_fds,
            ),
        ] {
            self.count(name, help, value);
        }
        let cpu = Counter::<f64, AtomicU64>::default();
        cpu.inc_by(process.cpu.as_secs_f64());
        self.put("process_cpu_seconds", "Processor time of the daemon", cpu);
        let started = SystemTime::now().checked_sub(status.uptime);
        let started = started.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        self.number(
            "process_start_time_seconds",
            "When the daemon was started, in Unix time",
            started.unwrap_or_default().as_secs_f64().round(),
        );
    }
}

fn set(family: &Family<Labels, Gauge>, labels: Labels, value: u64) {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    family.get_or_create_owned(&labels).set(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_engine::Outcome;
    use pando_engine::request::{Adoption, Headroom, PoolSlots};
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn status() -> Status {
        let slots = PoolSlots {
            template: Some("base:latest".to_owned()),
            size: pando_types::Size::DEFAULT,
            kind: "warm",
            waiting: 2,
            wanted: 4,
        };
        Status {
            version: "1.2.3".to_owned(),
            pid: 1,
            accelerator: pando_types::Accelerator::Tcg,
            accelerator_reason: String::new(),
            vmm: "QEMU \"10\"".to_owned(),
            sandboxes: BTreeMap::from([("running", 3)]),
            uptime: Duration::from_secs(9),
            pool: PoolStatus {
                slots: vec![slots],
                claims: BTreeMap::from([("warm", 5)]),
                ..PoolStatus::default()
            },
            starts_under_way: 1,
            starts_refused: 7,
            adoption: Adoption {
                sandboxes: 2,
                took: Duration::from_millis(250),
            },
            headroom: Headroom {
                memory_available_bytes: 5 << 30,
                load_1m: 0.5,
                ..Headroom::default()
            },
        }
    }

    #[test]
    fn what_is_counted_is_rendered() {
        let metrics = Metrics::default();
        for status in [200, 204, 404, 999] {
            metrics.answered(status);
        }
        metrics.began(Operation::Create);
        metrics.began(Operation::Pause);
        metrics.ended(&Finished {
            operation: Operation::Create,
            source: "warm",
            outcome: Outcome::Done,
            took: Duration::from_millis(30),
        });
        let text = metrics.render(&status());
        let create = "operation=\"create\",source=\"warm\",result=\"ok\"";
        for line in [
            "pando_http_requests_total{class=\"2xx\"} 2",
            "pando_http_requests_total{class=\"3xx\"} 0",
            "pando_http_requests_total{class=\"5xx\"} 1",
            "pando_sandboxes{state=\"running\"} 3",
            "pando_pool_slots{kind=\"warm\",template=\"base:latest\",cpus=\"1\",memory_mib=\"512\"} 2",
            "pando_pool_claims_total{kind=\"warm\"} 5",
            "pando_starts_refused_total 7",
            "pando_operations_in_flight{operation=\"create\"} 0",
            "pando_operations_in_flight{operation=\"pause\"} 1",
            "pando_operations_in_flight{operation=\"fork\"} 0",
            &format!("pando_operation_duration_seconds_bucket{{{create},le=\"0.025\"}} 0"),
            &format!("pando_operation_duration_seconds_bucket{{{create},le=\"0.05\"}} 1"),
            &format!("pando_operation_duration_seconds_count{{{create}}} 1"),
            &format!("pando_operation_duration_seconds_sum{{{create}}} 0.03"),
            "pando_build_info{version=\"1.2.3\",accelerator=\"tcg\",vmm=\"QEMU \\\"10\\\"\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing in:\n{text}"
            );
        }
        for (name, value) in [
            ("pando_uptime_seconds", 9.0),
            ("pando_adopted_sandboxes", 2.0),
            ("pando_adoption_duration_seconds", 0.25),
            ("pando_host_memory_available_bytes", 5_368_709_120.0),
            ("pando_host_load1", 0.5),
        ] {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{name} ")));
            let found = line.and_then(|number| number.parse::<f64>().ok());
            assert_eq!(found, Some(value), "{name} in:\n{text}");
        }
        let typed = text.lines().filter(|line| line.starts_with("# TYPE "));
        let mut names: Vec<_> = typed.map(|line| line.split(' ').nth(2).unwrap()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "each name has one type: {names:?}");
    }
}

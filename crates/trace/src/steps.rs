//! Spans of what others did and told afterwards.

use opentelemetry::trace::{Span as _, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use std::time::{Duration, SystemTime};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Steps of one answer that become spans; a shim has about ten, an agent fewer.
const STEPS: usize = 32;

/// Characters of a step's name.
const NAME_CHARACTERS: usize = 40;

/// Who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// A sandbox's shim.
    Shim,
    /// The agent in a guest, which may be anybody's: it is believed nothing that its shim's
    /// own times do not allow.
    Agent,
}

impl Component {
    fn name(self) -> &'static str {
        match self {
            Self::Shim => "shim",
            Self::Agent => "agent",
        }
    }

    fn tracer(self) -> &'static str {
        match self {
            Self::Shim => "pando.shim",
            Self::Agent => "pando.agent",
        }
    }
}

/// A piece of another process's work within a span of ours: what it is called, when it was,
/// and the ends of its steps. Clocks of others are not asked: a piece ends when its answer
/// came, and everything is cut to what it lies in.
#[derive(Clone, Debug)]
pub struct Steps {
    within: Context,
    from: SystemTime,
    to: SystemTime,
}

impl Steps {
    /// Work within `span`, which began at `from` and ends about now; none where nobody listens.
    pub fn within(span: &Span, from: SystemTime) -> Option<Self> {
        if span.is_disabled() {
            return None;
        }
        Some(Self {
            within: span.context(),
            from,
            to: SystemTime::now().max(from),
        })
    }

    /// Records that `component` did this, in steps that ended so many milliseconds after its
    /// begin: a span, and one in it for each step. Gives the steps, so that others' work can be
    /// laid into one of them. What is no time is left out. A shim's step that ended later than
    /// there was time for is another request's, and left out, too; a guest's clock may go
    /// wrongly by some hundredths, and its steps are cut.
    pub fn record(
        &self,
        component: Component,
        ends_ms: impl IntoIterator<Item = (String, f64)>,
    ) -> Recorded {
        let room = self.to.duration_since(self.from).unwrap_or_default();
        let mut ends: Vec<(String, Duration)> = ends_ms
            .into_iter()
            .filter_map(|(name, ms)| {
                let end = Duration::try_from_secs_f64(ms / 1e3).ok()?;
                let end = match component {
                    Component::Shim if end > room => return None,
                    _ => end.min(room),
                };
                Some((clean(&name), end))
            })
            .take(STEPS)
            .collect();
        ends.sort_by_key(|(_, end)| *end);
        let took = ends.last().map_or(Duration::ZERO, |(_, end)| *end);
        let begin = self.to - took;
        let whole = self.span(component, component.name(), &self.within, begin, self.to);
        let mut steps = Vec::new();
        let mut last = begin;
        for (name, end) in ends {
            let end = begin + end;
            let within = self.span(component, &name, &whole, last, end);
            let (from, to) = (last, end);
            steps.push((name, Self { within, from, to }));
            last = end;
        }
        let whole = Self {
            within: whole,
            from: begin,
            to: self.to,
        };
        Recorded { whole, steps }
    }

    fn span(
        &self,
        component: Component,
        name: &str,
        within: &Context,
        from: SystemTime,
        to: SystemTime,
    ) -> Context {
        let tracer = opentelemetry::global::tracer(component.tracer());
        let mut span = tracer
            .span_builder(name.to_owned())
            .with_start_time(from)
            .with_attributes([KeyValue::new("pando.component", component.name())])
            .start_with_context(&tracer, within);
        span.end_with_timestamp(to);
        // Others' spans can still be laid into one that has ended.
        within.with_remote_span_context(span.span_context().clone())
    }
}

/// The steps that became spans.
#[derive(Clone, Debug)]
pub struct Recorded {
    whole: Steps,
    steps: Vec<(String, Steps)>,
}

impl Recorded {
    /// All of it.
    pub fn whole(&self) -> &Steps {
        &self.whole
    }

    /// The step of this name.
    pub fn step(&self, name: &str) -> Option<&Steps> {
        let found = self.steps.iter().find(|(step, _)| step == name);
        found.map(|(_, steps)| steps)
    }
}

/// A step's name as others told it, fit to be shown.
fn clean(name: &str) -> String {
    let shown = name.chars().take(NAME_CHARACTERS);
    shown
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | ' ' | '-' | '_' => c,
            _ => '?',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

    /// Spans of what is recorded in the last second.
    fn recorded(component: Component, ends_ms: &[(&str, f64)]) -> Vec<SpanData> {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        opentelemetry::global::set_tracer_provider(provider);
        let to = SystemTime::now();
        let steps = Steps {
            within: Context::new(),
            from: to - Duration::from_secs(1),
            to,
        };
        let ends = ends_ms.iter().map(|(name, ms)| ((*name).to_owned(), *ms));
        steps.record(component, ends);
        let mut spans = exporter.get_finished_spans().unwrap();
        spans.sort_by_key(|span| span.start_time);
        spans
    }

    #[test]
    fn what_others_say_stays_within_its_bounds() {
        let hostile = "<script>\u{202e}".repeat(100);
        let many: Vec<_> = (0..1000).map(|_| (hostile.as_str(), 1.0)).collect();
        let nonsense = [
            ("nan", f64::NAN),
            ("negative", -5.0),
            ("endless", f64::INFINITY),
            ("huge", 1e300),
        ];
        let all: Vec<_> = nonsense.iter().chain(&many).copied().collect();
        let spans = recorded(Component::Agent, &all);
        // One lock holds for both cases: the provider is the process's.
        assert_eq!(spans.len(), 1 + STEPS);
        for span in &spans {
            assert!(span.name.len() <= NAME_CHARACTERS, "{}", span.name);
            assert!(!span.name.contains(['<', '\u{202e}']), "{}", span.name);
        }
        let took = |span: &SpanData| {
            let took = span.end_time.duration_since(span.start_time).unwrap();
            (span.name.to_string(), took.as_millis())
        };
        // What ended too late is cut, or not this request's.
        let late = [("late", 1500.0)];
        let spans = recorded(Component::Agent, &late);
        let longest = spans.iter().map(|span| took(span).1).max();
        assert_eq!(longest, Some(1000));
        assert_eq!(recorded(Component::Shim, &late).len(), 1);
        let spans = recorded(Component::Shim, &[("second", 30.0), ("first", 10.0)]);
        let mut found: Vec<_> = spans.iter().map(took).collect();
        found.sort();
        let expected = [("first", 10), ("second", 20), ("shim", 30)];
        assert_eq!(found, expected.map(|(name, ms)| (name.to_owned(), ms)));
        let whole = spans.iter().find(|span| span.name == "shim").unwrap();
        let inner = spans.iter().filter(|span| span.name != "shim");
        for span in inner {
            assert_eq!(span.parent_span_id, whole.span_context.span_id());
        }
    }
}

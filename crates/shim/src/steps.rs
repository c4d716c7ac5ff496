//! How long the steps of something took.

use std::collections::HashMap;
use std::time::Instant;

/// Times of steps, in ms since the begin.
#[derive(Debug)]
pub(crate) struct Steps {
    begun: Instant,
    pub(crate) done: HashMap<String, f64>,
}

impl Steps {
    pub(crate) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            done: HashMap::new(),
        }
    }

    pub(crate) fn mark(&mut self, step: &str) -> f64 {
        let since = self.begun.elapsed().as_secs_f64() * 1000.0;
        self.done.insert(step.to_owned(), since);
        since
    }
}

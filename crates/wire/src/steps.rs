//! How long the steps of something took, as messages tell it.

use std::collections::HashMap;
use std::time::Instant;

/// Times of steps, in milliseconds since the begin.
#[derive(Debug)]
pub struct Steps {
    begun: Instant,
    /// When each ended.
    pub done: HashMap<String, f64>,
}

impl Steps {
    /// Begins now.
    pub fn begin() -> Self {
        Self {
            begun: Instant::now(),
            done: HashMap::new(),
        }
    }

    /// A step ends now; gives the milliseconds since the begin.
    pub fn mark(&mut self, step: &str) -> f64 {
        let since = self.begun.elapsed().as_secs_f64() * 1000.0;
        self.done.insert(step.to_owned(), since);
        since
    }
}

//! Traces of a host, as lines of text.

use ferroflow_host_context::TraceSink;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Collects a line for each begin and end of a scope.
#[derive(Clone, Default)]
pub(super) struct TextSink(Arc<Mutex<String>>);

impl TextSink {
    fn lock(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lines so far.
    pub(super) fn take(&self) -> String {
        std::mem::take(&mut *self.lock())
    }
}

impl TraceSink for TextSink {
    fn begin(&self, name: &str) {
        let mut text = self.lock();
        text.push_str("Scope:");
        text.push_str(name);
        text.push('\n');
    }

    fn end(&self) {
        self.lock().push_str("End Scope\n");
    }
}

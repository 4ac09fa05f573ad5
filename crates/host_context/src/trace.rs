//! Tracing of a host: scopes that begin and end.

/// The detail of a trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TraceLevel {
    /// Functions and ops.
    Default,
    /// Parts of ops, too.
    Verbose,
    /// Every kernel, too.
    Debug,
}

impl TraceLevel {
    /// Returns the level with this name on command lines.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "default" => TraceLevel::Default,
            "verbose" => TraceLevel::Verbose,
            "debug" => TraceLevel::Debug,
            _ => return None,
        })
    }
}

/// A receiver of trace events.
pub trait TraceSink: Send + Sync {
    /// An event begins.
    fn begin(&self, name: &str);

    /// The event that began last on this thread ends.
    fn end(&self);
}

/// A sink with its level of detail.
pub struct Tracer {
    level: TraceLevel,
    sink: Box<dyn TraceSink>,
}

impl Tracer {
    /// Passes events of `level` and less detailed ones to `sink`.
    pub fn new(level: TraceLevel, sink: Box<dyn TraceSink>) -> Self {
        Tracer { level, sink }
    }

    pub(super) fn scope(
        &self,
        level: TraceLevel,
        name: impl FnOnce() -> String,
    ) -> Option<TraceScope<'_>> {
        (level <= self.level).then(|| {
            self.sink.begin(&name());
            TraceScope(&*self.sink)
        })
    }
}

/// An event that ends when this is dropped.
#[must_use = "the scope ends when it is dropped"]
pub struct TraceScope<'a>(&'a dyn TraceSink);

impl Drop for TraceScope<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

//! What happens in a host, told as it happens: scopes that begin and end.

/// How much is told.
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

/// Who is told.
pub trait TraceSink: Send + Sync {
    /// Something begins.
    fn begin(&self, name: &str);

    /// What began last on this thread ends.
    fn end(&self);
}

/// A sink and how much it wants to know.
pub struct Tracer {
    level: TraceLevel,
    sink: Box<dyn TraceSink>,
}

impl Tracer {
    /// Tells `sink` what belongs to `level` and the levels before it.
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

/// Something that goes on until this is dropped.
#[must_use = "the scope ends when it is dropped"]
pub struct TraceScope<'a>(&'a dyn TraceSink);

impl Drop for TraceScope<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

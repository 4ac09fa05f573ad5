//! What a running step tells an observer.

use ferroflow_opdef::NodeInfo;
use std::time::Instant;

/// One kernel call.
pub struct NodeSpan<'a> {
    /// Which node.
    pub node: &'a NodeInfo,
    /// When its kernel began.
    pub start: Instant,
    /// When it returned.
    pub end: Instant,
    /// Dtypes and shapes of the inputs.
    pub inputs: String,
    /// Dtypes and shapes of the outputs.
    pub outputs: String,
}

/// Receives spans, from any thread.
pub trait TraceSink: Send + Sync {
    /// A kernel returned.
    fn span(&self, span: NodeSpan);
}

//! Traces of running steps.

use ferroflow_opdef::NodeInfo;
use ferroflow_tensor::{DType, Shape, Tensor};
use std::any::Any;
use std::fmt;
use std::time::Instant;

/// One kernel call.
pub struct NodeSpan<'a> {
    /// The node.
    pub node: &'a NodeInfo,
    /// The function or loop it is in; empty for the graph itself.
    pub frame: &'a str,
    /// The iteration of the loop, from 0.
    pub iteration: u64,
    /// When its kernel began.
    pub start: Instant,
    /// When it returned.
    pub end: Instant,
    /// The tensors it read, if known.
    pub inputs: Vec<TracedTensor>,
    /// The tensors it wrote; dead outputs are left out.
    pub outputs: Vec<TracedTensor>,
}

/// A tensor as a trace sees it.
pub struct TracedTensor {
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Its bytes; 0 for strings, resources and variants.
    pub bytes: usize,
    /// Address of its bytes, to tell whether two tensors share memory; 0 for tensors stored inline.
    pub address: usize,
}

impl TracedTensor {
    pub(crate) fn of(t: &Tensor) -> Self {
        TracedTensor {
            dtype: t.dtype(),
            shape: t.shape().clone(),
            bytes: t.byte_len(),
            address: match t.bytes() {
                Ok(bytes) if bytes.len() > 8 => bytes.as_ptr().addr(),
                _ => 0,
            },
        }
    }
}

impl fmt::Display for TracedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// A node that did not run because an input was dead.
pub struct DeadNode<'a> {
    /// The node.
    pub node: &'a NodeInfo,
    /// The producer whose dead output (or whose own death) reached it last.
    pub cause: &'a NodeInfo,
    /// The function or loop it is in; empty for the graph itself.
    pub frame: &'a str,
    /// The iteration of the loop, from 0.
    pub iteration: u64,
}

/// What a stream of a device ran for a node, or a copy.
pub struct StreamSpan<'a> {
    /// The device and its stream.
    pub stream: &'a str,
    /// The node, or the tensor that was copied.
    pub name: &'a str,
    /// The op of the node, or `MEMCPYHtoD` or `MEMCPYDtoH`.
    pub op: &'a str,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Receives spans, from any thread.
pub trait TraceSink: Any + Send + Sync {
    /// A kernel returned.
    fn span(&self, span: NodeSpan);

    /// A stream ran something; after the spans of the nodes that enqueued it.
    fn stream_span(&self, _span: StreamSpan) {}

    /// A node was dead.
    fn dead(&self, _node: DeadNode) {}
}

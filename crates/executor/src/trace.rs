//! What a running step tells an observer.

use crate::state::{Env, Place};
use ferroflow_base::Result;
use ferroflow_opdef::{KernelCtx, NodeInfo, Value};
use ferroflow_program::{Action, NodeIdx, Plan};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::fmt;
use std::time::Instant;

/// One kernel call.
pub struct NodeSpan<'a> {
    /// Which node.
    pub node: &'a NodeInfo,
    /// The function or loop it is in; empty for the graph itself.
    pub frame: &'a str,
    /// The iteration of the loop, from 0.
    pub iteration: u64,
    /// When its kernel began.
    pub start: Instant,
    /// When it returned.
    pub end: Instant,
    /// What it read, as far as it is known.
    pub inputs: Vec<TracedTensor>,
    /// What it wrote; dead outputs are left out.
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
    /// Where it lies, to tell whether two tensors share memory; 0 when it lies nowhere for long.
    pub address: usize,
}

impl TracedTensor {
    fn of(t: &Tensor) -> Self {
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

    /// Those of `values` that are there.
    pub(crate) fn all(plan: &Plan, values: &[Value]) -> Vec<Self> {
        let tensors = values.iter().filter_map(|v| match v {
            Value::Tensor(t) => Some(t),
            Value::Const(c) => plan.consts.get(*c as usize),
            Value::Empty => None,
        });
        tensors.map(Self::of).collect()
    }
}

impl fmt::Display for TracedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// A node that did not run because an input was dead.
pub struct DeadNode<'a> {
    /// Which node.
    pub node: &'a NodeInfo,
    /// The producer whose dead output (or whose own death) reached it last.
    pub cause: &'a NodeInfo,
    /// The function or loop it is in; empty for the graph itself.
    pub frame: &'a str,
    /// The iteration of the loop, from 0.
    pub iteration: u64,
}

/// Receives spans, from any thread.
pub trait TraceSink: Send + Sync {
    /// A kernel returned.
    fn span(&self, span: NodeSpan);

    /// A node was dead.
    fn dead(&self, _node: DeadNode) {}
}

#[cold]
pub(crate) fn traced_call(
    env: &Env,
    idx: NodeIdx,
    (frame, iteration): Place,
    inputs: &mut [Value],
    outputs: &mut [Value],
) -> Result<()> {
    let (plan, info) = (env.plan, &env.plan.info[idx.index()]);
    let (Action::Kernel(kernel), Some(trace)) = (&plan.nodes[idx.index()].action, env.trace) else {
        return Ok(());
    };
    let read = TracedTensor::all(plan, inputs);
    let start = Instant::now();
    let mut ctx = KernelCtx::new(info, inputs, &plan.consts, outputs, &env.services);
    let result = kernel
        .compute(&mut ctx)
        .map_err(|e| e.at_node(&info.name, &info.op));
    let end = Instant::now();
    trace.span(NodeSpan {
        node: info,
        frame: &plan.frames[frame.index()].name,
        iteration,
        start,
        end,
        inputs: read,
        outputs: TracedTensor::all(plan, outputs),
    });
    result
}

/// Tells of a node that the engine runs itself, or that ended on another thread.
#[cold]
pub(crate) fn trace_other(
    env: &Env,
    idx: NodeIdx,
    (frame, iteration): Place,
    start: Instant,
    outputs: Vec<TracedTensor>,
) {
    if let Some(trace) = env.trace {
        trace.span(NodeSpan {
            node: &env.plan.info[idx.index()],
            frame: &env.plan.frames[frame.index()].name,
            iteration,
            start,
            end: Instant::now(),
            inputs: Vec::new(),
            outputs,
        });
    }
}

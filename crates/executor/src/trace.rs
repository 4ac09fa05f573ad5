//! What a running step tells an observer.

use crate::state::{Env, Place};
use ferroflow_base::Result;
use ferroflow_opdef::{KernelCtx, NodeInfo, Value};
use ferroflow_program::{Action, NodeIdx};
use ferroflow_tensor::Tensor;
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
    /// Dtypes and shapes of the inputs.
    pub inputs: String,
    /// Dtypes and shapes of the outputs.
    pub outputs: String,
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
    let show = |t: &Tensor| format!("{}{}", t.dtype(), t.shape());
    let shown: Vec<String> = inputs
        .iter()
        .map(|v| match v {
            Value::Tensor(t) => show(t),
            Value::Const(c) => plan.consts.get(*c as usize).map_or(String::new(), show),
            Value::Empty => "packed".to_string(),
        })
        .collect();
    let start = Instant::now();
    let mut ctx = KernelCtx::new(info, inputs, &plan.consts, outputs, &env.services);
    let result = kernel
        .compute(&mut ctx)
        .map_err(|e| e.at_node(&info.name, &info.op));
    let end = Instant::now();
    let out: Vec<String> = outputs
        .iter()
        .filter_map(|v| match v {
            Value::Tensor(t) => Some(show(t)),
            _ => None,
        })
        .collect();
    trace.span(NodeSpan {
        node: info,
        frame: &plan.frames[frame.index()].name,
        iteration,
        start,
        end,
        inputs: shown.join(", "),
        outputs: out.join(", "),
    });
    result
}

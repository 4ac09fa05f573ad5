//! The function that a SymbolicGradient node calls.

use crate::{ARG, Function, GradientOptions, GraphBuilder, NodeId, Output, RETVAL, Unconnected};
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Registry};
use ferroflow_tensor::DType;

/// The gradient of `function`: takes its arguments and a gradient for each of its results, returns
/// a gradient for each argument. Arguments that nothing depends on have gradients of zeros.
pub(crate) fn gradient_function(function: Function, registry: &Registry) -> Result<Function> {
    let mut graph = function.graph;
    let mut args: Vec<(i64, NodeId)> = Vec::new();
    let mut results: Vec<(i64, NodeId, Output)> = Vec::new();
    for (id, node) in graph.iter() {
        match (node.op(), node.inputs.first()) {
            (ARG, _) => args.push((node.attrs.int("index")?, id)),
            (RETVAL, Some(from)) => results.push((node.attrs.int("index")?, id, *from)),
            _ => {}
        }
    }
    args.sort_by_key(|(i, _)| *i);
    results.sort_by_key(|(i, ..)| *i);
    for (_, id, _) in &results {
        graph.remove(*id);
    }
    let mut b = GraphBuilder::from_graph(graph, registry);
    let differentiable = |dtype: DType| dtype.is_floating() || dtype.is_complex();
    let (mut ys, mut grad_ys) = (Vec::new(), Vec::new());
    for (i, (_, _, y)) in results.iter().enumerate() {
        let dtype = b.dtype(*y)?;
        let index = AttrValue::Int((args.len() + i) as i64);
        let arg = b.op(ARG).name("grad").attr("T", AttrValue::Type(dtype));
        let arg = arg.attr("index", index).output()?;
        if differentiable(dtype) {
            ys.push(*y);
            grad_ys.push(Some(arg));
        }
    }
    let xs: Vec<Output> = args.iter().map(|(_, id)| Output::new(*id, 0)).collect();
    let mut wanted = Vec::new();
    for x in &xs {
        if differentiable(b.dtype(*x)?) {
            wanted.push(*x);
        }
    }
    let options = GradientOptions {
        grad_ys,
        unconnected: Unconnected::Zero,
        ..Default::default()
    };
    let mut found = match ys.is_empty() {
        true => Vec::new(),
        false => b.gradients(&ys, &wanted, &options)?,
    }
    .into_iter();
    for (i, x) in xs.iter().enumerate() {
        let gradient = match differentiable(b.dtype(*x)?) {
            true => found.next().flatten(),
            false => None,
        };
        let gradient = match gradient {
            Some(gradient) => gradient,
            None => b.op("ZerosLike").input(*x).output()?,
        };
        let index = AttrValue::Int(i as i64);
        let retval = b.op(RETVAL).name("gradient").input(gradient);
        retval.attr("index", index).build()?;
    }
    Function::new(b.finish()?)
}
